"""The tables of the report, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from gradmix.paper.measures import mean_over_tasks
from gradmix.paper.numbers import paper_accuracy
from gradmix.report.data import METRICS, SECONDS, ClassAxis, class_accuracy
from gradmix.report.html import to_description_list, to_html
from gradmix.report.rows import IDENTITY, Row, by_data, by_method
from gradmix.runs import comparisons
from gradmix.runs.groups import (
    capability_note,
    compare_groups,
    differing,
    find_base,
    gradients_add,
)
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Difference, Summary
from gradmix.runs.tables import (
    Cell,
    Table,
    TableRow,
    TextCell,
    TextTable,
    display,
    show_setting,
)

MEASURED = {
    "detrimental mixes, whole network": ("detrimental-rate", "whole_network"),
    "last layer": ("detrimental-rate", "last_layer"),
    "approximation error": ("approximation-error", "mean_of_samples"),
    "precision of the best pairs": ("precision-recall", "precision"),
    "recall": ("precision-recall", "recall"),
    "gradient distance within classes": ("class-distance", "within"),
    "between": ("class-distance", "between"),
}
"""Columns of `measured_tables`: a diagnostic and its number."""


def results_table(rows: Sequence[Row], against: str | None = None) -> str:
    """Compare all rows with the paper, with no mixing or another row, and with controls."""
    lines: list[TableRow] = []
    colours, kinds, blocks = [], [], {}
    for group in by_method(rows).values():
        blocks[len(lines)] = f"{display(group[0].data)} · {display(group[0].method)}"
        means = [summary.mean for row in group if (summary := row.metric(METRICS[0]))]
        for row in group:
            own = row.metric(METRICS[0])
            best = len(group) > 1 and own is not None and own.mean == max(means)
            entries = [((row.name, str(len(row.seeds))), _results(row, rows, best, against))]
            for variant in row.variants():
                cells = tuple(Cell(row.variant(variant, name)) for name in METRICS[:3])
                entries.append(((f"its {variant}", str(len(row.seeds))), cells))
            lines += entries
            colours += [row.colour, *[""] * len(row.variants())]
            kinds += ["best" if best else "", *["variant"] * len(row.variants())]
    table = Table(
        ("mix", "seeds"),
        ("",),
        ("average accuracy", "final accuracy", "forgetting"),
        tuple(lines),
        "results",
        against="over no mixing" if against is None else f"Δ {against}",
        note=capability_note(result for row in rows for result in row.results),
        seeds_in_cells=False,
    )
    return to_html(table.text(), colours=colours, kinds=kinds, blocks=blocks)


def _results(row: Row, rows: Sequence[Row], best: bool, against: str | None) -> tuple[Cell, ...]:
    paper = paper_accuracy(row.config)
    first = Cell(
        row.metric(METRICS[0]),
        None if paper is None else Summary(paper.mean, paper.std),
        gain(row, rows, against or "none"),
        gradients_add(row, rows),
        best,
    )
    return first, *(Cell(row.metric(name)) for name in METRICS[1:3])


def gain(row: Row, rows: Sequence[Row], against: str = "none") -> Difference | None:
    """Return the paired difference to the row that `find_base` finds; None if not run."""
    base = find_base(row, rows, against)
    return None if base is None or base is row else compare_groups(row, base)


def accuracy_tables(rows: Sequence[Row]) -> str:
    """Show the accuracy after each task."""
    cells = [
        {f"task {task}": value for task, value in enumerate(row.after_each_task(), 1)}
        for row in rows
    ]
    return _per_data("Mean accuracy on the tasks seen, after each task", rows, cells)


OTHER_ACCURACIES = (
    "average_task_aware_accuracy",
    "final_task_aware_accuracy",
    "anytime_accuracy",
    "stream_accuracy",
)
"""Accuracies of other ways to test, which older results and some scenarios lack."""


def other_accuracy_tables(rows: Sequence[Row]) -> str:
    """Show task-aware accuracy, anytime accuracy and accuracy over the stream; empty if none."""
    cells = [
        {name.replace("_", " "): own for name in OTHER_ACCURACIES if (own := row.metric(name))}
        for row in rows
    ]
    there = [number for number, own in enumerate(cells) if own]
    return _per_data(
        "Accuracy with the outputs of the task only, during training, and before learning",
        [rows[number] for number in there],
        [cells[number] for number in there],
    )


def class_tables(rows: Sequence[Row], axes: Sequence[ClassAxis]) -> str:
    """Show the accuracy on every class after the last task."""
    cells = [
        dict(zip(axis.names, class_accuracy(row, axis)[-1], strict=True))
        for row, axis in zip(rows, axes, strict=True)
    ]
    return _per_data("Accuracy on every class after the last task", rows, cells, 2)


def forgetting_tables(rows: Sequence[Row]) -> str:
    """Show forgetting by both definitions, and transfer."""
    cells = [{name.replace("_", " "): row.metric(name) for name in METRICS[2:]} for row in rows]
    return _per_data("Forgetting and transfer", rows, cells)


def cost_tables(rows: Sequence[Row]) -> str:
    """Show the time of the parts of a run."""
    cells = [
        {part: row.seconds(part) for part in SECONDS}
        | {
            "criterion, % of total": row.criterion_share(),
            "% of class pairs in S⁻": row.summary(_negative_rate),
        }
        for row in rows
    ]
    return _per_data("Seconds per run", rows, cells, 1)


def _negative_rate(result: RunResult) -> float | None:
    """Return the percentage of class pairs in S⁻, over all epochs with a pair table."""
    rates = [rate for stage in result.epochs for rate in stage.get("negative_rate", ())]
    known = [rate for rate in rates if rate is not None]
    return 100 * sum(known) / len(known) if known else None


def measured_tables(rows: Sequence[Row]) -> str:
    """Show the diagnostics that runs measured; empty if none did."""
    cells = [
        {
            title: value
            for title, (name, key) in MEASURED.items()
            if (value := row.summary(lambda r, name=name, key=key: _diagnostic(r, name, key)))  # type: ignore[misc]
        }
        for row in rows
    ]
    chosen = [(row, own) for row, own in zip(rows, cells, strict=True) if own]
    return _per_data("Diagnostics", [row for row, _ in chosen], [own for _, own in chosen])


def _diagnostic(result: RunResult, name: str, key: str) -> float | None:
    entries = [entry for entry in result.analysis.get(name, ()) if key in entry]
    return mean_over_tasks(entries, key) if entries else None


def _per_data(
    title: str,
    rows: Sequence[Row],
    cells: Sequence[dict[str, Summary | None] | dict[str, Summary]],
    digits: int = 3,
) -> str:
    """Return one table for every data set, in an element that names it.

    `cells` has the values of each row by column. Rows may lack columns.
    """
    found = []
    for data, own in by_data(rows).items():
        values = [c for row, c in zip(rows, cells, strict=True) if row.data == data]
        columns = tuple(dict.fromkeys(name for one in values for name in one))
        lines = tuple(
            ((row.label,), tuple(_text(one.get(name), digits) for name in columns))
            for row, one in zip(own, values, strict=True)
        )
        caption = f"{title} · {display(data)}"
        table = TextTable(("method and mix",), ("",), columns, lines, caption)
        html = to_html(table, colours=[row.colour for row in own])
        found.append(f'<div data-of="{escape(data)}">{html}</div>')
    return "".join(found)


def _text(value: Summary | None, digits: int) -> TextCell:
    return TextCell("–" if value is None else value.text(digits))


# --- runs ---------------------------------------------------------------------------------------


def common_settings(results: Sequence[RunResult]) -> dict[str, object]:
    """Return the settings in which all runs agree."""
    others = (*IDENTITY, *differing(results, ()))
    return {name: value for name, value in results[0].config.items() if name not in others}


def settings_list(results: Sequence[RunResult]) -> str:
    """Show the settings in which all runs agree."""
    settings = common_settings(results).items()
    entries = to_description_list((name, show_setting(value)) for name, value in settings)
    return f'<dl class="settings">{entries}</dl>'


def differing_settings(results: Sequence[RunResult]) -> list[str]:
    """Return the names of all other settings; the ones that name a run come first."""
    common = common_settings(results)
    names = dict.fromkeys((*IDENTITY, *(name for result in results for name in result.config)))
    return [name for name in names if name not in common]


def version_sets(results: Sequence[RunResult]) -> list[dict[str, str]]:
    """Return the distinct sets of versions in order of appearance."""
    found: list[dict[str, str]] = []
    for result in results:
        if result.versions not in found:
            found.append(result.versions)
    return found


def versions_table(results: Sequence[RunResult]) -> str:
    """Show every set of versions under its letter."""
    sets = version_sets(results)
    names = tuple(dict.fromkeys(name for versions in sets for name in versions))
    rows = tuple(
        ((letter(place),), tuple(TextCell(versions.get(name, "–")) for name in names))
        for place, versions in enumerate(sets)
    )
    return to_html(TextTable(("set",), ("",), names, rows, "Sets of versions"))


def runs_table(results: Sequence[RunResult]) -> str:
    """Show every run: differing settings, main metrics, time and its set of versions."""
    metrics = [name for name in METRICS[:3] if any(name in r.metrics for r in results)]
    table = comparisons.runs_table(results, metrics, 4, differing_settings(results))
    sets = version_sets(results)
    rows = tuple(
        (labels, (*cells, TextCell(letter(sets.index(result.versions)))))
        for (labels, cells), result in zip(table.rows, results, strict=True)
    )
    caption = "Every run; the sets of versions are below"
    columns = (*table.columns, "versions")
    return to_html(replace(table, columns=columns, rows=rows, caption=caption))


def letter(place: int) -> str:
    """Return a short name for a set.

    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'A1')
    """
    turn, rest = divmod(place, 26)
    return chr(ord("A") + rest) + (str(turn) if turn else "")
