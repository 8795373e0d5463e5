"""Tables: cells with everything they are compared with, as text, Markdown, LaTeX and CSV.

The writers are hand-written: pandas would be a large dependency, and neither pandas nor tabulate
shortens them, because bold cells, column groups and escaping still need the code below.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradmix.runs.statistics import Difference, Summary, number, probability

NAMES = {
    **{name: name.upper() for name in ("er", "mir", "aser", "gss", "scr", "der", "der++")},
    **{name: name.upper() for name in ("foster", "memo", "drc")},
    **{name: name.upper() for name in ("mnist", "cifar-10", "cifar-100")},
    "gss-stream": "GSS (stream)",
    "der-expandable": "DER (expandable)",
    **{name: name.upper() for name in ("er-ace", "a-gem", "ewc", "wa")},
    **{"bic": "BiC", "gdumb": "GDumb", "lwf": "LwF"},
    "icarl": "iCaRL",
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "fashion-mnist": "Fashion-MNIST",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
    "digits": "Digits",
}
"""Names as papers write them. Other names are shown unchanged."""


def display(name: str) -> str:
    """Return the display name of a data set or method.

    >>> display("fashion-mnist"), display("folder:photos")
    ('Fashion-MNIST', 'folder:photos')
    """
    return NAMES.get(name, name)


def show_setting(value: Any) -> str:
    """Return the value of a setting as short text.

    >>> show_setting([5, 5]), show_setting(None), show_setting({"alpha": 0.5})
    ('5 5', '–', 'alpha=0.5')
    """
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return str(value)


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


# --- cells --------------------------------------------------------------------------------------

GRADIENTS_ADD = "what gradients add"


class Cell(NamedTuple):
    """One quantity: its summary over seeds and what it is compared with."""

    value: Summary | None = None  # None: nothing was run
    reference: Summary | None = None  # the paper's number
    difference: Difference | None = None  # to another mix
    gradients: Difference | None = None  # what gradients add
    best: bool = False


TableRow = tuple[tuple[str, ...], tuple[Cell, ...]]  # labels and cells
Write = Callable[[Cell], TextCell]


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

    @property
    def seed_counts(self) -> set[int]:
        """The distinct numbers of seeds."""
        return {cell.value.n for _, cells in self.rows for cell in cells if cell.value is not None}

    def text(self) -> TextTable:
        """Return all cells as text. A column appears only if a cell has something to show."""
        parts = [self._parts_of(column) for column in range(len(self.columns))]
        columns = tuple(title for part in parts for title, _ in part)
        rows = []
        for labels, cells in self.rows:
            filled = [(cell, parts[i % len(parts)]) for i, cell in enumerate(cells)]
            rows.append((labels, tuple(write(cell) for cell, part in filled for _, write in part)))
        return TextTable(self.heads, self.groups, columns, tuple(rows), self.caption())

    def _parts_of(self, column: int) -> list[tuple[str, Write]]:
        """Return the text columns of a column, as titles and functions that fill them."""
        width, digits = len(self.columns), self.digits
        cells = [cell for _, row in self.rows for cell in row[column::width]]
        references = any(cell.reference for cell in cells)
        title = self.columns[column] or ("ours" if references else "")
        parts: list[tuple[str, Write]] = [(title, self._value)]
        if references:
            parts += [
                ("paper", lambda c: TextCell(c.reference.text(digits) if c.reference else "–")),
                ("difference", lambda c: _reference_difference(c, digits)),
            ]
        if any(cell.difference for cell in cells):
            parts += [
                (
                    self.against,
                    lambda c: TextCell(c.difference.text(digits) if c.difference else ""),
                ),
                ("p", lambda c: TextCell(_probability(c.difference))),
            ]
        if any(cell.gradients for cell in cells):
            parts.append((GRADIENTS_ADD, lambda c: _gradients_add(c, digits)))
        return parts

    def _value(self, cell: Cell) -> TextCell:
        if cell.value is None:
            return TextCell("–")
        text = cell.value.text(self.digits)
        if self.seeds_in_cells and len(self.seed_counts) > 1:
            text += f" ({cell.value.n})"
        return TextCell(text, cell.best)

    def caption(self) -> str:
        """Return one line that says what the numbers are."""
        cells = [cell for _, row in self.rows for cell in row]
        deviations = any(cell.value and cell.value.std is not None for cell in cells)
        several = self.seed_counts != {1}
        what = "mean ± standard deviation" if deviations else "mean"
        sentences = [f"{self.title}: {what}" if several else self.title]
        sentences[0] = f"{sentences[0]} {self._over_seeds()}"
        sentences += ["best in bold"] if any(cell.best for cell in cells) else []
        if any(cell.difference for cell in cells):
            sentences.append(
                f"{self.against}: paired difference over common seeds; p: paired t-test"
            )
        controls = {cell.gradients.base for cell in cells if cell.gradients and cell.gradients.base}
        sentences += [_control_note(sorted(controls))] if controls else []
        sentences += [self.note] if self.note else []
        return "; ".join(sentences)

    def _over_seeds(self) -> str:
        counts = self.seed_counts
        if len(counts) > 1:
            return "over seeds" + (" (their number in brackets)" if self.seeds_in_cells else "")
        return "of one seed" if counts == {1} else f"over {next(iter(counts), 0)} seeds"


def _control_note(controls: Sequence[str]) -> str:
    """Explain the column "what gradients add"."""
    return (
        f"{GRADIENTS_ADD}: paired difference, with its 95% interval, to the best gradient-free "
        f"control with the same labels, α and τ that was run ({', '.join(controls)})"
    )


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


def _gradients_add(cell: Cell, digits: int) -> TextCell:
    return TextCell("" if cell.gradients is None else cell.gradients.interval(digits))


def _probability(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return difference.note if difference.p_value is None else probability(difference.p_value)


# --- writers ------------------------------------------------------------------------------------


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
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        values = [record.get(name) for name in names]
        writer.writerow(show_setting(v) if isinstance(v, (list, dict)) else v for v in values)
    return file.getvalue()
