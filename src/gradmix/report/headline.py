"""What the results say, in sentences computed from them, whichever row wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from gradmix.report.html import count, format_spread
from gradmix.report.rows import Row, Spread, by_data, by_method, spread
from gradmix.runs.names import display
from gradmix.runs.tables import OF_THE_MIX

METRIC = "average_accuracy"
OF_THE_METHOD = (*OF_THE_MIX, "method", "options", "head")


def headlines(rows: Sequence[Row]) -> list[str]:
    """HTML sentences, the most general first."""
    comparisons = _comparisons(rows)
    if not comparisons:
        return [_alone(row) for row in rows]
    sentences = [_compare(where, found) for where, found in comparisons]
    if len(sentences) > 1:
        sentences.insert(0, _overview([found for _, found in comparisons]))
    return sentences


def paired(ours: Row, theirs: Row) -> list[float]:
    """Differences in average accuracy at the seeds that both have."""
    other = {result.config["seed"]: result.metrics[METRIC] for result in theirs.results}
    return [
        result.metrics[METRIC] - other[result.config["seed"]]
        for result in ours.results
        if result.config["seed"] in other
    ]


def _comparisons(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """What can be compared: the mixes of a method, or else the methods of a data set.

    All other settings, such as tasks and memory, must be the same.
    """
    found: list[tuple[str, list[Row]]] = []
    for data, of_data in by_data(rows).items():
        methods = [
            rivals
            for group in by_method(of_data).values()
            for rivals in _alike_but_for(OF_THE_MIX, group)
        ]
        where = f"On {escape(display(data))}"
        found += [(f"{where} with {escape(display(m[0].method))}", m) for m in methods]
        if not methods:
            found += [(where, rivals) for rivals in _alike_but_for(OF_THE_METHOD, of_data)]
    return found


def _alike_but_for(names: Sequence[str], rows: Sequence[Row]) -> list[list[Row]]:
    """The rows that differ in nothing but these settings, where there are several."""
    alike: dict[str, list[Row]] = {}
    for row in rows:
        alike.setdefault(_all_but(names, row), []).append(row)
    return [found for found in alike.values() if len(found) > 1]


def _all_but(names: Sequence[str], row: Row) -> str:
    """The settings of a row without these and the seed, equal if they are."""
    rest = {name: value for name, value in row.config.items() if name not in (*names, "seed")}
    return json.dumps(rest, sort_keys=True)


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.metric(METRIC).mean, reverse=True)


def _overview(comparisons: list[list[Row]]) -> str:
    """In how many comparisons, within one method, a mix by gradients is first."""
    fair = [
        found
        for found in comparisons
        if _one_method(found) and len({row.uses_gradients for row in found}) == 2
    ]
    if not fair:
        return f"{len(comparisons)} comparisons, none of GradMix with another mix."
    wins = sum(_ranked(found)[0].uses_gradients for found in fair)
    return (
        "Mixing by gradients has the highest average accuracy in "
        f"<strong>{wins} of {count(len(fair), 'comparison')}</strong> within one method."
    )


def _one_method(rows: Sequence[Row]) -> bool:
    return len({row.method for row in rows}) == 1


def _compare(where: str, rows: list[Row]) -> str:
    same_method = _one_method(rows)
    first, second, *_ = ranked = _ranked(rows)
    sentence = (
        f"{where}, <strong>{_called(first, same_method)}</strong> has the highest average "
        f"accuracy, {format_spread(first.metric(METRIC))} over {count(len(first.seeds), 'seed')}: "
        f"{_gap(first, second)} above {_called(second, same_method)}{_how_sure(first, second)}."
    )
    if first.uses_gradients:
        return sentence
    ours = next((row for row in ranked if row.uses_gradients), None)
    if ours is None or ours is second:
        return sentence
    return (
        f"{sentence} The best of those that mix by gradients, {_called(ours, same_method)}, is "
        f"{_gap(first, ours)} below it."
    )


def _gap(first: Row, second: Row) -> str:
    return f"{first.metric(METRIC).mean - second.metric(METRIC).mean:.3f}"


def _how_sure(first: Row, second: Row) -> str:
    """What the seeds say about a difference of means."""
    differences = paired(first, second)
    if len(differences) < 2:
        return ", with too few common seeds to tell it from chance"
    ahead = sum(difference > 0 for difference in differences)
    if ahead == len(differences):
        return f", ahead with each of {ahead} common seeds"
    return f", ahead with only {ahead} of {len(differences)} common seeds"


def _alone(row: Row) -> str:
    return (
        f"On {escape(display(row.data))}, <strong>{escape(row.label)}</strong> has an average "
        f"accuracy of {format_spread(row.metric(METRIC))} over {count(len(row.seeds), 'seed')}; "
        "there is nothing to compare it with."
    )


def _called(row: Row, same_method: bool) -> str:
    return escape(row.name if same_method else row.label)


def gain_over_plain(row: Row, rows: Sequence[Row]) -> Spread | None:
    """What a mix adds to the same method and settings without one, paired by seed."""
    for plain in rows:
        if _is_plain_of(plain, row):
            differences = paired(row, plain)
            return spread(differences) if differences else None
    return None


def _is_plain_of(plain: Row, row: Row) -> bool:
    same = _all_but(OF_THE_MIX, plain) == _all_but(OF_THE_MIX, row)
    return same and row.mixes and not plain.mixes
