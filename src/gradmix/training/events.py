"""How far a training is: its events (a step, an epoch or a task is done), position and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Evaluation(NamedTuple):
    """Correct test samples of all tasks by task and class, (T, C), for each predictor."""

    correct: dict[str, Tensor]
    task_aware: dict[str, Tensor]  # when only the outputs of the sample's task are compared
    tested: Tensor  # test samples by task and class, (T, C)


class StepDone(NamedTuple):
    """One optimizer step."""

    task: int
    epoch: int
    step: int
    steps: int
    loss: Tensor  # on the device
    total_steps: int = 0  # steps of the whole training so far
    evaluation: Evaluation | None = None  # if one was due after this step
    predicted: Tensor | None = None  # online: new samples that were predicted before the step


class EpochDone(NamedTuple):
    """One pass over the task's data."""

    task: int
    stage: str
    epoch: int
    epochs: int
    loss: float  # mean over the epoch's steps
    negative_rate: float | None  # share of class pairs in S⁻; None without the criterion
    total_steps: int = 0  # steps of the whole training so far
    evaluation: Evaluation | None = None  # if one was due after this epoch


class TaskDone(NamedTuple):
    """One task learned and evaluated."""

    task: int
    correct: dict[str, Tensor]  # by predictor: correct test samples by task and class, (T, C)
    pair_counts: Tensor  # (C, C) how often each ordered class pair was mixed
    memory_size: int
    replay_batch: int  # rows replayed per step; fewer than requested if the memory is smaller
    total_steps: int = 0  # steps of the whole training so far
    task_aware: dict[str, Tensor] | None = None  # as `correct`, with the task's outputs only
    tested: Tensor | None = None  # test samples by task and class, (T, C)


Event = StepDone | EpochDone | TaskDone


@dataclass
class Position:
    """The position of a training: how much is finished."""

    task: int = 0
    stage: int = 0
    epoch: int = 0
    step: int = 0
    in_stage: bool = False
    total_steps: int = 0


@dataclass
class Seconds:
    """The time spent in each part of the training."""

    train: float = 0.0
    criterion: float = 0.0
    evaluate: float = 0.0
