"""Output of the command line: progress of runs and tables of results."""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.run import Outcome
    from gradmix.runs.store import RunProgress
    from gradmix.runs.sweep import Sweep
    from gradmix.runs.tables import TextTable
    from gradmix.training.loop import Event, Training

REFRESH_SECONDS = 0.1
SHOWN_RUNNING = 8
FOLDED = 14  # the fewest characters of a label that is folded

output = Console(highlight=False)
messages = Console(stderr=True, highlight=False)
"""Progress and remarks. Results go to standard output, so that they can be piped."""

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="replace")  # "?" for characters that the encoding lacks


def show(text: str) -> None:
    """Print a result as it is: nothing is wrapped or taken for markup."""
    output.print(text, soft_wrap=True, markup=False)


def show_json(value: object, indent: int | None = 2) -> None:
    """Print a result as JSON; None as indent writes one line."""
    print(json.dumps(value, indent=indent), flush=True)  # noqa: T201


def remark(text: str) -> None:
    """Print a remark on standard error, as it is."""
    messages.print(text, soft_wrap=True, markup=False)


def show_error(error: Exception) -> None:
    """Print an error in one line on standard error."""
    messages.print(f"[bold red]error:[/] {escape(printable(error))}", soft_wrap=True)


def printable(value: object) -> str:
    """Return text without control characters and characters that cannot be shown."""
    replaced = "\N{REPLACEMENT CHARACTER}"
    return "".join(c if c.isprintable() or c == "\n" else replaced for c in str(value))


def showing_progress() -> Progress:
    """Return a progress display on standard error, which a terminal shows."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=messages,
        disable=not messages.is_terminal,
        transient=True,
    )


def follow(
    progress: Progress, config: RunConfig, every_task: bool
) -> Callable[[Training, Event], None]:
    """Return an observer that shows the progress of one run, and a line for every task if asked."""
    from gradmix.runs.store import RunProgress
    from gradmix.training.loop import EpochDone, StepDone, TaskDone

    name = run_label(config)
    bar = progress.add_task(name, total=None, status="starting")
    shown = 0.0
    last_loss = ""

    def observe(training: Training, event: Event) -> None:
        nonlocal shown, last_loss
        if isinstance(event, StepDone):
            if time.monotonic() - shown < REFRESH_SECONDS:
                return
            shown = time.monotonic()
            at = RunProgress.after(training, event)
            where = f"{_where(at)} {last_loss}"
            progress.update(bar, total=1.0, completed=at.share, status=where)
        elif isinstance(event, EpochDone):
            last_loss = f"loss {event.loss:.3f}"
        elif isinstance(event, TaskDone):
            tasks, number = training.benchmark.tasks, event.task + 1
            if every_task:
                right = event.correct["main"][:number].sum(dim=1).tolist()
                sizes = [len(task.test.y) for task in tasks[:number]]
                shares = (n / size for n, size in zip(right, sizes, strict=True))
                accuracy = statistics.fmean(shares)  # every task counts the same, as in metrics
                drawn = event.replay_batch
                replayed = f" · {drawn} replayed per step" if drawn else ""
                progress.console.print(
                    f"{name} · task {number}/{len(tasks)} · accuracy {accuracy:.3f} · "
                    f"{last_loss} · memory {event.memory_size}{replayed}",
                    soft_wrap=True,
                )
            if number == len(tasks):
                progress.remove_task(bar)

    return observe


def photo_counter(progress: Progress) -> Callable[[int, int], None]:
    """Return a function that shows how many photos have been embedded: as a bar or as lines."""
    if not messages.is_terminal:
        from gradmix.classifier.report import Observer

        return Observer(remark).on_photo
    return photo_bar(progress, "computing features")


def photo_bar(progress: Progress, about: str) -> Callable[[int, int], None]:
    """Return a function that shows how many photos are done."""
    bar = progress.add_task(about, total=None, status="", visible=False)

    def show_photos(done: int, total: int) -> None:
        status = f"{done} of {total} photos"
        progress.update(bar, total=total, completed=done, status=status, visible=done < total)

    return show_photos


def run_label(config: RunConfig) -> str:
    """Return a run in one line."""
    return f"{config.data} {config.method} {config.mix} seed {config.seed}"


def _where(at: RunProgress) -> str:
    return f"task {at.task}/{at.tasks} epoch {at.epoch}/{at.epochs}"


class SweepDisplay(ExitStack):
    """Shows the progress of a sweep on standard error, and a line for every run."""

    def __init__(self) -> None:
        super().__init__()
        self.sweep: Sweep | None = None
        if messages.is_terminal:
            live = Live(
                get_renderable=self._picture, console=messages, transient=True, refresh_per_second=2
            )
            self.enter_context(live)

    def show(self, sweep: Sweep, outcome: Outcome | None) -> None:
        """Show the outcome of a run; None means that the sweep begins."""
        self.sweep = sweep
        if outcome is None:
            kept = sweep.count("kept")
            earlier = f", {kept} of them finished earlier" if kept else ""
            messages.print(f"{len(sweep.configs)} runs{earlier}; {sweep.todo} to do")
        elif outcome.status != "kept":
            if outcome.result is not None:
                accuracy = outcome.result.metrics["average_accuracy"]
                seconds = outcome.result.seconds["total"]
                became = f"average accuracy {accuracy:.3f} · {seconds:.1f} s"
            elif outcome.failure is not None:
                became = f"failed: {outcome.failure.error}: {outcome.failure.message}"
            else:
                became = f"skipped: {outcome.reason}"
            parts = (run_label(outcome.config), became, outcome.remark, _standing(sweep))
            remark(" · ".join(filter(None, parts)))

    def _picture(self) -> Group:
        """Return the bar, and the runs that are being computed."""
        sweep = self.sweep
        if sweep is None:
            return Group(Text("checking all runs …"))
        done, total = len(sweep.outcomes), max(len(sweep.configs), 1)
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(total=total, completed=done, width=24), _standing(sweep))
        lines = [
            Text(f"  {run_label(config)} · {'starting' if at is None else _where(at)}")
            for config, at in list(sweep.running().items())[:SHOWN_RUNNING]
        ]
        return Group(line, *lines)


def _standing(sweep: Sweep) -> str:
    """Return the number of runs done, running and failed, and the time left."""
    counts = {"running": len(sweep.running()), "failed": sweep.count("failed")}
    parts = [f"{sweep.count('done', 'kept')} of {len(sweep.configs)} done"]
    parts += [f"{number} {state}" for state, number in counts.items() if number]
    left = sweep.seconds_left()
    if left is not None and len(sweep.outcomes) < len(sweep.configs):
        parts.append(f"{timedelta(seconds=round(left))} left")
    return " · ".join(parts)


def show_results(table: TextTable) -> None:
    """Print a table of results with its caption, in parts if it is wider than the terminal."""
    whole = rich_table(table)
    fits = natural_width(whole) <= output.width
    for part in [whole] if fits else map(rich_table, table.split()):
        print_table(part)
    show(table.caption)


def print_table(table: Table) -> None:
    """Print a table; a narrow terminal folds labels but never numbers."""
    room = sum(max(0, _width(c) - FOLDED) for c in table.columns if c.overflow == "fold")
    natural = natural_width(table)
    if natural > output.width:
        table.width = max(output.width, natural - room)
    output.print(table, crop=False)


def natural_width(table: Table) -> int:
    """Return the width of the table with nothing folded."""
    return sum(map(_width, table.columns)) + 3 * len(table.columns) + 1


def _width(column: Column) -> int:
    texts = [str(column.header), *map(str, column.cells)]
    return max(cell_len(line) for text in texts for line in [*text.split("\n"), ""])


def rich_table(layout: TextTable) -> Table:
    """Return a table of results for the terminal."""
    titles = layout.titles
    if len(layout.columns) > 1 and any(layout.groups):
        titles = [f"{group}\n{column}" for group in layout.groups for column in layout.columns]
    heads = [Column(head, overflow="fold") for head in layout.heads]
    table = Table(*heads, *(Column(Text(printable(title)), no_wrap=True) for title in titles))
    for labels, cells in layout.rows:
        texts = [Text(cell.text, style="bold" if cell.bold else "") for cell in cells]
        table.add_row(*(Text(printable(label)) for label in labels), *texts)
    return table
