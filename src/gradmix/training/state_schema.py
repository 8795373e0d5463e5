"""The declared state of a training, which checkpoints and classifier files contain.

A file is validated against this schema before anything changes. Shapes that depend on the network
and the data are checked when the state is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from gradmix.files.schema import Schema, TensorOf, refuse
from gradmix.training.stage_schema import Count, StageState

Duration = Annotated[float, Field(ge=0, le=1e12)]
Numbers = Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
Finite = Annotated[Tensor, TensorOf(finite=True)]
Priority = Annotated[
    Tensor, TensorOf(torch.float32, torch.float64, torch.int64, ndim=1, finite=True)
]
Weights = dict[str, Finite]


def _check_rows(number: int, **parts: Tensor) -> None:
    """Refuse parts that do not have one row for each of a number of labels."""
    for name, part in parts.items():
        if part.ndim < 1 or len(part) != number:
            refuse(f"{name} has shape {tuple(part.shape)} for {number} labels")


class SamplesState(Schema):
    """Samples and their class numbers."""

    x: Finite
    y: Numbers

    @model_validator(mode="after")
    def _same_rows(self) -> SamplesState:
        _check_rows(len(self.y), x=self.x)
        return self


class MemoryState(SamplesState):
    """Exemplars with their priorities and what else a method stores of each."""

    priority: Priority
    extras: dict[str, Finite]

    @model_validator(mode="after")
    def _all_rows(self) -> MemoryState:
        _check_rows(len(self.y), priority=self.priority, **self.extras)
        return self


class BufferState(Schema):
    """The buffer of one class in `gss-stream`."""

    capacity: Count
    index: Numbers
    scores: Annotated[Tensor, TensorOf(torch.float32, ndim=1, finite=True)]
    kept: dict[str, Annotated[Tensor, TensorOf(torch.float32, ndim=2, finite=True)]]

    @model_validator(mode="after")
    def _same_rows(self) -> BufferState:
        if self.kept.keys() not in ({"residuals", "embeddings"}, set()):
            refuse(f"kept has {sorted(self.kept)}")
        _check_rows(len(self.index), scores=self.scores, **self.kept)
        if len(self.index) > self.capacity:
            refuse(f"index has more than the {self.capacity} rows of the buffer")
        return self


class MethodState(Schema):
    """The state of a method between steps; a method checks fields that are not declared here."""

    model_config = ConfigDict(extra="allow")

    structure: dict[str, bool | Count]
    networks: Annotated[dict[str, Weights], Field(min_length=1)]
    memory: MemoryState
    buffers: dict[str, BufferState] | None = None  # of gss-stream, by class
    first_epoch: bool = False  # of gss-stream
    kept: SamplesState | None = None  # of joint training
    initial: Weights | None = None  # of joint training and gdumb
    importance: Weights | None = None  # of ewc
    anchor: Weights | None = None  # of ewc
    held: Numbers | None = None  # of bic
    balanced: Numbers | None = None  # rows on which der-expandable trains its classifier

    @model_validator(mode="after")
    def _check(self) -> MethodState:
        """No part of the structure exceeds the weights; no variance is negative."""
        tensors = [value for weights in self.networks.values() for value in weights.values()]
        sizes = [value.shape[0] for value in tensors if value.numel() and value.ndim]
        most = max(len(tensors), *sizes, 0)
        for name in ("outputs", "seen"):
            if type(self.structure.get(name)) is not int:
                refuse(f"structure has no number {name}")
        for name, number in self.structure.items():
            if number > most:
                refuse(f"structure.{name} is {number}; the weights allow at most {most}")
        for weights in self.networks.values():
            for name, weight in weights.items():
                if name.endswith("running_var") and bool((weight.real < 0).any()):
                    refuse(f"{name} is a variance and has negative values")
        return self


class StreamsState(Schema):
    """The states of all random streams; `RandomStreams` checks them further."""

    seed: Annotated[int, Field(ge=0)]
    device: dict[str, Annotated[Tensor, TensorOf(torch.uint8, ndim=1)]]
    host: dict[str, str]


class PositionState(Schema):
    """How much of a training is finished."""

    task: Count
    stage: Count
    epoch: Count
    step: Count
    in_stage: bool
    total_steps: Count = 0  # missing in older classifier files


class TrainingState(Schema):
    """The state of a training."""

    position: PositionState
    losses: Annotated[Tensor, TensorOf(torch.float32, torch.float64, ndim=1, finite=True)]
    method: MethodState
    stage: StageState | None = None
    order: Numbers | None = None  # of the samples of an online stream
    streams: StreamsState

    @model_validator(mode="after")
    def _stage_belongs(self) -> TrainingState:
        at, started = self.position, self.position.in_stage
        if started != (self.stage is not None):
            refuse("stage: a stage is saved exactly in the middle of one")
        if not started and (at.stage or at.epoch or at.step):
            refuse(f"position: {at!r} is neither in a stage nor between tasks")
        return self


class SecondsState(Schema):
    """The time spent in each part of the training."""

    train: Duration
    criterion: Duration
    evaluate: Duration


class CheckpointState(Schema):
    """A checkpoint file."""

    about: dict[str, Any]  # compared with the present run
    versions: dict[str, str]
    training: TrainingState
    precision: dict[str, Any]
    record: dict[str, Any]  # validated by its owner
    seconds: SecondsState
    total_seconds: Duration
    saving_seconds: Duration
