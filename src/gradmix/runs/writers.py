"""Text tables as Markdown and LaTeX, and records as CSV.

The writers are hand-written: pandas would be a large dependency, and neither pandas nor tabulate
shortens them, because bold cells, column groups and escaping still need the code below.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradmix.runs.labels import show_setting
from gradmix.runs.tables import TextTable


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
