"""The tables of results, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gradmix.paper.numbers import PaperValue, paper_accuracy
from gradmix.paper.reproductions import mean_over_tasks
from gradmix.report.classes import Parts, class_accuracy
from gradmix.report.headline import METRIC, gain_over_plain
from gradmix.report.html import block, cell, format_spread, line, signed, table
from gradmix.report.rows import Row, Spread, by_data, by_method, spread
from gradmix.report.runs import METRICS, SECONDS
from gradmix.runs.names import display

DASH = cell("–", kind="none")
RESULTS = (
    "mix",
    "seeds",
    "average accuracy",
    "paper",
    "difference",
    "over no mixing",
    "final accuracy",
    "forgetting",
)


def results_table(rows: Sequence[Row]) -> str:
    """Ours against the paper, a block for every data set and method."""
    blocks = (_results_block(group) for group in by_method(rows).values())
    return table("Results, mean ± standard deviation over seeds", RESULTS, blocks)


def _results_block(rows: Sequence[Row]) -> str:
    best = max(row.metric(METRIC).mean for row in rows)
    lines = []
    for row in rows:
        first = len(rows) > 1 and row.metric(METRIC).mean == best
        lines.append(line(row.name, _results(row, rows), "best" if first else "", row.colour))
        lines += [line(f"its {name}", _of_variant(row, name), "variant") for name in row.variants()]
    title = f"{display(rows[0].data)} · {display(rows[0].method)}"
    return block(lines, title, len(RESULTS))


def _results(row: Row, rows: Sequence[Row]) -> Iterable[str]:
    ours = row.metric(METRIC)
    yield cell(str(len(row.seeds)), about=f"seeds {', '.join(map(str, row.seeds))}")
    yield cell(format_spread(ours), kind="main")
    yield from _against_paper(ours, paper_accuracy(row.config))
    yield _gain(gain_over_plain(row, rows))
    yield cell(format_spread(row.metric("final_accuracy")))
    yield cell(format_spread(row.metric("forgetting_from_best")))


def _of_variant(row: Row, variant: str) -> Iterable[str]:
    yield cell(str(len(row.seeds)))
    yield cell(format_spread(row.metric(METRIC, variant)), kind="main")
    yield from (DASH, DASH, DASH)
    yield cell(format_spread(row.metric("final_accuracy", variant)))
    yield cell(format_spread(row.metric("forgetting_from_best", variant)))


def _against_paper(ours: Spread, paper: PaperValue | None) -> tuple[str, str]:
    """The paper's number and the difference, coloured where it exceeds both deviations."""
    if paper is None:
        return DASH, DASH
    difference = ours.mean - paper.mean
    theirs = paper.std or 0.0
    if abs(difference) <= theirs + (theirs if ours.std is None else ours.std):
        kind, about = "same", "within both standard deviations"
    else:
        kind = "above" if difference > 0 else "below"
        about = f"{kind} the paper by more than both standard deviations"
    text = format_spread(Spread(paper.mean, paper.std))
    return cell(text, about=f"table {paper.table}"), cell(signed(difference), kind, about)


def _gain(gain: Spread | None) -> str:
    if gain is None:
        return DASH
    return cell(signed(gain.mean) + ("" if gain.std is None else f" ± {gain.std:.3f}"))


def accuracy_tables(rows: Sequence[Row]) -> str:
    """Accuracy after each task."""
    cells = [
        {
            f"task {task}": format_spread(value)
            for task, value in enumerate(row.after_each_task(), 1)
        }
        for row in rows
    ]
    return _per_data("Mean accuracy on the tasks seen, after each task", rows, cells)


def class_tables(rows: Sequence[Row], parts: Sequence[Parts]) -> str:
    """Accuracy on every class after the last task."""
    cells = [
        {
            name: format_spread(value, 2)
            for name, value in zip(part.names, class_accuracy(row, part)[-1], strict=True)
        }
        for row, part in zip(rows, parts, strict=True)
    ]
    return _per_data("Accuracy on every class after the last task", rows, cells)


def forgetting_tables(rows: Sequence[Row]) -> str:
    """Forgetting by both definitions, and transfer."""
    cells = [
        {name.replace("_", " "): format_spread(row.metric(name)) for name in METRICS[2:]}
        for row in rows
    ]
    return _per_data("Forgetting and transfer", rows, cells)


def cost_tables(rows: Sequence[Row]) -> str:
    """Where the time of a run goes."""
    cells = [
        {part: format_spread(row.seconds(part), 1) for part in SECONDS}
        | {
            "criterion, % of total": format_spread(row.criterion_share(), 2),
            "class pairs in S⁻": _negative_rate(row),
        }
        for row in rows
    ]
    return _per_data("Seconds per run", rows, cells)


MEASURED = {
    "detrimental mixes, whole network": ("detrimental-rate", "whole_network"),
    "last layer": ("detrimental-rate", "last_layer"),
    "approximation error": ("approximation-error", "mean_of_samples"),
    "precision of the best pairs": ("precision-recall", "precision"),
    "recall": ("precision-recall", "recall"),
    "gradient distance within classes": ("class-distance", "within"),
    "between": ("class-distance", "between"),
}
"""What the columns of `measured_tables` show: an analysis and its number."""


def measured_tables(rows: Sequence[Row]) -> str:
    """What runs measured besides accuracy; nothing if none did."""
    cells = {
        number: {
            title: format_spread(spread([mean_over_tasks(r.analysis[name], key) for r in results]))
            for title, (name, key) in MEASURED.items()
            if (results := [r for r in row.results if r.analysis.get(name)])
        }
        for number, row in enumerate(rows)
    }
    chosen = [number for number, own in cells.items() if own]
    return _per_data(
        "Measured along the runs", [rows[n] for n in chosen], [cells[n] for n in chosen]
    )


def _negative_rate(row: Row) -> str:
    """The share of class pairs that the criterion excluded, over the epochs with a pair table."""
    rates = [
        rate for result in row.results for stage in result.epochs for rate in stage["negative_rate"]
    ]
    known = [rate for rate in rates if rate is not None]
    return f"{sum(known) / len(known):.1%}" if known else "–"


def _per_data(caption: str, rows: Sequence[Row], cells: Sequence[dict[str, str]]) -> str:
    """A table for every data set, marked with its name, so that the page can show one of them.

    `cells` has the texts of each row by column; a row may lack columns that others have.
    """
    tables = []
    for data in by_data(rows):
        chosen = [(row, own) for row, own in zip(rows, cells, strict=True) if row.data == data]
        columns = list(dict.fromkeys(name for _, own in chosen for name in own))
        lines = (
            line(row.label, (cell(own.get(name, "–")) for name in columns), swatch=row.colour)
            for row, own in chosen
        )
        inner = table(f"{caption} · {display(data)}", ["method and mix", *columns], [block(lines)])
        tables.append(f'<div data-of="{escape(data)}">{inner}</div>')
    return "".join(tables)
