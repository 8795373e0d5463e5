"""gradmix demo: learn photos; compare GradMix with its controls, plain replay, Mixup and Remix."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.table import Column, Table

from gradmix.cli._photo_demo import demo_photos
from gradmix.cli.run import results_table, run_all
from gradmix.cli.terminal import output, print_table, remark, show
from gradmix.errors import FileError
from gradmix.settings import PRESETS, short_name

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult

MIXES = ("none", "mixup", "remix", "balanced-remix", "gradmix+")
SEEDS = (5, 6, 7, 8, 9)
"""The settings for the digits were chosen on seeds 0 to 4."""

REPORT = "gradmix-demo.html"
BARS = "▁▂▃▄▅▆▇█"


def demo() -> None:
    """Learn photos, then compare GradMix with other mixes on digits; takes about a minute."""
    demo_photos()
    compare_mixes()


def compare_mixes() -> None:
    """Learn digits with plain replay and several mixes; print a table."""
    show_settings()
    every = [config for row in demo_configs().values() for config in row]
    results, finished = run_all(every, store=None)
    show_comparison(results)
    if not finished:
        raise typer.Exit(130)
    _write_report(results)


def show_settings() -> None:
    """Print what is learned, and with which settings."""
    settings = (f"{short_name(name)} {value}" for name, value in PRESETS["digits"].items())
    output.print(
        "Learning 1,797 handwritten digits two classes at a time, with a small memory of old "
        f"classes.\nSettings: {', '.join(settings)}.\nThe settings were chosen on seeds 0 to 4; "
        f"the demo uses seeds {SEEDS[0]} to {SEEDS[-1]}.",
        soft_wrap=True,
    )


def show_comparison(results: Sequence[RunResult]) -> None:
    """Print accuracy, forgetting and what gradients add.

    Args:
        results: Results in the order of `demo_configs`; fewer if the demo was stopped.
    """
    labels = [label for label, row in demo_configs().items() for _ in row]
    rows: dict[str, list[RunResult]] = {}
    for label, result in zip(labels, results, strict=False):
        rows.setdefault(label, []).append(result)
    if rows:
        table = results_table(rows)
        table.columns.pop()  # seconds: the demo compares accuracy
        print_table(table)
        output.print(forgetting_chart(rows))
    if len(results) == len(labels):
        output.print(_what_gradients_add(results), soft_wrap=True)


def demo_configs() -> dict[str, list[RunConfig]]:
    """Return the runs of every row, in the order of computation."""
    from gradmix.runs.config import config_for

    return {
        "ER" if mix == "none" else f"ER + {mix}": [
            config_for("digits", mix=mix, seed=seed) for seed in SEEDS
        ]
        for mix in MIXES
    }


def _what_gradients_add(results: Sequence[RunResult]) -> str:
    from gradmix.runs.comparisons import gradients_add
    from gradmix.runs.groups import group_results

    groups = group_results(results)
    added = next(filter(None, (gradients_add(group, groups) for group in groups)))
    return (
        f"What gradients add: {added.interval()}, gradmix+ minus its best gradient-free control\n"
        f"({added.base}); paired difference with its 95% interval."
    )


def _write_report(results: Sequence[RunResult]) -> None:
    """Write the report to the current folder, if that is writable."""
    from gradmix.report import write_report

    try:
        path = write_report(results, REPORT, title="gradmix demo")
    except FileError as error:
        remark(str(error))
    else:
        show(f"All results, with charts: {path}")


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
