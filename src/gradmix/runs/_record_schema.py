"""The declared content of a run's record in its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from gradmix.errors import InputError
from gradmix.files.schema import Schema, TensorOf, first_violation

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Epochs(Schema):
    """The epochs of one stage."""

    task: Count
    stage: str
    loss: list[float]
    negative_rate: list[Share | None]


class _Task(Schema):
    """One task that is done."""

    classes: list[Count]
    train: Count
    test: Count
    memory: Count
    replay_batch: Count


class RecordState(Schema):
    """What a run has recorded so far."""

    initial: dict[str, list[Share]]
    accuracy: dict[str, list[list[Share]]]
    class_accuracy: list[list[Share]]
    pair_counts: list[Annotated[Tensor, TensorOf(torch.int64, ndim=2)]]
    epochs: list[_Epochs]
    tasks: list[_Task]
    analysis: dict[str, list[dict[str, Any]]]
    criterion_seconds: list[Annotated[float, Field(ge=0)]]


def check_record(
    state: dict[str, Any], *, done: int, tasks: int, classes: int, analyses: Sequence[str]
) -> None:
    """Check a saved record against the run that resumes.

    Args:
        state: The saved record.
        done: Number of tasks that are done.
        tasks: Number of tasks of the run.
        classes: Number of classes of the run.
        analyses: Names of the run's analyses.

    Raises:
        InputError: If the record is invalid; the message names the field.
    """
    try:
        record = RecordState.model_validate(state)
    except ValidationError as error:
        raise InputError(f"record.{first_violation(error)}") from None
    rows: dict[str, Sequence[Any]] = {"class_accuracy": record.class_accuracy}
    rows["pair_counts"] = record.pair_counts
    rows |= {"tasks": record.tasks, "criterion_seconds": record.criterion_seconds}
    rows |= {f"accuracy.{name}": matrix for name, matrix in record.accuracy.items()}
    for name, entries in rows.items():
        if len(entries) != done:
            raise InputError(f"record.{name} has {len(entries)} entries; {done} tasks are done")
    widths = [len(row) for row in record.class_accuracy]
    if any(width != classes for width in widths):
        raise InputError(f"record.class_accuracy does not have {classes} classes")
    matrices = [*record.accuracy.values(), *([row] for row in record.initial.values())]
    if any(len(row) != tasks for matrix in matrices for row in matrix):
        raise InputError(f"record.accuracy does not have {tasks} tasks")
    if record.accuracy.keys() != record.initial.keys() or "main" not in record.accuracy:
        raise InputError("record.accuracy does not have the predictors of record.initial")
    if record.analysis.keys() != set(analyses):
        raise InputError(f"record.analysis has {sorted(record.analysis)}, not {list(analyses)}")
