"""Numbers that tables and figures read from a run, and their statistics over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradmix.runs.results import RunResult
from gradmix.training.metrics import accuracy_after_each_task

Read = Callable[[RunResult], Mapping[str, float]]
"""A run may lack some of the numbers."""

SECONDS = ("train", "criterion", "evaluate", "total")


def metrics(*names: str) -> Read:
    """Read several metrics by name, as far as a run has them."""
    return lambda result: {
        name.replace("_", " "): result.metrics[name] for name in names if name in result.metrics
    }


def diagnostics(columns: Mapping[str, tuple[str, str]]) -> Read:
    """Read diagnostics as means over tasks, as far as a run measured them.

    The value of a task is its mean over the measured epochs. `columns` has for each name the
    diagnostic and its number.
    """

    def read(result: RunResult) -> dict[str, float]:
        return {
            name: _mean_over_tasks(entries, key)
            for name, (diagnostic, key) in columns.items()
            if (entries := [one for one in result.analysis.get(diagnostic, ()) if key in one])
        }

    return read


def _mean_over_tasks(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    by_task: dict[int, list[float]] = {}
    for entry in entries:
        by_task.setdefault(entry["task"], []).append(entry[key])
    return statistics.fmean(map(statistics.fmean, by_task.values()))


def approximation_curve(result: RunResult) -> Mapping[str, float]:
    """Read the approximation error by λ; a run of one task has no memory to measure it with."""
    entries = result.analysis["approximation-error"]
    if not entries:
        return {}
    curves = zip(*(entry["of_samples"] for entry in entries), strict=True)
    return {
        f"{lam:g}": statistics.fmean(values)
        for lam, values in zip(entries[0]["lambdas"], curves, strict=True)
    }


def accuracy_by_task(result: RunResult) -> Mapping[str, float]:
    """Read the mean accuracy on all tasks so far, by task."""
    after = accuracy_after_each_task(result.accuracy)
    return {str(task): value for task, value in enumerate(after, 1)}


def class_accuracy(result: RunResult) -> Mapping[str, float]:
    """Read the final accuracy by class."""
    return dict(zip(result.class_names, result.class_accuracy[-1], strict=True))


def pair_counts(result: RunResult) -> Mapping[str, float]:
    """Read how often each pair of classes was mixed in the last task."""
    return {
        f"{own} → {other}": float(count)
        for own, row in zip(result.class_names, result.pair_counts[-1], strict=True)
        for other, count in zip(result.class_names, row, strict=True)
    }


def seconds(result: RunResult) -> Mapping[str, float]:
    """Read the time of the parts of a run, and the percentage that the criterion takes."""
    found = {name: result.seconds[name] for name in SECONDS if name in result.seconds}
    if found.get("total") and "criterion" in found:
        found["criterion, % of total"] = 100 * found["criterion"] / found["total"]
    return found


def negative_rate(result: RunResult) -> Mapping[str, float]:
    """Read the percentage of class pairs in S⁻, over all epochs with a pair table."""
    rates = [rate for stage in result.epochs for rate in stage.get("negative_rate", ())]
    known = [rate for rate in rates if rate is not None]
    return {"% of class pairs in S⁻": 100 * statistics.fmean(known)} if known else {}


def seconds_per_task(result: RunResult) -> Mapping[str, float]:
    """Read the training time per task, with the criterion."""
    total = result.seconds["train"] + result.seconds["criterion"]
    return {"seconds per task": total / len(result.tasks)}


def criterion_milliseconds(result: RunResult) -> Mapping[str, float]:
    """Read the time of the criterion per epoch, by task; older files lack it."""
    epochs, by_task = result.config["epochs"], result.seconds.get("criterion_by_task") or ()
    return {str(task): 1000 * total / epochs for task, total in enumerate(by_task, 1)}


# --- statistics over seeds ------------------------------------------------------------------------


class Summary(NamedTuple):
    """Mean and sample standard deviation of `n` values; a single value has no deviation."""

    mean: float
    std: float | None
    n: int = 1

    def text(self, digits: int = 3, sign: str = "") -> str:
        """Return `mean ± std`, or the mean alone.

        >>> Summary(0.5, 0.0125).text(), Summary(-0.0001, None).text(sign="+")
        ('0.500 ± 0.013', '+0.000')
        """
        mean = number(self.mean, digits, sign)
        return mean if self.std is None else f"{mean} ± {self.std:.{digits}f}"


def summarize(values: Sequence[float]) -> Summary:
    """Return mean and standard deviation of at least one value.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, n=3)
    """
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values))


@dataclass(frozen=True)
class Difference:
    """A paired difference over common seeds. `note` explains a missing p-value."""

    seeds: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    low: float | None = None  # 95% confidence interval
    high: float | None = None
    p_value: float | None = None  # two-sided paired t-test
    note: str = ""
    base: str = ""  # name of the base, where it was chosen among several

    def text(self, digits: int = 3) -> str:
        """Return `mean ± std`; empty without common seeds."""
        return "" if self.mean is None else Summary(self.mean, self.std).text(digits, "+")

    def interval(self, digits: int = 3) -> str:
        """Return the mean with its 95% interval; without common seeds, why there is none.

        >>> Difference((0, 1), 0.05, 0.02, -0.01, 0.11).interval(2)
        '+0.05 [-0.01, +0.11]'
        """
        if self.mean is None:
            return self.note
        if self.low is None or self.high is None:
            return self.text(digits)
        mean, low, high = (number(x, digits, "+") for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"

    def probability(self) -> str:
        """Return the p-value; without one, why there is none.

        >>> Difference(p_value=0.0494).probability(), Difference(p_value=0.0009).probability()
        ('0.049', '<0.001')
        """
        if self.p_value is None:
            return self.note
        return "<0.001" if self.p_value < 0.001 else f"{self.p_value:.3f}"


def paired_difference(ours: Mapping[int, float], base: Mapping[int, float]) -> Difference:
    """Return `ours - base` over the common seeds of two groups, given as values by seed.

    Runs with the same seed start from the same weights and see the same batches. The interval and
    the p-value need two different values.

    >>> paired_difference({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.4, 2: 0.9}).text()
    '+0.200 ± 0.141'
    """
    seeds = tuple(sorted(ours.keys() & base.keys()))
    if not seeds:
        return Difference(note="no common seeds")
    mean, std, n = summarize([ours[seed] - base[seed] for seed in seeds])
    if std is None:
        return Difference(seeds, mean, note="one common seed")
    if std < 1e-12:
        return Difference(seeds, mean, std, note="the same difference for every seed")
    from scipy.special import stdtr, stdtrit  # slow to import

    error = std / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.975)) * error
    p_value = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Difference(seeds, mean, std, mean - half, mean + half, p_value)


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """Format a number without a negative zero."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "seed"), count(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
