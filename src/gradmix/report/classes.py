"""Classes in charts and tables. Data sets with too many classes are shown by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmix.report.rows import Row, by_data
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Summary, summarize_each

MAX_CLASSES = 100
"""A heatmap has no room for more."""

MAX_CELLS = 800_000
"""In all heatmaps of a page together, at 5 bytes each."""


@dataclass(frozen=True)
class ClassAxis:
    """What a chart shows along its class axis, in order of arrival: classes, or whole tasks."""

    names: tuple[str, ...]
    seen: tuple[int, ...]  # number of names learned after each task
    by_task: bool


def class_axes(rows: Sequence[Row]) -> list[ClassAxis]:
    """Return the class axis of every row.

    A data set is shown by task if it has too many classes, or if all heatmaps together would be
    too large; the data sets with most classes come first.
    """
    by_task: set[str] = set()
    sets = by_data(rows)
    for data in sorted(sets, key=lambda name: _num_classes(sets[name]), reverse=True):
        if _num_classes(sets[data]) > MAX_CLASSES or _num_cells(rows, by_task) > MAX_CELLS:
            by_task.add(data)
    return [class_axis(row.results[0], by_task=row.data in by_task) for row in rows]


def class_axis(result: RunResult, *, by_task: bool) -> ClassAxis:
    """Return the class axis of a run."""
    sizes = [len(task["classes"]) for task in result.tasks]
    if by_task:
        names = (f"task {number} ({size})" for number, size in enumerate(sizes, 1))
        return ClassAxis(tuple(names), tuple(range(1, len(sizes) + 1)), True)
    return ClassAxis(tuple(result.class_names), tuple(np.cumsum(sizes).tolist()), False)


def class_accuracy(row: Row, axis: ClassAxis) -> list[list[Summary]]:
    """Return the accuracy on every class (or task) learned so far, after each task."""
    tables = [r.accuracy if axis.by_task else r.class_accuracy for r in row.results]
    return [
        summarize_each([table[task][:number] for table in tables])
        for task, number in enumerate(axis.seen)
    ]


def pair_counts(row: Row, axis: ClassAxis) -> list[list[int]] | None:
    """Return how often each pair was mixed in each task, over all seeds, as flat squares.

    Returns:
        None if nothing was mixed.
    """
    total = np.sum([np.asarray(result.pair_counts) for result in row.results], axis=0)
    if not total.any():
        return None
    sizes = tuple(len(task["classes"]) for task in row.results[0].tasks)
    squares = (_by_task(counts, sizes) if axis.by_task else counts for counts in total)
    return [
        square[:number, :number].ravel().tolist()
        for square, number in zip(squares, axis.seen, strict=True)
    ]


def _by_task(counts: npt.NDArray[np.int64], sizes: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Add up counts of classes (C, C) to counts of tasks (T, T).

    >>> _by_task(np.arange(9).reshape(3, 3), (2, 1))
    array([[ 8,  7],
           [13,  8]])
    """
    starts = np.cumsum((0, *sizes[:-1]))
    rows = np.add.reduceat(counts, starts, axis=0)
    return np.asarray(np.add.reduceat(rows, starts, axis=1))


def _num_classes(rows: Sequence[Row]) -> int:
    return max(len(row.results[0].class_names) for row in rows)


def _num_cells(rows: Sequence[Row], by_task: set[str]) -> int:
    axes = (class_axis(row.results[0], by_task=row.data in by_task) for row in rows if row.mixes)
    return sum(number**2 for axis in axes for number in axis.seen)
