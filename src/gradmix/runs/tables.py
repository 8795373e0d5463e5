"""Tables of results: summaries over seeds with everything they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradmix.errors import UnknownNameError
from gradmix.runs.formats import TextCell, TextTable
from gradmix.runs.groups import (
    BY,
    Group,
    capability_note,
    compare_groups,
    differing,
    find_base,
    gradients_add,
    is_best,
    show_setting,
)
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Difference, Summary, number, probability

GRADIENTS_ADD = "what gradients add"


class Cell(NamedTuple):
    """One quantity: its summary over seeds and what it is compared with."""

    value: Summary | None = None  # None: nothing was run
    reference: Summary | None = None  # the paper's number
    difference: Difference | None = None  # to another mix
    gradients: Difference | None = None  # what gradients add
    best: bool = False


Row = tuple[tuple[str, ...], tuple[Cell, ...]]  # labels and cells
Write = Callable[[Cell], TextCell]


@dataclass(frozen=True)
class Table:
    """Labelled rows of cells. Every column group has the same columns."""

    heads: tuple[str, ...]  # titles of the labels
    groups: tuple[str, ...]  # titles of the column groups
    columns: tuple[str, ...]  # titles of the columns in a group
    rows: tuple[Row, ...]
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
        controls = sorted({cell.gradients.base for cell in cells if cell.gradients})
        sentences += [_control_note(controls)] if controls else []
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


# --- tables of results --------------------------------------------------------------------------


def comparison_table(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("average_accuracy",),
    against: str | None = None,
    across: str = "data",
) -> Table:
    """Compare groups of results.

    Args:
        groups: Groups of `group_results`. Their keys become the labels of the rows.
        metrics: Names of metrics, one column each.
        against: A mix. Adds the paired difference to this mix and its p-value.
        across: The setting whose values become column groups.
    """
    results = [result for group in groups for result in group.results]
    _check_metrics(results, metrics)
    heads = tuple(name for name in (groups[0].key if groups else ()) if name != across)
    titles = tuple(dict.fromkeys(show_setting(group.key.get(across, "")) for group in groups))
    rows: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
    for group in groups:
        row = rows.setdefault(tuple(show_setting(group.key[name]) for name in heads), {})
        cells = [_compare(group, groups, metric, against) for metric in metrics]
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


def _check_metrics(results: Sequence[RunResult], metrics: Sequence[str]) -> None:
    known = {name for result in results for name in result.metrics}
    for metric in metrics:
        if results and metric not in known:
            raise UnknownNameError("metric", metric, known)


def _compare(group: Group, groups: Sequence[Group], metric: str, against: str | None) -> Cell:
    return Cell(
        group.metric(metric),
        difference=None if against is None else _difference(group, groups, metric, against),
        gradients=gradients_add(group, groups, metric) if "mix" in group.key else None,
        best=is_best(group, groups, metric),
    )


def _difference(group: Group, groups: Sequence[Group], metric: str, mix: str) -> Difference:
    base = find_base(group, groups, mix)
    if base is None:
        return Difference(note=f"no runs of {mix} to compare with")
    return Difference() if base is group else compare_groups(group, base, metric)


def runs_table(
    results: Sequence[RunResult],
    metrics: Sequence[str],
    digits: int = 3,
    settings: Sequence[str] | None = None,
) -> TextTable:
    """Show every run with some settings (default: those that differ), its metrics and its time."""
    _check_metrics(results, metrics)
    heads = (*BY, *differing(results, BY), "seed") if settings is None else tuple(settings)
    rows = tuple(
        (
            tuple(show_setting(result.config.get(name)) for name in heads),
            (
                *(TextCell(_metric(result, metric, digits)) for metric in metrics),
                TextCell(_seconds(result)),
            ),
        )
        for result in results
    )
    columns = (*(metric.replace("_", " ") for metric in metrics), "seconds")
    notes = filter(None, [f"{len(rows)} runs", capability_note(results)])
    return TextTable(heads, ("",), columns, rows, "; ".join(notes))


def _metric(result: RunResult, metric: str, digits: int) -> str:
    return number(result.metrics[metric], digits) if metric in result.metrics else "–"


def _seconds(result: RunResult) -> str:
    return f"{result.seconds['total']:.1f}" if "total" in result.seconds else "–"


# --- records for CSV and JSON -------------------------------------------------------------------


def group_records(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("average_accuracy",),
    against: str | None = None,
) -> list[dict[str, Any]]:
    """Return one record of plain values for every group and metric."""
    _check_metrics([result for group in groups for result in group.results], metrics)
    records = []
    for group in groups:
        for metric in metrics:
            cell = _compare(group, groups, metric, against)
            mean, std = (None, None) if cell.value is None else cell.value[:2]
            record: dict[str, Any] = {**group.key, "metric": metric, "runs": len(group.results)}
            record |= {"seeds": group.seeds, "mean": mean, "std": std, "best": cell.best}
            if against is not None and cell.difference is not None:
                record |= {"against": against, **_record(cell.difference)}
            if cell.gradients is not None:
                add = cell.gradients
                record |= {"gradients_add": add.mean}
                record |= {"gradients_add_low": add.low, "gradients_add_high": add.high}
            records.append(record)
    return records


def _record(difference: Difference) -> dict[str, Any]:
    return {
        "common_seeds": len(difference.seeds),
        "difference": difference.mean,
        "difference_std": difference.std,
        "p_value": difference.p_value,
        "note": difference.note,
    }


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
