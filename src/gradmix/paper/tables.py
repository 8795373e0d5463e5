"""The paper's tables and figures, filled with our results beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradmix.paper.lines import Line, configs_of
from gradmix.paper.numbers import ACCURACY, paper_accuracy, paper_tables
from gradmix.paper.reproductions import Chart, Panel, Reproduction
from gradmix.runs.comparisons import Cell, gradients_add
from gradmix.runs.config import RunConfig, controls_of
from gradmix.runs.groups import Group, capability_note
from gradmix.runs.labels import display
from gradmix.runs.results import RunResult
from gradmix.runs.tables import Table, TableRow

MAX_COLUMNS = 4
"""More columns leave no room for standard deviations."""

Find = Callable[[RunConfig], RunResult | None]


@dataclass(frozen=True)
class FilledTable:
    """A table and the chart that shows it."""

    chart: Chart
    table: Table


class Found(NamedTuple):
    """The runs of a line, and its gradient-free controls that were run."""

    runs: Group
    controls: list[Group]


FoundRuns = Mapping[tuple[str, str], Found]
"""By the label of the line and the data set."""


def fill_tables(
    reproduction: Reproduction,
    data: Sequence[str],
    seeds: Sequence[int],
    find: Find,
    scale: str = "full",
) -> list[FilledTable]:
    """Fill a reproduction with the results that exist.

    Args:
        reproduction: A table or figure of the paper.
        data: Names of data sets.
        seeds: The seeds to include.
        find: Returns the result of a run, or None if it was not run.
        scale: `full` (the paper's) or `small`.

    Returns:
        One table for all panels with a single number, with a column for each data set, and one
        table per data set for every other panel. Rows and tables without results are omitted.
    """
    found: dict[tuple[str, str], Found] = {}
    for line in reproduction.lines:
        for name in data:
            configs = configs_of(line, name, seeds, scale)
            kinds = zip(*map(controls_of, configs), strict=True)
            for runs in _groups([configs], find):
                found[line.label, name] = Found(runs, _groups(kinds, find))
    single = [panel for panel in reproduction.panels if panel.chart == "table"]
    tables = [FilledTable("table", _numbers(reproduction, single, data, found))] if single else []
    tables += [
        FilledTable(panel.chart, _series(reproduction, panel, name, found))
        for panel in reproduction.panels
        if panel.chart != "table"
        for name in data
    ]
    return [filled for filled in tables if filled.table.rows]


def _groups(kinds: Iterable[Sequence[RunConfig]], find: Find) -> list[Group]:
    """Return a group for each kind of runs that has results."""
    found = (tuple(filter(None, map(find, configs))) for configs in kinds)
    return [Group({}, results) for results in found if results]


# --- a number for each run ----------------------------------------------------------------------


def _numbers(
    reproduction: Reproduction, panels: Sequence[Panel], data: Sequence[str], found: FoundRuns
) -> Table:
    """Return a row for every line and panel, with a column for each data set."""
    rows: list[TableRow] = []
    varied: list[str] = []
    for panel in panels:
        for line in reproduction.lines:
            label = line.label if len(panels) == 1 else f"{line.label}: {panel.title}"
            cells = tuple(
                _cell(reproduction.name, panel, line, name, found.get((line.label, name)))
                for name in data
            )
            if any(cell.value for cell in cells):
                rows.append(((label,), cells))
                varied.append(line.varied)
    title = panels[0].title if len(panels) == 1 else reproduction.name
    rows = _mark_best(rows, varied) if title == ACCURACY and len(rows) > 1 else rows
    note = capability_note(result for one in found.values() for result in one.runs.results)
    names = tuple(map(display, data))
    return Table(("",), names, ("",), tuple(rows), title, reproduction.digits, note=note)


def _cell(name: str, panel: Panel, line: Line, data: str, found: Found | None) -> Cell:
    """Return our number beside the paper's, and what gradients add to it."""
    if found is None:
        return Cell()
    paper, row = None, line.paper or panel.paper
    if row is not None:
        table = paper_tables()[name]
        paper = table.find(data, row)
        if paper is None and table.quantity == ACCURACY:  # another table may have it
            paper = paper_accuracy(found.runs.config)
    add = gradients_add(found.runs, found.controls) if panel.title == ACCURACY else None
    return Cell(found.runs.summaries(panel.read)[""], paper, gradients=add)


def _mark_best(rows: Sequence[TableRow], varied: Sequence[str]) -> list[TableRow]:
    """Mark the highest mean of each column among rows that vary the same setting."""
    best: dict[tuple[int, str], float] = {}
    for (_, cells), own in zip(rows, varied, strict=True):
        for key, cell in (((place, own), cell) for place, cell in enumerate(cells) if cell.value):
            best[key] = max(best.get(key, cell.value.mean), cell.value.mean)
    return [
        (
            labels,
            tuple(
                cell._replace(best=cell.value is not None and cell.value.mean == best[place, own])
                for place, cell in enumerate(cells)
            ),
        )
        for (labels, cells), own in zip(rows, varied, strict=True)
    ]


# --- several numbers for each run ---------------------------------------------------------------


def _series(reproduction: Reproduction, panel: Panel, data: str, found: FoundRuns) -> Table:
    """Return a row for every line; for pairs of classes, a square."""
    values = {
        line.label: found[line.label, data].runs.summaries(panel.read)
        for line in reproduction.lines
        if (line.label, data) in found
    }
    if panel.chart == "heatmap":
        pairs = [(*pair.split(" → "), own) for one in values.values() for pair, own in one.items()]
        values = {row: {b: own for a, b, own in pairs if a == row} for row, _, _ in pairs}
    names = tuple(dict.fromkeys(name for one in values.values() for name in one))
    rows = tuple(
        ((label,), tuple(Cell(one.get(name)) for name in names)) for label, one in values.items()
    )
    title = f"{display(data)}: {panel.title}"
    return Table((panel.across,), names, ("",), rows, title, reproduction.digits)


def printable(filled: FilledTable) -> Table:
    """Return the table in a shape that fits a page.

    Long series run downwards. Wide tables omit the standard deviations.
    """
    table = filled.table
    if filled.chart in ("lines", "bars") and len(table.groups) > max(4, len(table.rows)):
        columns = zip(*(cells for _, cells in table.rows), strict=True)
        rows = tuple(((name,), cells) for name, cells in zip(table.groups, columns, strict=True))
        table = replace(table, groups=tuple(label for (label,), _ in table.rows), rows=rows)
    if len(table.groups) <= MAX_COLUMNS:
        return table
    return replace(table, rows=tuple((ls, tuple(map(_without_std, cs))) for ls, cs in table.rows))


def _without_std(cell: Cell) -> Cell:
    return cell if cell.value is None else cell._replace(value=cell.value._replace(std=None))
