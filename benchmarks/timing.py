"""Measurements in turn, so that a busy machine slows both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator


def seconds(work: Callable[[], object]) -> float:
    """Of processor time: on one thread that is the time it takes when nobody else is about."""
    started = time.process_time()
    work()
    return time.process_time() - started


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 15) -> str:
    """Ours over theirs, run in turn, after one of each to warm up."""
    ours(), theirs()
    ratios = []
    for turn in range(repeats):
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        times = {first: seconds(first), second: seconds(second)}
        ratios.append(times[ours] / times[theirs])
    return spread(ratios)


def ratio_of_epochs(
    ours: Iterator[object], theirs: Iterator[object], steps: int, repeats: int = 15
) -> str:
    """An epoch of ours over one of theirs, which yield after every step: a step of each in turn.

    What slows the machine for longer than a step then slows both.
    """
    ratios = []
    for _ in range(repeats + 1):
        mine = its = 0.0
        for _ in range(steps):
            mine += seconds(lambda: next(ours))
            its += seconds(lambda: next(theirs))
        ratios.append(mine / its)
    return spread(ratios[1:])  # the first epoch warms up


def spread(ratios: list[float]) -> str:
    """Median and quartiles; of three, the smallest and largest. Of fewer there are none."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f} of {len(ratios)})"
