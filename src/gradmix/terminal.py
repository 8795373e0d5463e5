"""What the command line shows: progress of a run, tables of results, a chart of forgetting."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

if TYPE_CHECKING:
    from gradmix.experiments.config import RunConfig
    from gradmix.experiments.results import RunResult
    from gradmix.training.loop import Event, TaskDone, Training

REFRESH_SECONDS = 0.1
BARS = "▁▂▃▄▅▆▇█"

messages = Console(stderr=True, highlight=False)
"""Progress and remarks; results go to standard output, so that they can be piped."""


@contextmanager
def showing_progress(quiet: bool = False) -> Iterator[Progress]:
    """A progress display on standard error."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, disable=quiet, transient=True) as progress:
        yield progress


def follow(
    progress: Progress, config: RunConfig, every_task: bool = True
) -> Callable[[Training, Event], None]:
    """An observer of one run that moves its bar and, if asked, prints a line for every task."""
    from gradmix.training.loop import EpochDone, StepDone, TaskDone

    name = f"{config.data} {config.method} {config.mix} seed {config.seed}"
    bar = progress.add_task(name, total=None, status="")
    shown = 0.0
    last_loss = ""

    def observe(training: Training, event: Event) -> None:
        nonlocal shown, last_loss
        tasks = training.benchmark.tasks
        if isinstance(event, StepDone):
            if time.monotonic() - shown < REFRESH_SECONDS:
                return
            shown = time.monotonic()
            epoch = event.epoch + event.step / event.steps
            where = f"task {event.task + 1}/{len(tasks)} epoch {event.epoch + 1}/{config.epochs}"
            weights = [len(task.train.y) for task in tasks]
            done = sum(weights[: event.task]) + weights[event.task] * epoch / config.epochs
            status = f"{where} {last_loss}"
            progress.update(bar, total=sum(weights), completed=done, status=status)
        elif isinstance(event, EpochDone):
            last_loss = f"loss {event.loss:.3f}"
        elif isinstance(event, TaskDone):
            seen = tasks[: event.task + 1]
            classes = [label for task in seen for label in task.classes]
            accuracy = float(event.correct["main"][classes].sum()) / sum(
                len(t.test.y) for t in seen
            )
            if every_task:
                progress.console.print(
                    f"{name} · task {event.task + 1}/{len(tasks)} · accuracy {accuracy:.3f} · "
                    f"{last_loss} · memory {event.memory_size}{_short_replay(event, config)}",
                    soft_wrap=True,
                )
            if event.task + 1 == len(tasks):
                progress.remove_task(bar)

    return observe


def _short_replay(event: TaskDone, config: RunConfig) -> str:
    """A remark where the memory was too small for the replay batch."""
    if event.replay_batch in (0, config.replay_batch_size):
        return ""
    return f" · replayed all {event.replay_batch} per step, fewer than {config.replay_batch_size}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation (of a sample; none for one value)."""
    mean = statistics.fmean(values)
    return f"{mean:.3f} ± {statistics.stdev(values):.3f}" if len(values) > 1 else f"{mean:.3f}"


def seed_range(seeds: Sequence[int]) -> str:
    """Seeds in few letters.

    >>> seed_range([5, 6, 7]), seed_range([0, 2])
    ('5-7', '0 2')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return " ".join(str(seed) for seed in seeds)


def results_table(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """One row for each label: the headline metrics over its results."""
    columns = ("average accuracy", "final accuracy", "forgetting")
    table = Table(
        Column(no_wrap=True), "seeds", *(Column(name, no_wrap=True) for name in columns), "seconds"
    )
    for label, results in rows.items():
        metric = {
            key: spread([result.metrics[key] for result in results])
            for key in ("average_accuracy", "final_accuracy", "forgetting_from_best")
        }
        seeds = seed_range([result.config["seed"] for result in results])
        seconds = statistics.fmean(result.seconds["total"] for result in results)
        table.add_row(label, seeds, *metric.values(), f"{seconds:.1f}")
    return table


def forgetting_chart(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """How the accuracy on the first task goes as later tasks are learned."""
    first = next(iter(rows.values()))[0]
    names = [first.class_names[label] for label in first.tasks[0]["classes"]]
    tasks = (f"task {task + 1}" for task in range(len(first.tasks)))
    table = Table(Column(no_wrap=True), *tasks)
    table.title = f"accuracy on the first classes ({', '.join(names)}) after each task"
    for label, results in rows.items():
        cells = []
        for task in range(len(first.tasks)):
            accuracy = statistics.fmean(result.accuracy[task][0] for result in results)
            bar = BARS[min(int(accuracy * len(BARS)), len(BARS) - 1)]
            cells.append(f"{bar * 3} {accuracy:.2f}")
        table.add_row(label, *cells)
    return table
