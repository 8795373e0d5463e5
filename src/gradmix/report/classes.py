"""What is shown for single classes; where there are too many of them, for the tasks instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmix.report.rows import Row, Spread, by_data, over_seeds
from gradmix.runs.results import RunResult

MOST_CLASSES = 100
"""More do not fit a heatmap."""

MOST_CELLS = 800_000
"""Of all pair heatmaps of a page; at 5 bytes each well within the size of a file to pass on."""


@dataclass(frozen=True)
class Parts:
    """The classes of a data set in the order they arrive, one by one or a task at a time."""

    names: tuple[str, ...]
    seen: tuple[int, ...]  # how many have been learned after each task
    by_task: bool


def parts_of_rows(rows: Sequence[Row]) -> list[Parts]:
    """For every row, whether its classes are shown one by one or by task.

    A data set is shown by task if it has too many classes, and, those with most classes first,
    if all the heatmaps together would be too large.
    """
    together: set[str] = set()
    sets = by_data(rows)
    for data in sorted(sets, key=lambda name: _classes(sets[name][0]), reverse=True):
        if _classes(sets[data][0]) > MOST_CLASSES or _cells(rows, together) > MOST_CELLS:
            together.add(data)
    return [make_parts(row.results[0], by_task=row.data in together) for row in rows]


def make_parts(result: RunResult, *, by_task: bool) -> Parts:
    """The classes of a run, one by one or a task at a time."""
    sizes = [len(task["classes"]) for task in result.tasks]
    if by_task:
        names = (f"task {number} ({size})" for number, size in enumerate(sizes, 1))
        return Parts(tuple(names), tuple(range(1, len(sizes) + 1)), True)
    return Parts(tuple(result.class_names), tuple(np.cumsum(sizes).tolist()), False)


def class_accuracy(row: Row, parts: Parts) -> list[list[Spread]]:
    """After each task, the accuracy on every part learned so far."""
    tables = [r.accuracy if parts.by_task else r.class_accuracy for r in row.results]
    return [
        over_seeds([table[task][:number] for table in tables])
        for task, number in enumerate(parts.seen)
    ]


def pair_counts(row: Row, parts: Parts) -> list[list[int]] | None:
    """For each task, how often parts were mixed, over all seeds, as a flat square; None if never.

    >>> _squeeze(np.arange(9).reshape(3, 3), (2, 1))
    array([[ 8,  7],
           [13,  8]])
    """
    total = np.sum([np.asarray(result.pair_counts) for result in row.results], axis=0)
    if not total.any():
        return None
    sizes = tuple(len(task["classes"]) for task in row.results[0].tasks)
    squares = (_squeeze(counts, sizes) if parts.by_task else counts for counts in total)
    return [
        square[:number, :number].ravel().tolist()
        for square, number in zip(squares, parts.seen, strict=True)
    ]


def _squeeze(counts: npt.NDArray[np.int64], sizes: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Counts of classes as counts of tasks."""
    starts = np.cumsum((0, *sizes[:-1]))
    rows = np.add.reduceat(counts, starts, axis=0)
    return np.asarray(np.add.reduceat(rows, starts, axis=1))


def _classes(row: Row) -> int:
    return len(row.results[0].class_names)


def _cells(rows: Sequence[Row], together: set[str]) -> int:
    """Of the heatmaps of all rows that mix."""
    parts = (make_parts(row.results[0], by_task=row.data in together) for row in rows if row.mixes)
    return sum(number**2 for part in parts for number in part.seen)
