"""Statistics over seeds: means, standard deviations and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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


def summarize_each(lists: Sequence[Sequence[float]]) -> list[Summary]:
    """Summarize every position of lists with the same length."""
    return [summarize(values) for values in zip(*lists, strict=True)]


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
    """Compare two groups of runs seed by seed.

    Runs with the same seed start from the same weights and see the same batches.

    Args:
        ours: Values by seed.
        base: Values by seed of the group to compare with.

    Returns:
        `ours - base` over the common seeds. The interval and the p-value need two different values.

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
