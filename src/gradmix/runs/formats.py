"""Tables of results as people print them: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradmix.runs.results import RunResult
from gradmix.runs.tables import BY, Group, differing, metric_of, shown, summaries


class Cell(NamedTuple):
    """A piece of text, and whether it stands out."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """Rows with labels in front; the columns behind them come in groups of equal width."""

    heads: tuple[str, ...]  # of the labels
    groups: tuple[str, ...]  # titles of the column groups
    columns: tuple[str, ...]  # titles of the columns in each group
    rows: tuple[tuple[tuple[str, ...], tuple[Cell, ...]], ...]  # labels and cells
    caption: str

    @property
    def titles(self) -> list[str]:
        """Of all columns behind the labels, each in one line."""
        if len(self.columns) == 1 and any(self.groups):
            return list(self.groups)
        return [f"{group} {column}".strip() for group in self.groups for column in self.columns]


def one_by_one(table: Table) -> list[Table]:
    """A table for each group of several columns, for narrow places."""
    width = len(table.columns)
    if width == 1 or len(table.groups) == 1:
        return [table]
    return [
        replace(
            table,
            groups=(group,),
            rows=tuple((ls, cells[i * width : (i + 1) * width]) for ls, cells in table.rows),
        )
        for i, group in enumerate(table.groups)
    ]


def layout(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("average_accuracy",),
    against: str | None = None,
    across: str = "data",
    digits: int = 3,
) -> Table:
    """Mean ± standard deviation with a column, or some, for each value of the setting `across`.

    All other settings that the groups are grouped by become rows. With `against`, the paired
    difference to that mix and its p-value stand beside each mean.
    """
    records = summaries(groups, metrics, against)
    heads = tuple(name for name in (groups[0].key if groups else ()) if name != across)
    titles = list(dict.fromkeys(shown(record.get(across, "")) for record in records))
    numbers = {record["runs"] for record in records}
    cells: dict[tuple[str, ...], dict[tuple[str, str], list[Cell]]] = {}
    for record in records:
        row = cells.setdefault(tuple(shown(record[name]) for name in heads), {})
        place = shown(record.get(across, "")), record["metric"]
        row[place] = _cells(record, digits, len(numbers) > 1)
    columns = []
    for metric in metrics:
        columns.append(metric.replace("_", " "))
        columns += [] if against is None else [f"Δ {against}", "p"]
    blank = [Cell("–")] + ([] if against is None else [Cell(""), Cell("")])
    rows = tuple(
        (labels, tuple(c for t in titles for m in metrics for c in row.get((t, m), blank)))
        for labels, row in cells.items()
    )
    caption = _caption(metrics, numbers, against)
    return Table(heads, tuple(titles), tuple(columns), rows, caption)


def _cells(record: Mapping[str, Any], digits: int, with_number: bool) -> list[Cell]:
    """What a group fills: its mean, and beside it the comparison if there is one."""
    text = spread(record["mean"], record["std"], digits)
    text += f" ({record['runs']})" if with_number else ""
    cells = [Cell(text, record["best"])]
    if "against" in record:
        difference, p = record["difference"], record["p_value"]
        change = (
            "" if difference is None else spread(difference, record["difference_std"], digits, "+")
        )
        cells += [Cell(change), Cell(record["note"] if p is None else probability(p))]
    return cells


def spread(mean: float, std: float | None, digits: int = 3, sign: str = "") -> str:
    """Mean ± standard deviation, or the mean alone.

    >>> spread(0.5, 0.0125), spread(0.5, None, sign="+")
    ('0.500 ± 0.013', '+0.500')
    """
    text = f"{round(mean, digits) + 0.0:{sign}.{digits}f}"  # no -0.000
    return text if std is None else f"{text} ± {std:.{digits}f}"


def probability(p: float) -> str:
    """A p-value, no more exact than it is."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def over_seeds(numbers: set[int]) -> str:
    """How many seeds are behind the cells of a table.

    >>> over_seeds({3}), over_seeds({1})
    ('over 3 seeds', 'of a single seed')
    """
    if len(numbers) > 1:
        return "over the seeds whose number stands in brackets"
    return "of a single seed" if numbers == {1} else f"over {next(iter(numbers), 0)} seeds"


def _caption(metrics: Sequence[str], numbers: set[int], against: str | None) -> str:
    names = ", ".join(metric.replace("_", " ") for metric in metrics)
    what = names if numbers == {1} else f"{names}: mean ± standard deviation"
    text = f"{what} {over_seeds(numbers)}; the best in bold"
    if against is not None:
        text += f"; Δ is the difference to {against} over common seeds, p of a paired t-test"
    return text


def runs_table(results: Sequence[RunResult], metrics: Sequence[str], digits: int = 3) -> Table:
    """Every run by itself."""
    heads = (*BY, *differing(results, BY), "seed")
    rows = tuple(
        (
            tuple(shown(result.config.get(name)) for name in heads),
            (
                *(Cell(f"{metric_of(result, metric):.{digits}f}") for metric in metrics),
                Cell(f"{result.seconds['total']:.1f}"),
            ),
        )
        for result in results
    )
    columns = (*(metric.replace("_", " ") for metric in metrics), "seconds")
    return Table(heads, ("",), columns, rows, f"{len(rows)} runs")


def run_records(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Every run as plain values: its settings, metrics and times."""
    return [
        {
            **result.config,
            "protocol_version": result.protocol_version,
            **result.metrics,
            **{f"seconds_{name}": value for name, value in result.seconds.items()},
        }
        for result in results
    ]


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Records with a line of names first; what has no value is empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        values = [record.get(name) for name in names]
        writer.writerow(
            shown(value) if isinstance(value, (list, dict)) else value for value in values
        )
    return file.getvalue()


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown, and its caption below."""

    def line(texts: Sequence[str]) -> str:
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


def to_latex(table: Table) -> str:
    """A tabular with the rules of booktabs, its caption as a comment above."""

    def safe(text: str) -> str:
        text = "".join(LATEX.get(letter, letter) for letter in text)
        return re.sub(r"^-(?=\d)", "$-$", text)

    def line(texts: Sequence[str]) -> str:
        return " & ".join(texts) + r" \\"

    width = len(table.columns)
    lines = [
        f"% {table.caption}",
        rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.titles)}}}",
        r"\toprule",
    ]
    heads = [safe(name) for name in table.heads]
    if width > 1 and any(table.groups):
        above = [rf"\multicolumn{{{width}}}{{c}}{{{safe(title)}}}" for title in table.groups]
        lines.append(line([*[""] * len(heads), *above]))
        lines.append(line([*heads, *map(safe, table.columns * len(table.groups))]))
    else:
        lines.append(line([*heads, *map(safe, table.titles)]))
    lines.append(r"\midrule")
    for labels, cells in table.rows:
        texts = [
            rf"\textbf{{{safe(cell.text)}}}" if cell.bold else safe(cell.text) for cell in cells
        ]
        lines.append(line([*map(safe, labels), *texts]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
