"""The main findings as sentences, computed from the results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from gradmix.report.rows import Row, by_data, by_method
from gradmix.runs.comparisons import (
    ACCURACY,
    best_control,
    compare_groups,
    difference_to,
    quality,
)
from gradmix.runs.groups import OF_THE_METHOD, OF_THE_MIX, display, grouped
from gradmix.runs.measures import count, number


def headlines(rows: Sequence[Row]) -> list[str]:
    """Return HTML sentences, the most general first."""
    rows = [row for row in rows if row.metric(ACCURACY) is not None]
    comparisons = _comparisons(rows)
    if not comparisons:
        return [
            f"On {escape(display(row.data))}, <strong>{escape(row.label)}</strong> has an average "
            f"accuracy of {_value(row)}; there is nothing to compare it with."
            for row in rows
        ] or ["No run has an average accuracy."]
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
        methods = [rivals for group in groups for rivals in _rivals(group, OF_THE_MIX)]
        where = f"On {escape(display(data))}"
        found += [(f"{where} with {escape(display(m[0].method))}", m) for m in methods]
        if not methods:
            rivals = _rivals(of_data, (*OF_THE_MIX, *OF_THE_METHOD))
            found += [(where, own) for own in rivals]
    return found


def _rivals(rows: Sequence[Row], free: Collection[str]) -> list[list[Row]]:
    """Return the sets of several rows that differ only in the free settings, best row first."""
    sets = grouped(rows, lambda row: repr([row.key[name] for name in row.key if name not in free]))
    return [sorted(own, key=quality, reverse=True) for own in sets.values() if len(own) > 1]


def _overview(comparisons: Sequence[list[Row]]) -> str:
    """Count what gradients add, and how often they win within one method."""
    fair = [
        rows
        for rows in comparisons
        if len({row.method for row in rows}) == 1 and len({row.uses_gradients for row in rows}) == 2
    ]
    if not fair:
        return f"{len(comparisons)} comparisons, none between GradMix and another mix."
    pairs = [_with_control(rows) for rows in fair]
    added = [compare_groups(row, control) for row, control in pairs if control]
    above = sum(difference.low is not None and difference.low > 0 for difference in added)
    told = "No comparison has a gradient-free control, so what gradients add is unknown."
    if added:
        told = (
            f"Gradients add accuracy in <strong>{above} of "
            f"{count(len(added), 'comparison')}</strong> with a gradient-free control "
            "(95% interval above 0)."
        )
    wins = sum(rows[0].uses_gradients for rows in fair)
    return (
        f"{told} Mixing by gradients has the highest average accuracy in <strong>{wins} of "
        f"{count(len(fair), 'comparison')}</strong> within one method."
    )


def _with_control(rows: Sequence[Row]) -> tuple[Row, Row | None]:
    """Return the best mix by gradients that has a control, or else the best; with its control."""
    pairs = [(row, best_control(row, rows)) for row in rows if row.uses_gradients]
    return next((pair for pair in pairs if pair[1] is not None), pairs[0])


def _compare(where: str, rows: Sequence[Row]) -> str:
    """Describe the best row and what gradients add; `rows` are sorted, best first."""
    same_method = len({row.method for row in rows}) == 1

    def name(row: Row) -> str:
        return escape(row.name if same_method else row.label)

    first, second, *_ = rows
    sentence = (
        f"{where}, <strong>{name(first)}</strong> has the highest average accuracy, "
        f"{_value(first)}: {number(quality(first) - quality(second))} above "
        f"{name(second)}, {_certainty(first, second)}."
    )
    ours = next((row for row in rows if row.uses_gradients), None)
    if ours is None:
        return sentence
    if ours is not first and ours is not second:
        below = number(quality(first) - quality(ours))
        sentence += f" The best mix by gradients, {name(ours)}, is {below} below the best."
    ours, control = _with_control(rows)
    if control is None:
        sentence += f" No gradient-free control of {name(ours)} was run."
    else:
        sentence += (
            f" What gradients add: <strong>{compare_groups(ours, control).interval()}</strong>, "
            f"{name(ours)} against its best gradient-free control, {name(control)}."
        )
    over_plain = difference_to(ours, rows, ACCURACY, "mix=none")
    return f"{sentence} Over no mixing: {over_plain.interval()}." if over_plain.seeds else sentence


def _certainty(first: Row, second: Row) -> str:
    """Say with how many common seeds a row is ahead."""
    ours, theirs = first.by_seed(ACCURACY), second.by_seed(ACCURACY)
    common = ours.keys() & theirs.keys()
    if len(common) < 2:
        return "with too few common seeds to rule out chance"
    ahead = sum(ours[seed] > theirs[seed] for seed in common)
    only = "all" if ahead == len(common) else f"only {ahead} of"
    return f"ahead with {only} {len(common)} common seeds"


def _value(row: Row) -> str:
    summary = row.metric(ACCURACY)
    return "" if summary is None else f"{summary.text()} over {count(summary.n, 'seed')}"
