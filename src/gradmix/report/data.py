"""The data of charts and downloads, embedded in the page once as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmix.paper.numbers import paper_accuracy
from gradmix.report.rows import Row, by_data, other_mixes
from gradmix.runs import measures
from gradmix.runs.groups import display
from gradmix.runs.measures import Summary, summarize
from gradmix.runs.results import RunResult

METRICS = (
    "average_accuracy",
    "final_accuracy",
    "forgetting_from_best",
    "forgetting_from_learned",
    "backward_transfer",
    "forward_transfer",
)
DIGITS = 4
MOST_NAMES = 5
"""A task with more classes is named by their number."""

MAX_CLASSES = 100
"""A heatmap has no room for more."""

MAX_CELLS = 800_000
"""In all heatmaps of a page together, at 5 bytes each."""


def chart_data(rows: Sequence[Row], by_task: Collection[str]) -> dict[str, Any]:
    """Return everything the page's script needs; see `shown_by_task`."""
    axes = [class_axis(row.results[0], by_task) for row in rows]
    distinct = list(dict.fromkeys(axes))
    others = other_mixes(row.mix for row in rows)
    same_mix = [(row.data, row.mix) for row in rows]
    described = [
        {
            **_describe(row, axis),
            "axis": distinct.index(axis),
            # number among the rows of one mix, which share a colour:
            "style": same_mix[:place].count((row.data, row.mix)),
            "otherMix": others.index(row.mix) if row.mix in others else None,
        }
        for place, (row, axis) in enumerate(zip(rows, axes, strict=True))
    ]
    return {
        "sets": [{"data": data, "label": display(data)} for data in by_data(rows)],
        "axes": [{"names": axis.names, "seen": axis.seen} for axis in distinct],
        "rows": described,
        "runs": [
            {
                "row": number,
                "config": result.config,
                "versions": result.versions,
                "metrics": result.metrics,
                "seconds": result.seconds,
                # up to the diagonal:
                "accuracy": [line[: task + 1] for task, line in enumerate(result.accuracy)],
            }
            for number, row in enumerate(rows)
            for result in row.results
        ],
    }


def _describe(row: Row, axis: ClassAxis) -> dict[str, Any]:
    """Describe one row. Pairs of numbers are mean and standard deviation."""
    result, seconds = row.results[0], row.summaries(measures.seconds)
    paper = paper_accuracy(row.config)
    tasks = class_axis(result, [row.data])
    return {
        "data": row.data,
        "method": row.method,
        "methodLabel": display(row.method),
        "mix": row.mix,
        "usesGradients": row.uses_gradients,
        "name": row.name,
        "label": row.label,
        "colour": row.colour,
        "seeds": row.seeds,
        "tasks": [
            ", ".join(result.class_names[label] for label in task["classes"])
            if len(task["classes"]) <= MOST_NAMES
            else f"{len(task['classes'])} classes"
            for task in result.tasks
        ],
        "metrics": {name: _pair(row.metric(name)) for name in METRICS},
        "paper": None if paper is None else [paper.mean, paper.std],
        "seconds": {part: _pair(seconds.get(part)) for part in measures.SECONDS},
        "criterionShare": _pair(seconds.get("criterion, % of total")),
        "after": _pairs(row.summaries(measures.accuracy_by_task).values()),
        "matrix": [_pairs(line) for line in class_accuracy(row, tasks)],
        "classes": [_pairs(line) for line in class_accuracy(row, axis)],
        "pairs": pair_counts(row, axis),
    }


def _pairs(values: Iterable[Summary]) -> list[list[float | None]]:
    return [_pair(value) for value in values]


def _pair(value: Summary | None) -> list[float | None]:
    if value is None:
        return [None, None]
    return [round(value.mean, DIGITS), None if value.std is None else round(value.std, DIGITS)]


# --- classes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassAxis:
    """What a chart shows along its class axis, in order of arrival: classes, or whole tasks."""

    names: tuple[str, ...]
    seen: tuple[int, ...]  # number of names learned after each task
    by_task: bool

    def accuracy_of(self, result: RunResult) -> list[list[float]]:
        """Return the accuracy on every class or task, after each task."""
        return result.accuracy if self.by_task else result.class_accuracy


def shown_by_task(rows: Sequence[Row]) -> set[str]:
    """Return the data sets whose classes are shown by task.

    These data sets have too many classes, or all heatmaps together would be too large; the data
    sets with most classes come first.
    """
    by_task: set[str] = set()
    most = {
        data: max(len(row.results[0].class_names) for row in own)
        for data, own in by_data(rows).items()
    }
    for data in sorted(most, key=lambda name: most[name], reverse=True):
        axes = (class_axis(row.results[0], by_task) for row in rows if row.mixes)
        cells = sum(number**2 for axis in axes for number in axis.seen)
        if most[data] > MAX_CLASSES or cells > MAX_CELLS:
            by_task.add(data)
    return by_task


def class_axis(result: RunResult, by_task: Collection[str]) -> ClassAxis:
    """Return the class axis of a run: tasks if its data set is in `by_task`."""
    sizes = [len(task["classes"]) for task in result.tasks]
    if result.config["data"] in by_task:
        names = (f"task {number} ({size})" for number, size in enumerate(sizes, 1))
        return ClassAxis(tuple(names), tuple(range(1, len(sizes) + 1)), True)
    latest = [max(task["classes"]) for task in result.tasks]  # classes are numbered by arrival
    seen = np.maximum.accumulate(latest) + 1
    return ClassAxis(tuple(result.class_names), tuple(seen.tolist()), False)


def final_class_accuracy(by_task: Collection[str]) -> measures.Read:
    """Read the accuracy on every class, or task, after the last task."""

    def read(result: RunResult) -> Mapping[str, float]:
        axis = class_axis(result, by_task)
        return dict(zip(axis.names, axis.accuracy_of(result)[-1], strict=True))

    return read


def class_accuracy(row: Row, axis: ClassAxis) -> list[list[Summary]]:
    """Return the accuracy on every class (or task) learned so far, after each task."""
    tables = [axis.accuracy_of(result) for result in row.results]
    return [
        [summarize([table[task][place] for table in tables]) for place in range(number)]
        for task, number in enumerate(axis.seen)
    ]


def pair_counts(row: Row, axis: ClassAxis) -> list[list[int]] | None:
    """Return how often each pair was mixed in each task, over all seeds, as flat squares.

    None if nothing was mixed, or if pairs belong to no task because tasks share classes.
    """
    total = np.sum([np.asarray(result.pair_counts) for result in row.results], axis=0)
    sizes = tuple(len(task["classes"]) for task in row.results[0].tasks)
    if not total.any() or (axis.by_task and sum(sizes) > total.shape[1]):
        return None
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
