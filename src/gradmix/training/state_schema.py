"""The declared state of a training, which checkpoints and classifier files contain.

A file is validated against this schema before anything changes. Shapes that depend on the network,
the data and the optimizer are checked when the state is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from gradmix.files.schema import Schema, TensorOf, refuse

Count = Annotated[int, Field(ge=0, le=2**53)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Duration = Annotated[float, Field(ge=0, le=1e12)]
Numbers = Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
Rows = Annotated[Tensor, TensorOf(torch.int64, ndim=2)]
Mask = Annotated[Tensor, TensorOf(torch.bool, ndim=2)]
AnyTensor = Annotated[Tensor, TensorOf()]
Finite = Annotated[Tensor, TensorOf(finite=True)]
FiniteRows = Annotated[Tensor, TensorOf(torch.float32, ndim=2, finite=True)]
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
    kept: dict[str, FiniteRows]

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


# --- in the middle of a stage: optimizer, planned batches, harmful pairs ----------------------


def _check_inside(name: str, part: Tensor, limit: int, lowest: int = 0) -> None:
    """Refuse numbers outside `lowest` to `limit` − 1."""
    if part.numel() and not lowest <= int(part.min()) <= int(part.max()) < limit:
        refuse(f"{name} has numbers outside {lowest} to {limit - 1}")


class PartnersState(Schema):
    """The partners of S batches of B rows, (S, B)."""

    rows: Rows
    replaced: Mask | None = None
    drawn: Rows | None = None

    @model_validator(mode="after")
    def _same_shape(self) -> PartnersState:
        if (self.replaced is None) != (self.drawn is None):
            refuse("replaced and drawn belong together")
        for part in (self.replaced, self.drawn):
            if part is not None and part.shape != self.rows.shape:
                refuse(f"shapes differ: {tuple(part.shape)}, {tuple(self.rows.shape)}")
        _check_inside("rows", self.rows, self.rows.shape[1])
        return self


class DrawsState(Schema):
    """What was drawn to mix S batches."""

    lam: list[Ratio]
    table: list[Count]
    place: list[Count | Annotated[list[Count], Field(min_length=4, max_length=4)] | None]
    partners: PartnersState

    @model_validator(mode="after")
    def _same_number(self) -> DrawsState:
        number = len(self.partners.rows)
        for name in ("lam", "table", "place"):
            if len(getattr(self, name)) != number:
                refuse(f"{name} does not have one entry for each of {number} batches")
        return self


class PlanState(Schema):
    """The batches of an epoch, as pool rows (S, B), and how they are mixed."""

    index: Rows
    draws: DrawsState | None = None

    @model_validator(mode="after")
    def _same_shape(self) -> PlanState:
        if self.draws is not None and self.draws.partners.rows.shape != self.index.shape:
            refuse("draws: the partners do not have the shape of the batches")
        return self


class TablesState(Schema):
    """Full pair tables."""

    classes: Numbers
    scores: Annotated[Tensor, TensorOf(torch.float32, torch.float64, ndim=3, finite=True)]

    @model_validator(mode="after")
    def _square(self) -> TablesState:
        number = len(self.classes)
        if not number or len(self.scores) < 1 or self.scores.shape[1:] != (number, number):
            refuse(f"scores do not have the shape (T, {number}, {number})")
        if not bool((self.classes[1:] > self.classes[:-1]).all()):
            refuse("classes are not sorted")
        return self


class SketchState(Schema):
    """What the criterion for many classes keeps; see `criterion.many_classes.sketch`."""

    classes: Numbers
    counts: Numbers
    left: Rows
    right: Rows
    embeddings: FiniteRows
    rows: Annotated[Tensor, TensorOf(torch.float32, ndim=3, finite=True)]
    biases: FiniteRows
    top: Rows
    tail: Numbers

    @model_validator(mode="after")
    def _fits(self) -> SketchState:
        classes, samples, outputs = len(self.classes), len(self.embeddings), len(self.rows)
        for name in ("counts", "left", "right", "top"):
            if len(getattr(self, name)) != classes:
                refuse(f"{name} does not have one row for each of {classes} classes")
        if self.rows.shape[1:] != (2, self.embeddings.shape[1]):
            refuse("rows does not fit the embeddings")
        if self.biases.shape != (outputs, 2):
            refuse("biases does not fit the rows")
        limits = {"left": samples, "right": samples, "top": outputs, "tail": outputs}
        for name, limit in limits.items():
            _check_inside(name, getattr(self, name), limit)
        return self


class OnDemandState(Schema):
    """Pairs of many classes that are scored on demand."""

    sketch: SketchState
    ratios: Annotated[list[Ratio], Field(min_length=1)]
    search: Literal["clusters"]
    best: Rows
    asked: Annotated[list[Count], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _fits(self) -> OnDemandState:
        classes = len(self.sketch.classes)
        if self.best.shape != (len(self.ratios), classes):
            refuse("best does not have one row per ratio and one column per class")
        _check_inside("best", self.best, classes, lowest=-1)
        return self


class PairsState(Schema):
    """The harmful pairs of the epoch."""

    tables: TablesState | None = None
    on_demand: OnDemandState | None = None


class StageState(Schema):
    """The state in the middle of a stage."""

    optimizer: list[dict[str, AnyTensor | float | int | None]]
    new: Rows
    plan: PlanState | None
    counts: Rows
    pairs: PairsState


# --- the whole training ---------------------------------------------------------------------


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


class CheckpointState(Schema):
    """A checkpoint file."""

    about: dict[str, Any]  # compared with the present run
    versions: dict[str, str]
    training: TrainingState
    precision: dict[str, Any]
    record: dict[str, Any]  # validated by its owner
    seconds: dict[str, Duration]  # in each part of the training
    total_seconds: Duration
    saving_seconds: Duration
