"""The paper's tables and figures, filled with our results beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradmix.paper.numbers import ACCURACY, paper_accuracy, paper_tables
from gradmix.paper.reproductions import Chart, Line, Panel, Reproduction, configs_of
from gradmix.runs.config import RunConfig, controls_of
from gradmix.runs.groups import Group, capability_note, gradients_add
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Summary, summarize
from gradmix.runs.tables import Cell, Table, TableRow, display

MAX_COLUMNS = 4
"""More columns leave no room for standard deviations."""

Find = Callable[[RunConfig], RunResult | None]
Found = Mapping[tuple[str, str], Group]


@dataclass(frozen=True)
class FilledTable:
    """A table and the chart that shows it."""

    chart: Chart
    table: Table


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
    runs = {
        (line.label, name): configs_of(line, name, seeds, scale)
        for line in reproduction.lines
        for name in data
    }
    found = {key: group for key, configs in runs.items() if (group := _find_group(configs, find))}
    single = [panel for panel in reproduction.panels if panel.chart == "table"]
    tables = []
    if single:
        controls = {key: _find_controls(runs[key], find) for key in found}
        table = _single_numbers(reproduction, single, data, found, controls)
        tables.append(FilledTable("table", table))
    for panel in reproduction.panels:
        if panel.chart != "table":
            tables += [
                FilledTable(panel.chart, _series(reproduction, panel, name, found)) for name in data
            ]
    return [filled for filled in tables if filled.table.rows]


def _find_group(configs: Sequence[RunConfig], find: Find) -> Group | None:
    results = tuple(result for config in configs if (result := find(config)))
    return Group({}, results) if results else None


def _find_controls(configs: Sequence[RunConfig], find: Find) -> list[Group]:
    """Return the gradient-free controls that were run, one group for each kind of partners."""
    kinds = zip(*map(controls_of, configs), strict=True)
    return [group for controls in kinds if (group := _find_group(controls, find))]


# --- a number for each run ----------------------------------------------------------------------


def _single_numbers(
    reproduction: Reproduction,
    panels: Sequence[Panel],
    data: Sequence[str],
    found: Found,
    controls: Mapping[tuple[str, str], Sequence[Group]],
) -> Table:
    rows: list[TableRow] = []
    for panel in panels:
        for line in reproduction.lines:
            label = line.label if len(panels) == 1 else f"{line.label}: {panel.title}"
            cells = tuple(
                _cell(reproduction.name, panel, line, name, group, controls[line.label, name])
                if (group := found.get((line.label, name)))
                else Cell()
                for name in data
            )
            if any(cell.value for cell in cells):
                rows.append(((label,), cells))
    title = panels[0].title if len(panels) == 1 else reproduction.name
    rows = _mark_best(rows) if title == ACCURACY and len(rows) > 1 else rows
    note = capability_note(result for group in found.values() for result in group.results)
    names = tuple(map(display, data))
    return Table(("",), names, ("",), tuple(rows), title, reproduction.digits, note=note)


def _cell(
    name: str, panel: Panel, line: Line, data: str, group: Group, controls: Sequence[Group]
) -> Cell:
    """Return our number beside the paper's, and what gradients add to it."""
    paper, row = None, line.paper or panel.paper
    if row is not None:
        table = paper_tables()[name]
        paper = table.find(data, row)
        if paper is None and table.quantity == ACCURACY:  # another table may have it
            paper = paper_accuracy(group.config)
    value = summarize([panel.read(result)[""] for result in group.results])
    add = gradients_add(group, controls) if panel.title == ACCURACY else None
    return Cell(value, None if paper is None else Summary(paper.mean, paper.std), gradients=add)


def _mark_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the highest mean of each column among rows that vary the same setting."""
    best: dict[tuple[int, str], float] = {}
    for (label,), cells in rows:
        for place, cell in enumerate(cells):
            if cell.value is not None:
                key = place, _varied(label)
                best[key] = max(best.get(key, cell.value.mean), cell.value.mean)

    def mark(cell: Cell, place: int, label: str) -> Cell:
        highest = best.get((place, _varied(label)))
        return cell._replace(best=cell.value is not None and cell.value.mean == highest)

    return [
        ((label,), tuple(mark(cell, place, label) for place, cell in enumerate(cells)))
        for (label,), cells in rows
    ]


def _varied(label: str) -> str:
    """Return the varied setting in a label: `N=16` of `ER, N=16`."""
    return label.partition(", ")[2]


# --- several numbers for each run ---------------------------------------------------------------


def _series(reproduction: Reproduction, panel: Panel, data: str, found: Found) -> Table:
    """Return a row for every line; for pairs of classes, a square."""
    values: dict[str, list[Mapping[str, float]]] = {
        line.label: [panel.read(result) for result in group.results]
        for line in reproduction.lines
        if (group := found.get((line.label, data)))
    }
    names = tuple(dict.fromkeys(name for taken in values.values() for one in taken for name in one))
    if panel.chart == "heatmap" and values:
        (taken,) = values.values()
        names = tuple(dict.fromkeys(name.split(" → ")[0] for name in names))
        values = {
            own: [{other: one[f"{own} → {other}"] for other in names} for one in taken]
            for own in names
        }
    rows = tuple(
        ((label,), tuple(Cell(summarize([one[name] for one in taken])) for name in names))
        for label, taken in values.items()
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
