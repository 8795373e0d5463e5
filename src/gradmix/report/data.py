"""What the charts are drawn from, and the downloads made of: plain data, embedded once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gradmix.paper.numbers import paper_accuracy
from gradmix.report.classes import Parts, class_accuracy, pair_counts
from gradmix.report.rows import Row, Spread, by_data
from gradmix.report.runs import METRICS, SECONDS
from gradmix.runs.names import display
from gradmix.runs.results import RunResult

DIGITS = 4


def embed(value: object) -> str:
    """JSON that may stand inside a script element.

    >>> embed({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def chart_data(rows: Sequence[Row], parts: Sequence[Parts]) -> dict[str, Any]:
    """Everything the page's script needs."""
    distinct = list(dict.fromkeys(parts))
    styles: Counter[tuple[str, str]] = Counter()
    described = []
    for row, part in zip(rows, parts, strict=True):
        key = (row.data, row.mix)
        described.append(_describe(row, part, distinct.index(part), styles[key]))
        styles[key] += 1
    return {
        "sets": [{"data": data, "label": display(data)} for data in by_data(rows)],
        "parts": [{"names": p.names, "seen": p.seen, "byTask": p.by_task} for p in distinct],
        "rows": described,
        "runs": _runs(rows),
    }


def _describe(row: Row, parts: Parts, parts_number: int, style: int) -> dict[str, Any]:
    """One row; pairs of numbers are mean and standard deviation."""
    paper = paper_accuracy(row.config)
    return {
        "data": row.data,
        "method": row.method,
        "methodLabel": display(row.method),
        "mix": row.mix,
        "name": row.name,
        "label": row.label,
        "colour": row.colour,
        "style": style,  # among the rows of one mix, which have one colour
        "seeds": row.seeds,
        "parts": parts_number,
        "tasks": [task_name(row.results[0], task) for task in range(len(row.results[0].tasks))],
        "metrics": {name: _short(row.metric(name)) for name in METRICS},
        "paper": None if paper is None else [paper.mean, paper.std],
        "seconds": {part: _short(row.seconds(part)) for part in SECONDS},
        "criterionShare": _short(row.criterion_share()),
        "after": _shorten(row.after_each_task()),
        "matrix": [_shorten(line) for line in row.matrix()],  # on the tasks learned so far
        "classes": [_shorten(line) for line in class_accuracy(row, parts)],
        "pairs": pair_counts(row, parts),
    }


def task_name(result: RunResult, task: int) -> str:
    """A task by its classes, or by how many they are."""
    names = [result.class_names[label] for label in result.tasks[task]["classes"]]
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} classes"


def _runs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every run with all that decided it; the accuracy matrix up to the diagonal."""
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


def _shorten(values: Iterable[Spread]) -> list[list[float | None]]:
    return [_short(value) for value in values]


def _short(value: Spread) -> list[float | None]:
    std = None if value.std is None else round(value.std, DIGITS)
    return [round(value.mean, DIGITS), std]
