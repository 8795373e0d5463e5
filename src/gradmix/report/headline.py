"""The main findings as sentences, computed from the results."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gradmix.report.html import count
from gradmix.report.rows import Row, by_data, by_method
from gradmix.report.tables import gain
from gradmix.runs.groups import (
    ACCURACY,
    BELONGS,
    OF_THE_MIX,
    best_control,
    compare_groups,
    gradients_add,
    grouped,
    settings_without,
)
from gradmix.runs.statistics import number
from gradmix.runs.tables import display

OF_THE_METHOD = (*OF_THE_MIX, *BELONGS["method"])


def headlines(rows: Sequence[Row]) -> list[str]:
    """Return HTML sentences, the most general first."""
    rows = [row for row in rows if row.metric(ACCURACY) is not None]
    comparisons = _comparisons(rows)
    if not comparisons:
        return [_alone(row) for row in rows] or ["No run has an average accuracy."]
    sentences = [_compare(where, found) for where, found in comparisons]
    if len(sentences) > 1:
        sentences.insert(0, _overview([found for _, found in comparisons]))
    return sentences


def _comparisons(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return what can be compared: the mixes of a method, or else the methods of a data set.

    All other settings, such as tasks and memory, are the same.
    """
    found: list[tuple[str, list[Row]]] = []
    for data, of_data in by_data(rows).items():
        groups = by_method(of_data).values()
        methods = [rivals for group in groups for rivals in _rivals(OF_THE_MIX, group)]
        where = f"On {escape(display(data))}"
        found += [(f"{where} with {escape(display(m[0].method))}", m) for m in methods]
        if not methods:
            found += [(where, rivals) for rivals in _rivals(OF_THE_METHOD, of_data)]
    return found


def _rivals(names: Sequence[str], rows: Sequence[Row]) -> list[list[Row]]:
    """Return the sets of several rows that differ only in these settings, best row first."""
    alike = grouped(rows, lambda row: settings_without(names, row.config))
    return [sorted(found, key=_mean, reverse=True) for found in alike.values() if len(found) > 1]


def _mean(row: Row) -> float:
    summary = row.metric(ACCURACY)
    return float("-inf") if summary is None else summary.mean


def _one_method(rows: Sequence[Row]) -> bool:
    return len({row.method for row in rows}) == 1


def _overview(comparisons: Sequence[list[Row]]) -> str:
    """Count what gradients add, and how often they win within one method."""
    fair = [
        found
        for found in comparisons
        if _one_method(found) and len({row.uses_gradients for row in found}) == 2
    ]
    if not fair:
        return f"{len(comparisons)} comparisons, none between GradMix and another mix."
    added = [gradients_add(_best_by_gradients(found), found) for found in fair]
    lows = [-1.0 if add.low is None else add.low for add in added if add is not None and add.base]
    wins = sum(found[0].uses_gradients for found in fair)
    control = "No comparison has a gradient-free control, so what gradients add is unknown."
    if lows:
        control = (
            f"Gradients add accuracy in <strong>{sum(low > 0 for low in lows)} of "
            f"{count(len(lows), 'comparison')}</strong> with a gradient-free control "
            "(95% interval above 0)."
        )
    return (
        f"{control} Mixing by gradients has the highest average accuracy in <strong>{wins} of "
        f"{count(len(fair), 'comparison')}</strong> within one method."
    )


def _compare(where: str, rows: Sequence[Row]) -> str:
    """Describe the best row and what gradients add; `rows` are sorted, best first."""
    same_method = _one_method(rows)
    first, second, *_ = rows
    sentence = (
        f"{where}, <strong>{_name(first, same_method)}</strong> has the highest average accuracy, "
        f"{_value(first)}: {number(_mean(first) - _mean(second))} above "
        f"{_name(second, same_method)}, {_certainty(first, second)}."
    )
    ours = next((row for row in rows if row.uses_gradients), None)
    if ours is None:
        return sentence
    if ours is not first and ours is not second:
        below = number(_mean(first) - _mean(ours))
        sentence += (
            f" The best mix by gradients, {_name(ours, same_method)}, is {below} below the best."
        )
    return f"{sentence} {_what_gradients_add(_best_by_gradients(rows), rows, same_method)}"


def _best_by_gradients(rows: Sequence[Row]) -> Row:
    """Return the best mix by gradients that has a control, or else the best; best row first."""
    ours = [row for row in rows if row.uses_gradients]
    return next((row for row in ours if best_control(row, rows) is not None), ours[0])


def _what_gradients_add(row: Row, rows: Sequence[Row], same_method: bool) -> str:
    """Compare a mix by gradients with its best gradient-free control and with no mixing."""
    control, added = best_control(row, rows), gain(row, rows)
    name = _name(row, same_method)
    over_plain = ""
    if added is not None and (text := added.interval()):
        over_plain = f" Over no mixing: {text}."
    if control is None:
        return f"No gradient-free control of {name} was run.{over_plain}"
    over_control = compare_groups(row, control).interval()
    return (
        f"What gradients add: <strong>{over_control}</strong>, {name} against its best "
        f"gradient-free control, {_name(control, same_method)}.{over_plain}"
    )


def _certainty(first: Row, second: Row) -> str:
    """Say with how many common seeds a row is ahead."""
    ours, theirs = first.by_seed(ACCURACY), second.by_seed(ACCURACY)
    common = ours.keys() & theirs.keys()
    if len(common) < 2:
        return "with too few common seeds to rule out chance"
    ahead = sum(ours[seed] > theirs[seed] for seed in common)
    only = "all" if ahead == len(common) else f"only {ahead} of"
    return f"ahead with {only} {len(common)} common seeds"


def _alone(row: Row) -> str:
    return (
        f"On {escape(display(row.data))}, <strong>{escape(row.label)}</strong> has an average "
        f"accuracy of {_value(row)}; there is nothing to compare it with."
    )


def _value(row: Row) -> str:
    summary = row.metric(ACCURACY)
    return "" if summary is None else f"{summary.text()} over {count(summary.n, 'seed')}"


def _name(row: Row, same_method: bool) -> str:
    return escape(row.name if same_method else row.label)
