"""The paper's tables and figures, filled with our results beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gradmix.paper.numbers import ACCURACY, Setting, paper_accuracy, paper_tables
from gradmix.paper.reproductions import Panel, Reproduction, configs_of
from gradmix.runs.comparisons import Cell, compare
from gradmix.runs.config import RunConfig, controls_of
from gradmix.runs.groups import Group, capability_note, display
from gradmix.runs.measures import Summary
from gradmix.runs.results import RunResult
from gradmix.runs.tables import Table, TableRow, rows_of

MAX_COLUMNS = 4
"""More columns leave no room for standard deviations."""

Find = Callable[[RunConfig], RunResult | None]
"""Returns the result of a run; None if it was not run."""

Found = Mapping[tuple[str, str], Group]
"""The runs by the label of their line and the data set."""


def fill_tables(
    reproduction: Reproduction, data: Sequence[str], seeds: Sequence[int], find: Find
) -> list[Table]:
    """Fill a reproduction with the results that exist.

    Returns:
        One table for all panels with a single number, with a column for each data set, and one
        table per data set for every other panel. Rows and tables without results are omitted.
    """
    found: dict[tuple[str, str], Group] = {}
    controls: list[Group] = []
    for line in reproduction.lines:
        for name in data:
            key = {"data": name, "method": line.settings["method"], "varied": line.varied}
            key["mix"] = line.label
            configs = configs_of(line, name, seeds, reproduction.scale)
            for group in _find_groups(key, [configs], find):
                found[line.label, name] = group
            controls += _find_groups({}, zip(*map(controls_of, configs), strict=True), find)
    single = [panel for panel in reproduction.panels if panel.chart == "table"]
    tables = [_numbers(reproduction, single, data, found, controls)] if single else []
    tables += [
        _series(reproduction, panel, name, found)
        for panel in reproduction.panels
        if panel.chart != "table"
        for name in data
    ]
    return [table for table in tables if table.rows]


def _find_groups(
    key: dict[str, str], kinds: Iterable[Sequence[RunConfig]], find: Find
) -> list[Group]:
    """Return a group for each kind of runs that has results."""
    found = (tuple(filter(None, map(find, configs))) for configs in kinds)
    return [Group(key, results) for results in found if results]


# --- a number for each run ----------------------------------------------------------------------


def _numbers(
    reproduction: Reproduction,
    panels: Sequence[Panel],
    data: Sequence[str],
    found: Found,
    controls: Sequence[Group],
) -> Table:
    """Return a row for every line and panel, with a column for each data set.

    The best accuracy is marked among the lines of a method that vary the same settings.
    """
    rows: list[TableRow] = []
    for panel in panels:
        for line in reproduction.lines:
            label = line.label if len(panels) == 1 else f"{line.label}: {panel.title}"
            cells = []
            for name in data:
                group = found.get((line.label, name))
                if group is None:
                    cells.append(Cell())
                    continue
                if panel.title == ACCURACY:
                    cell = compare(group, [*found.values(), *controls])
                else:
                    cell = Cell(next(iter(group.summaries(panel.read).values()), None))
                paper = _paper_number(reproduction.name, line.paper or panel.paper, group)
                cells.append(cell._replace(reference=paper))
            if any(cell.value for cell in cells):
                rows.append(((label,), tuple(cells)))
    title = panels[0].title if len(panels) == 1 else reproduction.name
    note = capability_note(result for group in found.values() for result in group.results)
    names = tuple(map(display, data))
    return Table(("",), names, ("",), tuple(rows), title, reproduction.digits, note=note)


def _paper_number(name: str, row: Setting | None, group: Group) -> Summary | None:
    """Return the number in a row of the paper's table; an accuracy may be in another table."""
    if row is None:
        return None
    table = paper_tables()[name]
    paper = table.find(group.config["data"], row)
    return paper_accuracy(group.config) if not paper and table.quantity == ACCURACY else paper


# --- several numbers for each run ---------------------------------------------------------------


def _series(reproduction: Reproduction, panel: Panel, data: str, found: Found) -> Table:
    """Return a row for every line; for pairs of classes, a square."""
    values = {
        line.label: numbers
        for line in reproduction.lines
        if (group := found.get((line.label, data))) and (numbers := group.summaries(panel.read))
    }
    if panel.chart == "heatmap":
        square: dict[str, dict[str, Summary]] = {}
        for pair, own in (item for one in values.values() for item in one.items()):
            row, _, column = pair.partition(" → ")
            square.setdefault(row, {})[column] = own
        values = square
    names, rows = rows_of(values.items())
    title = f"{display(data)}: {panel.title}"
    heads, digits = (panel.across,), reproduction.digits
    return Table(heads, names, ("",), rows, title, digits, chart=panel.chart)


def printable(table: Table) -> Table:
    """Return the table in a shape that fits a page.

    Long series run downwards. Wide tables omit the standard deviations.
    """
    if table.chart in ("lines", "bars") and len(table.groups) > max(4, len(table.rows)):
        columns = zip(*(cells for _, cells in table.rows), strict=True)
        rows = tuple(((name,), cells) for name, cells in zip(table.groups, columns, strict=True))
        table = replace(table, groups=tuple(label for (label,), _ in table.rows), rows=rows)
    if len(table.groups) <= MAX_COLUMNS:
        return table
    return replace(table, rows=tuple((ls, tuple(map(_without_std, cs))) for ls, cs in table.rows))


def _without_std(cell: Cell) -> Cell:
    return cell if cell.value is None else cell._replace(value=cell.value._replace(std=None))
