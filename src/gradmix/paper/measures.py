"""What the paper's tables and figures read from a run: numbers by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradmix.runs.groups import grouped
from gradmix.runs.results import RunResult
from gradmix.training.metrics import accuracy_after_each_task

Read = Callable[[RunResult], Mapping[str, float]]  # a single number has the name ""


def metric(name: str) -> Read:
    """Read a metric."""
    return lambda result: {"": result.metrics[name]}


def diagnostic(name: str, key: str) -> Read:
    """Read the mean of a diagnostic over tasks."""
    return lambda result: {"": mean_over_tasks(result.analysis[name], key)}


def mean_over_tasks(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the mean over tasks; the value of a task is its mean over the measured epochs."""
    by_task = grouped(entries, lambda entry: entry["task"])
    means = (statistics.fmean(one[key] for one in own) for own in by_task.values())
    return statistics.fmean(means)


def class_distances(result: RunResult) -> Mapping[str, float]:
    """Read the mean gradient distance within and between classes."""
    entries = result.analysis["class-distance"]
    return {
        "within a class": mean_over_tasks(entries, "within"),
        "between classes": mean_over_tasks(entries, "between"),
    }


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


def seconds_per_task(result: RunResult) -> Mapping[str, float]:
    """Read the training time per task, with the criterion."""
    seconds = result.seconds["train"] + result.seconds["criterion"]
    return {"": seconds / len(result.tasks)}


def criterion_milliseconds(result: RunResult) -> Mapping[str, float]:
    """Read the time of the criterion per epoch, by task."""
    epochs, seconds = result.config["epochs"], result.seconds["criterion_by_task"]
    return {str(task): 1000 * total / epochs for task, total in enumerate(seconds, 1)}
