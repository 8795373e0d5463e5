"""The data of charts and downloads, embedded in the page once as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gradmix.paper.numbers import paper_accuracy
from gradmix.report.classes import ClassAxis, class_accuracy, pair_counts
from gradmix.report.rows import Row, by_data
from gradmix.report.tables import METRICS, SECONDS
from gradmix.runs.names import display
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Summary

DIGITS = 4


def embed(value: object) -> str:
    """Return JSON that is safe inside a script element.

    >>> embed({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def chart_data(rows: Sequence[Row], axes: Sequence[ClassAxis]) -> dict[str, Any]:
    """Return everything the page's script needs."""
    distinct = list(dict.fromkeys(axes))
    styles: Counter[tuple[str, str]] = Counter()
    described = []
    for row, axis in zip(rows, axes, strict=True):
        key = (row.data, row.mix)
        described.append(_describe(row, axis, distinct.index(axis), styles[key]))
        styles[key] += 1
    return {
        "sets": [{"data": data, "label": display(data)} for data in by_data(rows)],
        "axes": [{"names": a.names, "seen": a.seen, "byTask": a.by_task} for a in distinct],
        "rows": described,
        "runs": _runs(rows),
    }


def _describe(row: Row, axis: ClassAxis, axis_number: int, style: int) -> dict[str, Any]:
    """Describe one row. Pairs of numbers are mean and standard deviation."""
    paper = paper_accuracy(row.config)
    return {
        "data": row.data,
        "method": row.method,
        "methodLabel": display(row.method),
        "mix": row.mix,
        "usesGradients": row.uses_gradients,
        "name": row.name,
        "label": row.label,
        "colour": row.colour,
        "style": style,  # number among the rows of one mix, which share a colour
        "seeds": row.seeds,
        "axis": axis_number,
        "tasks": [task_name(row.results[0], task) for task in range(len(row.results[0].tasks))],
        "metrics": {name: _pair(row.metric(name)) for name in METRICS},
        "paper": None if paper is None else [paper.mean, paper.std],
        "seconds": {part: _pair(row.seconds(part)) for part in SECONDS},
        "criterionShare": _pair(row.criterion_share()),
        "after": _pairs(row.after_each_task()),
        "matrix": [_pairs(line) for line in row.matrix()],  # on the tasks learned so far
        "classes": [_pairs(line) for line in class_accuracy(row, axis)],
        "pairs": pair_counts(row, axis),
    }


def task_name(result: RunResult, task: int) -> str:
    """Name a task by its classes, or by their number if they are many."""
    names = [result.class_names[label] for label in result.tasks[task]["classes"]]
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} classes"


def _runs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return every run with its settings; the accuracy matrix up to its diagonal."""
    return [
        {
            "row": number,
            "config": result.config,
            "versions": result.versions,
            "metrics": result.metrics,
            "seconds": result.seconds,
            "accuracy": [line[: task + 1] for task, line in enumerate(result.accuracy)],
        }
        for number, row in enumerate(rows)
        for result in row.results
    ]


def _pairs(values: Iterable[Summary]) -> list[list[float | None]]:
    return [_pair(value) for value in values]


def _pair(value: Summary | None) -> list[float | None]:
    if value is None:
        return [None, None]
    return [round(value.mean, DIGITS), None if value.std is None else round(value.std, DIGITS)]
