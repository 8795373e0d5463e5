"""Groups of results as tables, and as plain records for CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmix.errors import UnknownNameError
from gradmix.runs.groups import (
    BY,
    Group,
    capability_note,
    compare_groups,
    differing,
    find_base,
    gradients_add,
    is_best,
)
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Difference, number
from gradmix.runs.tables import Cell, Table, TextCell, TextTable, show_setting


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
        against: A mix, a method, or name=value. Adds the paired difference to the group with this
            value, and its p-value.
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


def _difference(group: Group, groups: Sequence[Group], metric: str, against: str) -> Difference:
    base = find_base(group, groups, against)
    if base is None:
        return Difference(note=f"no runs of {against} to compare with")
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
