"""Alternating measurements, so that a busy machine slows both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 9) -> str:
    """Median and quartiles of ours / theirs over runs in turn, after one of each to warm up."""
    ours(), theirs()
    ratios = []
    for turn in range(repeats):
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        times = {first: seconds(first), second: seconds(second)}
        ratios.append(times[ours] / times[theirs])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f}, {repeats} pairs)"
