"""gradmix demo: compare GradMix with its controls, plain replay, Mixup and Remix."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.table import Column, Table

from gradmix.cli.run import results_table, run_all
from gradmix.cli.terminal import messages, output, print_table
from gradmix.errors import FileError

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult

MIXES = ("none", "mixup", "remix", "gradmix+")
SEEDS = (5, 6, 7, 8, 9)
"""The settings for the digits were chosen on seeds 0 to 4."""

REPORT = "gradmix-demo.html"
BARS = "▁▂▃▄▅▆▇█"


def demo() -> None:
    """Compare GradMix with plain replay, Mixup and Remix in under a minute."""
    configs = demo_configs()
    c = configs[0]
    output.print(
        f"Learning 1,797 handwritten digits two classes at a time, with {c.exemplars_per_class} "
        f"examples of each old class in memory.\nSettings: {c.model}, {c.epochs} epochs per task, "
        f"SGD lr {c.lr} momentum {c.momentum}, {c.batch_size} new + {c.replay_batch_size} replayed "
        "samples per step.\nThe settings were chosen on seeds 0 to 4; the demo uses seeds "
        f"{SEEDS[0]} to {SEEDS[-1]}.",
        soft_wrap=True,
    )
    results, finished = run_all(configs, store=None)
    rows = {
        "ER" if mix == "none" else f"ER + {mix}": [r for r in results if r.config["mix"] == mix]
        for mix in MIXES
    }
    rows = {label: found for label, found in rows.items() if found}
    if rows:
        print_table(results_table(rows))
        output.print(forgetting_chart(rows))
    if not finished:
        raise typer.Exit(130)
    _write_report(results)


def demo_configs() -> list[RunConfig]:
    """Return every mix with every seed, in the order of computation."""
    from gradmix.runs.config import config_for

    return [config_for("digits", mix=mix, seed=seed) for mix in MIXES for seed in SEEDS]


def _write_report(results: Sequence[RunResult]) -> None:
    """Write the report to the current folder, if that is writable."""
    from gradmix.report import write_report

    try:
        path = write_report(results, REPORT, title="gradmix demo")
    except FileError as error:
        messages.print(str(error), soft_wrap=True, markup=False)
    else:
        output.print(f"All results, with charts: {path}", soft_wrap=True, markup=False)


def forgetting_chart(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """Return the accuracy on the first task while later tasks are learned."""
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
