"""Measure two functions in turns, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator


def seconds(work: Callable[[], object]) -> float:
    """Return processor seconds; on one thread, this is the wall time on an idle machine."""
    started = time.process_time()
    work()
    return time.process_time() - started


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 15) -> str:
    """Return the ratio of our time to theirs; the functions take turns, after one warm-up each."""
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
    """Return the ratio of our epoch to theirs; the generators take turns, step by step.

    A slow period of the machine that lasts longer than a step then affects both.
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
    """Return median and quartiles; for three values, smallest and largest; for fewer, none."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f} of {len(ratios)})"
