"""What tables and figures read from a run: numbers by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

    The value of a task is its mean over the measured epochs.

    Args:
        columns: For each name, the diagnostic and its number.
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
    """Read the approximation error by λ."""
    entries = result.analysis["approximation-error"]
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
    """Read the time of the criterion per epoch, by task."""
    epochs, by_task = result.config["epochs"], result.seconds["criterion_by_task"]
    return {str(task): 1000 * total / epochs for task, total in enumerate(by_task, 1)}
