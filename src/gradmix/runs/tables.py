"""Results grouped over seeds: means, standard deviations, paired differences, and tables of them.

Pure functions; the formats in which tables are written stand in `formats.py`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradmix.errors import InputError, ResultError, UnknownNameError
from gradmix.runs.results import RunResult
from gradmix.mixing import ABOUT

BY = ("data", "method", "mix")
"""What results are grouped by unless said otherwise."""

OF_THE_MIX = (
    *("mix", "alpha", "tau", "tables", "level"),
    *("criterion_exemplars", "pairing", "average", "criterion", "rolling", "criterion_block"),
    "analyses",
)
"""Settings that are only about mixing, or what is measured. Groups that differ in nothing else
are rivals."""

LOWER_IS_BETTER = ("forgetting_from_best", "forgetting_from_learned")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only, or in what they were not grouped by."""

    key: dict[str, Any]  # the settings grouped by
    results: tuple[RunResult, ...]  # in the order of their seeds

    @property
    def seeds(self) -> list[int]:
        """Each once, in order."""
        return [result.config["seed"] for result in self.results]

    @property
    def label(self) -> str:
        """The key in one line."""
        return " ".join(
            str(value) if name in BY else f"{name}={shown(value)}"
            for name, value in self.key.items()
        )

    def values(self, metric: str) -> list[float]:
        """A metric of every run."""
        return [metric_of(result, metric) for result in self.results]


@dataclass(frozen=True)
class Comparison:
    """A group less its base, seed by seed."""

    seeds: list[int]  # that both have
    difference: float | None  # mean over these; None if there are none
    std: float | None
    p_value: float | None  # of a paired t-test; None with fewer than two, or all the same
    note: str = ""  # why there is no p-value


def select(results: Iterable[RunResult], where: Mapping[str, Collection[Any]]) -> list[RunResult]:
    """Those of which each named setting has one of the given values."""
    results = list(results)
    for name in where:
        known = {key for result in results for key in result.config}
        if results and name not in known:
            raise UnknownNameError("setting", name, known)
    return [
        result
        for result in results
        if all(result.config.get(name) in allowed for name, allowed in where.items())
    ]


def in_order(results: Iterable[RunResult]) -> list[RunResult]:
    """By data, method and mix (plain replay first, as `gradmix list` has them), then the rest."""
    mixes = list(ABOUT)

    def place(value: Any) -> tuple[int, Any]:
        if isinstance(value, str) and value in mixes:
            return 0, mixes.index(value)
        if isinstance(value, (int, float)):
            return 1, value
        return 2, shown(value)

    def places(result: RunResult) -> list[tuple[int, Any]]:
        rest = [value for name, value in result.config.items() if name not in (*BY, "seed")]
        first = [result.config[name] for name in BY]
        return [place(value) for value in (*first, *rest, result.config["seed"])]

    return sorted(results, key=places)


def group_results(results: Iterable[RunResult], by: Sequence[str] | None = None) -> list[Group]:
    """Results that agree in all settings of `by`, in the order in which these first appear.

    By default these are data, method and mix, whatever else differs between runs that agree in
    these three, and what differs between mixes without being a setting of theirs: whoever compares
    these must see it. ResultError if a group given by `by` has a seed twice.
    """
    results = _completed(results)
    known = {name for result in results for name in result.config}
    for name in by or ():
        if results and name not in known:
            raise UnknownNameError("setting", name, known)
    chosen = BY + differing(results, BY) if by is None else tuple(by)
    if by is None:
        across = differing(results, [name for name in BY if name != "mix"])
        chosen += tuple(name for name in across if name not in (*chosen, *OF_THE_MIX))
    groups = [
        Group(
            {name: found[0].config[name] for name in chosen},
            tuple(sorted(found, key=lambda result: int(result.config["seed"]))),
        )
        for found in _together(results, chosen)
    ]
    for group in groups:
        if len(set(group.seeds)) < len(group.seeds) and "seed" not in chosen:
            others = ", ".join(differing(group.results, chosen)) or "nothing but their protocol"
            raise ResultError(
                f"the group {group.label} has a seed more than once: its runs differ in {others}; "
                "group by that too, or choose some of them"
            )
    return groups


def differing(results: Iterable[RunResult], by: Sequence[str]) -> tuple[str, ...]:
    """The settings, but for the seed, in which results differ that agree in all of `by`."""
    names: dict[str, None] = {}
    for together in _together(list(results), by):
        first = together[0].config
        for result in together[1:]:
            names.update({k: None for k, v in result.config.items() if v != first.get(k)})
    return tuple(name for name in names if name != "seed")


def _together(results: Sequence[RunResult], by: Sequence[str]) -> list[list[RunResult]]:
    """Results that agree in `by`; settings may be lists, which do not hash."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(repr([result.config.get(name) for name in by]), []).append(result)
    return list(groups.values())


def _completed(results: Iterable[RunResult]) -> list[RunResult]:
    """Settings that are younger than a result have their defaults there."""
    results = list(results)
    known = {name for result in results for name in result.config}
    if all(result.config.keys() == known for result in results):
        return results
    from gradmix.runs.config import DEFAULTS  # takes a while, and is hardly ever needed

    return [replace(result, config={**DEFAULTS, **result.config}) for result in results]


def metric_of(result: RunResult, metric: str) -> float:
    """A metric by its name; UnknownNameError for another."""
    if metric not in result.metrics:
        raise UnknownNameError("metric", metric, result.metrics)
    return result.metrics[metric]


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation of a sample; None for that of a single value.

    >>> mean_std([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def paired(group: Group, base: Group, metric: str = "average_accuracy") -> Comparison:
    """How much more than its base a group has, over the seeds that both have.

    Runs of one seed start from the same weights and see the same batches, whatever the mix.
    """
    ours, theirs = (
        {result.config["seed"]: metric_of(result, metric) for result in g.results}
        for g in (group, base)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Comparison([], None, None, None, "no common seeds")
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean, std = mean_std(differences)
    if std is None:
        return Comparison(seeds, mean, std, None, "one common seed")
    if std < 1e-12:
        return Comparison(seeds, mean, std, None, "the same difference for every seed")
    from scipy.stats import ttest_rel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of differences almost the same
        test = ttest_rel([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    return Comparison(seeds, mean, std, float(test.pvalue))


def base_of(group: Group, groups: Sequence[Group], mix: str) -> Group | None:
    """The rival of a group that has this mix: all but the settings of the mix are the same.

    If there are several, the one that agrees in those too; None if none or no single one does.
    """
    if "mix" not in group.key:
        raise InputError(f"against is {mix!r}, but the results are not grouped by mix")
    rivals = [other for other in groups if other.key["mix"] == mix and are_rivals(group, other)]
    same = {name: value for name, value in group.key.items() if name != "mix"}
    exact = [other for other in rivals if {**other.key, **same} == other.key]
    found = exact or rivals
    return found[0] if len(found) == 1 else None


def are_rivals(one: Group, other: Group) -> bool:
    """Whether two groups differ in nothing but settings of the mix, or are not grouped by mix."""
    names = [name for name in one.key if name not in OF_THE_MIX]
    if "mix" not in one.key:
        names = [name for name in names if name == "data"]
    return all(one.key[name] == other.key[name] for name in names)


def is_best(group: Group, groups: Sequence[Group], metric: str) -> bool:
    """Whether no rival has a better mean; a group without rivals is not called best."""
    rivals = [other for other in groups if other is not group and are_rivals(group, other)]
    sign = -1 if metric in LOWER_IS_BETTER else 1
    own = sign * mean_std(group.values(metric))[0]
    return bool(rivals) and all(own >= sign * mean_std(r.values(metric))[0] for r in rivals)


def summaries(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("average_accuracy",),
    against: str | None = None,
) -> list[dict[str, Any]]:
    """One record for every group and metric, as plain values."""
    records = []
    for group in groups:
        base = None if against is None else base_of(group, groups, against)
        for metric in metrics:
            mean, std = mean_std(group.values(metric))
            record = {
                **group.key,
                "metric": metric,
                "runs": len(group.results),
                "seeds": group.seeds,
                "mean": mean,
                "std": std,
                "best": is_best(group, groups, metric),
            }
            if against is not None:
                record |= _against(group, base, against, metric)
            records.append(record)
    return records


def _against(group: Group, base: Group | None, mix: str, metric: str) -> dict[str, Any]:
    """The comparison as a part of a record."""
    if base is None:
        found = Comparison([], None, None, None, f"no runs of {mix} to compare with")
    elif base is group:
        found = Comparison([], None, None, None)
    else:
        found = paired(group, base, metric)
    return {
        "against": mix,
        "common_seeds": len(found.seeds),
        "difference": found.difference,
        "difference_std": found.std,
        "p_value": found.p_value,
        "note": found.note,
    }


def shown(value: Any) -> str:
    """A setting in few letters.

    >>> shown([5, 5]), shown(None), shown({"alpha": 0.5})
    ('5 5', '–', 'alpha=0.5')
    """
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return str(value)
