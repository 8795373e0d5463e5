"""The tables of the report, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import NamedTuple

from gradmix.paper.numbers import paper_accuracy
from gradmix.report.data import METRICS
from gradmix.report.rows import IDENTITY, Row, by_data, by_method
from gradmix.runs import measures, tables
from gradmix.runs.comparisons import Cell, compare
from gradmix.runs.groups import capability_note, differing, display, grouped, show_setting
from gradmix.runs.results import RunResult
from gradmix.runs.tables import Table, TableRow, TextCell, TextTable

MAIN_METRICS = METRICS[:3]

OTHER_ACCURACIES = measures.metrics(
    "average_task_aware_accuracy",
    "final_task_aware_accuracy",
    "anytime_accuracy",
    "stream_accuracy",
)
"""Accuracies of other ways to test, which older results and some scenarios lack."""

FORGETTING = measures.metrics(*METRICS[2:])

DIAGNOSTICS = measures.diagnostics(
    {
        "detrimental mixes, whole network": ("detrimental-rate", "whole_network"),
        "last layer": ("detrimental-rate", "last_layer"),
        "approximation error": ("approximation-error", "mean_of_samples"),
        "precision of the best pairs": ("precision-recall", "precision"),
        "recall": ("precision-recall", "recall"),
        "gradient distance within classes": ("class-distance", "within"),
        "between": ("class-distance", "between"),
    }
)


def results_table(rows: Sequence[Row], against: str | None = None) -> str:
    """Compare all rows with the paper, with no mixing or another row, and with controls."""
    lines: list[TableRow] = []
    styles: list[Style] = []
    for block in by_method(rows).values():
        title = f"{display(block[0].data)} · {display(block[0].method)}"
        for row in block:
            cell = compare(row, rows, against=against or "none")
            cell = cell._replace(reference=paper_accuracy(row.config))
            if against is None and cell.difference and not cell.difference.seeds:
                cell = cell._replace(difference=None)  # not every row has a run without mixing
            others = (Cell(row.metric(name)) for name in MAIN_METRICS[1:])
            seeds = str(len(row.seeds))
            lines.append(((row.name, seeds), (cell, *others)))
            kind = "best" if cell.best else ""
            styles.append(Style(row.colour, kind, title if row is block[0] else ""))
            for variant in row.variants():
                found = row.summaries(lambda run, name=variant: run.variants[name]["metrics"])  # type: ignore[misc]
                own = tuple(Cell(found.get(name)) for name in MAIN_METRICS)
                lines.append(((f"its {variant}", seeds), own))
                styles.append(Style(kind="variant"))
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
    return to_html(table.text(), styles)


def accuracy_by_task(result: RunResult) -> dict[str, float]:
    """Read the mean accuracy on the tasks seen, after each task."""
    return {f"task {task}": own for task, own in measures.accuracy_by_task(result).items()}


def cost(result: RunResult) -> dict[str, float]:
    """Read the time of the parts of a run, and how many pairs the criterion excludes."""
    return {**measures.seconds(result), **measures.negative_rate(result)}


def tables_of(title: str, rows: Sequence[Row], read: measures.Read, digits: int = 3) -> str:
    """Return one table for every data set, in an element that names it.

    Rows without any of the numbers are omitted; others may lack some.
    """
    parts = []
    for data, of_data in by_data(rows).items():
        found = [(row, numbers) for row in of_data if (numbers := row.summaries(read))]
        if not found:
            continue
        columns, lines = tables.rows_of((row.label, numbers) for row, numbers in found)
        table = Table(
            ("method and mix",),
            ("",),
            columns,
            lines,
            f"{title} · {display(data)}",
            digits,
            seeds_in_cells=False,
        )
        html = to_html(table.text(), [Style(row.colour) for row, _ in found])
        parts.append(f'<div data-of="{escape(data)}">{html}</div>')
    return "".join(parts)


# --- runs ---------------------------------------------------------------------------------------


def settings_list(results: Sequence[RunResult]) -> str:
    """Show the settings in which all runs agree."""
    others = (*IDENTITY, *differing(results, ()))
    settings = {name: value for name, value in results[0].config.items() if name not in others}
    entries = to_description_list((name, show_setting(value)) for name, value in settings.items())
    return f'<dl class="settings">{entries}</dl>'


def version_sets(results: Sequence[RunResult]) -> list[dict[str, str]]:
    """Return the distinct sets of versions in order of appearance."""
    sets = grouped(results, lambda result: tuple(sorted(result.versions.items())))
    return [same[0].versions for same in sets.values()]


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
    metrics = [name for name in MAIN_METRICS if any(name in r.metrics for r in results)]
    names = dict.fromkeys((*IDENTITY, *differing(results, ())))
    table = tables.runs_table(results, metrics, 4, tuple(names))
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


# --- HTML, where all text is escaped --------------------------------------------------------------


class Style(NamedTuple):
    """How a row looks."""

    colour: str = ""  # CSS colour of a mark before the label
    kind: str = ""  # CSS class
    block: str = ""  # title of the block of rows that it begins


def to_html(table: TextTable, styles: Sequence[Style] = ()) -> str:
    """Write a table in a box that scrolls by mouse and keyboard; its caption names the box."""
    columns = [*table.heads, *table.titles]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = ""
    for (labels, cells), (colour, kind, block) in zip(
        table.rows, styles or [Style()] * len(table.rows), strict=True
    ):
        if block:
            title = f'<th colspan="{len(columns)}" scope="rowgroup">{escape(block)}</th>'
            body += f'</tbody><tbody><tr class="block">{title}</tr>'
        mark = f'<i class="swatch" style="background: {escape(colour)}"></i>' if colour else ""
        first, *others = map(escape, labels)
        body += f'<tr{_css_class(kind)}><th scope="row">{mark}{first}</th>'
        body += "".join(f"<td>{label}</td>" for label in others)
        for cell in cells:
            kind = cell.kind or ("main" if cell.bold else "")
            body += f"<td{_css_class(kind)}>{escape(cell.text or '–')}</td>"
        body += "</tr>"
    caption = escape(table.caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    ).replace("<tbody></tbody>", "")


def _css_class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def to_description_list(entries: Iterable[tuple[str, str]]) -> str:
    """Write names and values as the content of a description list."""
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries
    )
