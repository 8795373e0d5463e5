"""Tables and figures of the paper filled in: ours, theirs, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradmix.paper.numbers import ACCURACY, PaperValue, paper_accuracy, paper_tables
from gradmix.paper.reproductions import Form, Line, Panel, Reproduction, configs_of
from gradmix.runs import formats
from gradmix.runs.config import RunConfig
from gradmix.runs.formats import Table, over_seeds, spread
from gradmix.runs.names import display
from gradmix.runs.results import RunResult
from gradmix.runs.tables import mean_std

MOST_COLUMNS = 4
"""With standard deviations."""

Find = Callable[[RunConfig], RunResult | None]
Found = Mapping[tuple[str, str], Sequence[RunResult]]


@dataclass(frozen=True)
class Cell:
    """What the seeds gave, and the paper's number if it has one."""

    values: tuple[float, ...]
    paper: PaperValue | None = None

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean_std(self.values)[0]

    @property
    def std(self) -> float | None:
        """Of the sample of seeds; None with one."""
        return mean_std(self.values)[1]

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper.mean


@dataclass(frozen=True)
class Sheet:
    """Numbers by row and column; None where nothing was run."""

    title: str
    form: Form
    corner: str  # what the columns are, where that needs a word
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    digits: int = 3

    @property
    def seeds(self) -> set[int]:
        """How many seeds are behind the cells."""
        return {len(cell.values) for row in self.cells for cell in row if cell is not None}


def fill(
    reproduction: Reproduction,
    data: Sequence[str],
    seeds: Sequence[int],
    find: Find,
    scale: str = "full",
) -> list[Sheet]:
    """What the runs there are show; `find` gives the result of a run, if there is one.

    Panels of a single number come in one sheet with a column for each data set, the others in a
    sheet for each. Rows and sheets without any result are left out.
    """
    found = {
        (line.label, name): [r for c in configs_of(line, name, seeds, scale) if (r := find(c))]
        for line in reproduction.lines
        for name in data
    }
    single = [panel for panel in reproduction.panels if panel.form == "table"]
    sheets = [_table(reproduction, single, data, found)] if single else []
    for panel in reproduction.panels:
        if panel.form != "table":
            sheets += [_series(reproduction, panel, name, found) for name in data]
    return [_without_empty_rows(sheet) for sheet in sheets if sheet.seeds]


def _without_empty_rows(sheet: Sheet) -> Sheet:
    kept = [number for number, row in enumerate(sheet.cells) if any(row)]
    return replace(
        sheet,
        rows=tuple(sheet.rows[number] for number in kept),
        cells=tuple(sheet.cells[number] for number in kept),
    )


def _table(
    reproduction: Reproduction, panels: Sequence[Panel], data: Sequence[str], found: Found
) -> Sheet:
    """Lines, once for every panel, by data set."""
    rows, cells = [], []
    for panel in panels:
        for line in reproduction.lines:
            rows.append(line.label if len(panels) == 1 else f"{line.label}: {panel.title}")
            cells.append(tuple(_cell(reproduction, panel, line, name, found) for name in data))
    title = panels[0].title if len(panels) == 1 else reproduction.name
    digits = reproduction.digits
    columns = tuple(display(name) for name in data)
    return Sheet(title, "table", "", tuple(rows), columns, tuple(cells), digits)


def _cell(
    reproduction: Reproduction, panel: Panel, line: Line, data: str, found: Found
) -> Cell | None:
    results = found[line.label, data]
    if not results:
        return None
    paper, row = None, line.paper or panel.paper
    if row is not None:
        table = paper_tables()[reproduction.name]
        paper = table.find(data, row)
        if paper is None and table.quantity == ACCURACY:  # in another table of the paper
            paper = paper_accuracy(results[0].config)
    return Cell(tuple(panel.read(result)[""] for result in results), paper)


def _series(reproduction: Reproduction, panel: Panel, data: str, found: Found) -> Sheet:
    """Lines by what the panel has several of; pairs as a square."""
    title, digits = f"{display(data)}: {panel.title}", reproduction.digits
    values = {
        line.label: [panel.read(result) for result in found[line.label, data]]
        for line in reproduction.lines
    }
    names = tuple(dict.fromkeys(name for taken in values.values() for one in taken for name in one))
    if panel.form == "heatmap":
        (taken,) = values.values()
        classes = tuple(dict.fromkeys(name.split(" → ")[0] for name in names))
        square = tuple(
            tuple(Cell(tuple(one[f"{own} → {other}"] for one in taken)) for other in classes)
            for own in classes
        )
        return Sheet(title, panel.form, panel.across, classes, classes, square, digits)
    cells = tuple(
        tuple(Cell(tuple(one[name] for one in taken)) if taken else None for name in names)
        for taken in values.values()
    )
    return Sheet(title, panel.form, panel.across, tuple(values), names, cells, digits)


# --- as people print them -----------------------------------------------------------------------


def printed(sheet: Sheet) -> Table:
    """A table with mean ± standard deviation; beside it the paper's and the difference.

    Long series run downwards, and where there is no room for it the deviation is left out.
    """
    if sheet.form in ("lines", "bars") and len(sheet.columns) > max(4, len(sheet.rows)):
        cells = tuple(zip(*sheet.cells, strict=True))
        sheet = replace(sheet, rows=sheet.columns, columns=sheet.rows, cells=cells)
    with_paper = any(cell and cell.paper for row in sheet.cells for cell in row)
    best = _best(sheet) if sheet.title == ACCURACY and len(sheet.rows) > 1 else set()
    rows = []
    for label, row in zip(sheet.rows, sheet.cells, strict=True):
        texts: list[formats.Cell] = []
        for column, cell in zip(sheet.columns, row, strict=True):
            ours = "–" if cell is None else _ours(cell, sheet)
            texts.append(formats.Cell(ours, (label, column) in best))
            if with_paper:
                texts += _theirs(cell, sheet.digits)
        rows.append(((label,), tuple(texts)))
    columns = ("ours", "paper", "difference") if with_paper else ("",)
    return Table((sheet.corner,), sheet.columns, columns, tuple(rows), _caption(sheet, bool(best)))


def _with_std(sheet: Sheet) -> bool:
    return len(sheet.columns) <= MOST_COLUMNS and sheet.seeds != {1}


def _ours(cell: Cell, sheet: Sheet) -> str:
    text = spread(cell.mean, cell.std if _with_std(sheet) else None, sheet.digits)
    return f"{text} ({len(cell.values)})" if len(sheet.seeds) > 1 else text


def _theirs(cell: Cell | None, digits: int) -> list[formats.Cell]:
    if cell is None or cell.paper is None or cell.difference is None:
        return [formats.Cell("–"), formats.Cell("")]
    paper = spread(cell.paper.mean, cell.paper.std, digits)
    return [formats.Cell(paper), formats.Cell(spread(cell.difference, None, digits, "+"))]


def _best(sheet: Sheet) -> set[tuple[str, str]]:
    """The rows with the highest mean in each column, among those with the same setting varied."""
    means: dict[tuple[str, str], dict[str, float]] = {}
    for label, row in zip(sheet.rows, sheet.cells, strict=True):
        for column, cell in zip(sheet.columns, row, strict=True):
            if cell is not None:
                means.setdefault((column, label.partition(", ")[2]), {})[label] = cell.mean
    return {(max(rivals, key=rivals.__getitem__), column) for (column, _), rivals in means.items()}


def _caption(sheet: Sheet, best: bool) -> str:
    what = "mean ± standard deviation" if _with_std(sheet) else "mean"
    named = sheet.title if sheet.seeds == {1} else f"{sheet.title}: {what}"
    return f"{named} {over_seeds(sheet.seeds)}" + ("; the best in bold" if best else "")
