"""Tables: groups and runs as numbers, as text in Markdown and LaTeX, and as records for CSV.

The writers are hand-written: pandas would be a large dependency, and neither pandas nor tabulate
shortens them, because bold cells, column groups and escaping still need the code below.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from gradmix.runs.comparisons import ACCURACY, Cell, compare
from gradmix.runs.groups import BY, Group, capability_note, check_names, differing, show_setting
from gradmix.runs.measures import Difference, Summary, count, number
from gradmix.runs.results import RunResult

GRADIENTS_ADD = "what gradients add"


class TextCell(NamedTuple):
    """A piece of text, and how to show it."""

    text: str
    bold: bool = False
    kind: str = ""  # class of the cell in HTML


@dataclass(frozen=True)
class TextTable:
    """A table ready to print. Every column group has the same columns."""

    heads: tuple[str, ...]
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[TextCell, ...]], ...]
    caption: str

    @property
    def titles(self) -> list[str]:
        """Titles of all columns after the labels, in one line each."""
        if len(self.columns) == 1 and any(self.groups):
            return list(self.groups)
        return [f"{group} {column}".strip() for group in self.groups for column in self.columns]

    def split(self) -> list[TextTable]:
        """Return one table per column group with several columns, for narrow places."""
        width = len(self.columns)
        if width == 1 or len(self.groups) == 1:
            return [self]
        return [
            replace(
                self,
                groups=(group,),
                rows=tuple((ls, cells[i * width : (i + 1) * width]) for ls, cells in self.rows),
            )
            for i, group in enumerate(self.groups)
        ]


TableRow = tuple[tuple[str, ...], tuple[Cell, ...]]  # labels and cells
Writer = Callable[[Cell], TextCell]
Chart = Literal["table", "lines", "bars", "heatmap"]


@dataclass(frozen=True)
class Table:
    """Labelled rows of cells. Every column group has the same columns."""

    heads: tuple[str, ...]  # titles of the labels
    groups: tuple[str, ...]  # titles of the column groups
    columns: tuple[str, ...]  # titles of the columns in a group
    rows: tuple[TableRow, ...]
    title: str = ""
    digits: int = 3
    against: str = ""  # title of the differences
    note: str = ""  # ends the caption
    seeds_in_cells: bool = True  # add the number of seeds where it differs
    chart: Chart = "table"  # how a picture would show it

    @cached_property
    def seed_counts(self) -> set[int]:
        """The distinct numbers of seeds."""
        return {cell.value.n for _, cells in self.rows for cell in cells if cell.value is not None}

    def text(self) -> TextTable:
        """Return all cells as text. A column appears only if a cell has something to show."""
        width = len(self.columns)
        shown = [
            self._texts(name, [cell for _, row in self.rows for cell in row[place::width]])
            for place, name in enumerate(self.columns)
        ]
        columns = tuple(title for texts in shown for title, _ in texts)
        rows = []
        for labels, cells in self.rows:
            texts = (shown[place % width] for place in range(len(cells)))
            row = (write(cell) for cell, own in zip(cells, texts, strict=True) for _, write in own)
            rows.append((labels, tuple(row)))
        return TextTable(self.heads, self.groups, columns, tuple(rows), self.caption())

    def _texts(self, name: str, cells: Sequence[Cell]) -> list[tuple[str, Writer]]:
        """Return the titles of what the cells of a column show, and what writes the text."""
        digits, nothing = self.digits, Difference()
        texts: list[tuple[str, Writer]] = [(name, self._value)]
        if any(cell.reference for cell in cells):
            texts = [
                (name or "ours", self._value),
                ("paper", lambda c: TextCell(c.reference.text(digits) if c.reference else "–")),
                ("difference", lambda c: _reference_difference(c, digits)),
            ]
        if any(cell.difference for cell in cells):
            texts += [
                (self.against, lambda c: TextCell((c.difference or nothing).text(digits))),
                ("p", lambda c: TextCell((c.difference or nothing).probability())),
            ]
        if any(cell.gradients for cell in cells):
            texts += [
                (GRADIENTS_ADD, lambda c: TextCell((c.gradients or nothing).interval(digits)))
            ]
        return texts

    def _value(self, cell: Cell) -> TextCell:
        if cell.value is None:
            return TextCell("–", cell.best)
        seeds = f" ({cell.value.n})" if self.seeds_in_cells and len(self.seed_counts) > 1 else ""
        return TextCell(cell.value.text(self.digits) + seeds, cell.best)

    def caption(self) -> str:
        """Return one line that says what the numbers are."""
        cells = [cell for _, row in self.rows for cell in row]
        deviations = any(cell.value and cell.value.std is not None for cell in cells)
        counts = self.seed_counts
        seeds = "of one seed" if counts == {1} else f"over {next(iter(counts), 0)} seeds"
        if len(counts) > 1:
            seeds = "over seeds" + (" (their number in brackets)" if self.seeds_in_cells else "")
        what = "mean ± standard deviation" if deviations else "mean"
        parts = [f"{self.title} {seeds}" if counts == {1} else f"{self.title}: {what} {seeds}"]
        if any(cell.best for cell in cells):
            parts.append("best in bold")
        if any(cell.difference for cell in cells):
            parts.append(f"{self.against}: paired difference over common seeds; p: paired t-test")
        controls = {cell.gradients.base for cell in cells if cell.gradients} - {""}
        if controls:
            parts.append(
                f"{GRADIENTS_ADD}: paired difference, with its 95% interval, to the best "
                "gradient-free control with the same labels, α and τ that was run "
                f"({', '.join(sorted(controls))})"
            )
        return "; ".join([*parts, self.note] if self.note else parts)


def _reference_difference(cell: Cell, digits: int) -> TextCell:
    """Our mean minus the reference; its kind says whether it exceeds both standard deviations."""
    if cell.value is None or cell.reference is None:
        return TextCell("")
    difference = cell.value.mean - cell.reference.mean
    theirs = cell.reference.std or 0.0
    kind = "above" if difference > 0 else "below"
    if abs(difference) <= theirs + (theirs if cell.value.std is None else cell.value.std):
        kind = "same"
    return TextCell(number(difference, digits, "+"), kind=kind)


# --- groups and runs ----------------------------------------------------------------------------


def rows_of(
    found: Iterable[tuple[str, Mapping[str, Summary]]],
) -> tuple[tuple[str, ...], tuple[TableRow, ...]]:
    """Return the names of all numbers, and a row of cells for each label."""
    found = list(found)
    names = tuple(dict.fromkeys(name for _, numbers in found for name in numbers))
    return names, tuple(((k,), tuple(Cell(own.get(n)) for n in names)) for k, own in found)


def comparison_table(
    groups: Sequence[Group],
    metrics: Sequence[str] = (ACCURACY,),
    against: str | None = None,
    across: str = "data",
) -> Table:
    """Compare groups of results: a row for every key, and a column for every metric.

    The values of the setting `across` become column groups. `against` (a mix, a method, or
    name=value) adds the paired difference to the group with this value, and its p-value.
    """
    results = [result for group in groups for result in group.results]
    check_names("metric", metrics, [result.metrics for result in results])
    heads = tuple(name for name in (groups[0].key if groups else ()) if name != across)
    titles = tuple(dict.fromkeys(show_setting(group.key.get(across, "")) for group in groups))
    rows: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
    for group in groups:
        row = rows.setdefault(tuple(show_setting(group.key[name]) for name in heads), {})
        cells = [compare(group, groups, metric, against) for metric in metrics]
        row[show_setting(group.key.get(across, ""))] = cells
    blank = [Cell()] * len(metrics)
    names = tuple(metric.replace("_", " ") for metric in metrics)
    return Table(
        heads,
        titles,
        names,
        tuple((k, tuple(c for t in titles for c in row.get(t, blank))) for k, row in rows.items()),
        ", ".join(names),
        against=f"Δ {against}",
        note=capability_note(results),
    )


def runs_table(
    results: Sequence[RunResult],
    metrics: Sequence[str],
    digits: int = 3,
    settings: Sequence[str] | None = None,
) -> TextTable:
    """Show every run with some settings (default: those that differ), its metrics and its time."""
    check_names("metric", metrics, [result.metrics for result in results])
    heads = (*BY, *differing(results, BY), "seed") if settings is None else tuple(settings)

    def text(value: float | None, digits: int) -> TextCell:
        return TextCell("–" if value is None else number(value, digits))

    rows = tuple(
        (
            tuple(show_setting(result.config.get(name)) for name in heads),
            (
                *(text(result.metrics.get(metric), digits) for metric in metrics),
                text(result.seconds.get("total"), 1),
            ),
        )
        for result in results
    )
    columns = (*(metric.replace("_", " ") for metric in metrics), "seconds")
    notes = filter(None, [count(len(rows), "run"), capability_note(results)])
    return TextTable(heads, ("",), columns, rows, "; ".join(notes))


def group_records(
    groups: Sequence[Group], metrics: Sequence[str] = (ACCURACY,), against: str | None = None
) -> list[dict[str, Any]]:
    """Return one record of plain values for every group and metric."""
    check_names("metric", metrics, [run.metrics for group in groups for run in group.results])
    records = []
    for group in groups:
        for metric in metrics:
            value, _, difference, gradients, best = compare(group, groups, metric, against)
            mean, std = (None, None) if value is None else value[:2]
            record: dict[str, Any] = {**group.key, "metric": metric, "runs": len(group.results)}
            record |= {"seeds": group.seeds, "mean": mean, "std": std, "best": best}
            if difference is not None:
                record |= {
                    "against": against,
                    "common_seeds": len(difference.seeds),
                    "difference": difference.mean,
                    "difference_std": difference.std,
                    "p_value": difference.p_value,
                    "note": difference.note,
                }
            if gradients is not None:
                record |= {
                    "gradients_add": gradients.mean,
                    "gradients_add_low": gradients.low,
                    "gradients_add_high": gradients.high,
                }
            records.append(record)
    return records


def run_records(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the settings, metrics and times of every run as plain values."""
    return [
        {
            **result.config,
            "protocol_version": result.protocol_version,
            **result.metrics,
            **{f"seconds_{name}": value for name, value in result.seconds.items()},
        }
        for result in results
    ]


# --- files ----------------------------------------------------------------------------------------


def to_markdown(table: TextTable) -> str:
    """Write a table as GitHub Markdown with its caption below."""

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    lines = [line([*table.heads, *table.titles])]
    lines.append("|" + "---|" * len(table.heads) + "---:|" * len(table.titles))
    for labels, cells in table.rows:
        texts = [f"**{cell.text}**" if cell.bold else cell.text for cell in cells]
        lines.append(line([*labels, *texts]))
    return "\n".join([*lines, "", table.caption[:1].upper() + table.caption[1:] + ".", ""])


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "Δ": r"$\Delta$", "×": r"$\times$", "λ": r"$\lambda$", "–": "--", "<": "$<$",
}  # fmt: skip


def to_latex(table: TextTable) -> str:
    """Write a table as a LaTeX tabular with booktabs rules and its caption as a comment."""

    def safe(text: str) -> str:
        text = "".join(LATEX.get(letter, letter) for letter in text)
        return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)

    def line(texts: Iterable[str]) -> str:
        return " & ".join(texts) + r" \\"

    columns = "l" * len(table.heads) + "r" * len(table.titles)
    lines = [f"% {table.caption}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    heads, width = [safe(name) for name in table.heads], len(table.columns)
    if width > 1 and any(table.groups):
        above = [rf"\multicolumn{{{width}}}{{c}}{{{safe(title)}}}" for title in table.groups]
        lines.append(line([*[""] * len(heads), *above]))
        lines.append(line([*heads, *map(safe, table.columns * len(table.groups))]))
    else:
        lines.append(line([*heads, *map(safe, table.titles)]))
    lines.append(r"\midrule")
    for labels, cells in table.rows:
        texts = (rf"\textbf{{{safe(c.text)}}}" if c.bold else safe(c.text) for c in cells)
        lines.append(line([*map(safe, labels), *texts]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Write records as CSV with a header. Missing values are empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        lists = {k: show_setting(v) for k, v in record.items() if isinstance(v, (list, dict))}
        writer.writerow({**record, **lists})
    return file.getvalue()
