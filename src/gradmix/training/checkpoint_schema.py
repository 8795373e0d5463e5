"""The declared content of a checkpoint file.

`Checkpoint` validates a file against this schema before it changes the training. Shapes that
depend on the network, the data and the optimizer are checked when the state is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from gradmix.files.schema import Schema, TensorOf

Count = Annotated[int, Field(ge=0, le=2**53)]
Duration = Annotated[float, Field(ge=0, le=1e12)]
Rows = Annotated[Tensor, TensorOf(torch.int64, ndim=2)]
Mask = Annotated[Tensor, TensorOf(torch.bool, ndim=2)]
AnyTensor = Annotated[Tensor, TensorOf()]
Finite = Annotated[Tensor, TensorOf(finite=True)]
Weights = dict[str, Finite]
Ratio = Annotated[float, Field(ge=0, le=1)]


class PositionState(Schema):
    """How much of the training is finished."""

    task: Count
    stage: Count
    epoch: Count
    step: Count
    in_stage: bool


class MemoryState(Schema):
    """Exemplars, labels, priorities and what else is stored; one row each."""

    x: Finite
    y: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    priority: Annotated[Tensor, TensorOf(torch.float32, torch.float64, ndim=1, finite=True)]
    extras: dict[str, AnyTensor]

    @model_validator(mode="after")
    def _same_rows(self) -> MemoryState:
        for name, part in {"x": self.x, "priority": self.priority, **self.extras}.items():
            if part.ndim < 1 or len(part) != len(self.y):
                raise ValueError(f"{name} does not have one row for each of {len(self.y)} labels")
        return self


class PartnersState(Schema):
    """The partners of S batches of B rows, (S, B)."""

    rows: Rows
    replaced: Mask | None = None
    drawn: Rows | None = None

    @model_validator(mode="after")
    def _same_shape(self) -> PartnersState:
        if (self.replaced is None) != (self.drawn is None):
            raise ValueError("replaced and drawn belong together")
        for part in (self.replaced, self.drawn):
            if part is not None and part.shape != self.rows.shape:
                raise ValueError(f"shapes differ: {tuple(part.shape)}, {tuple(self.rows.shape)}")
        batch = self.rows.shape[1]
        if self.rows.numel() and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < batch:
            raise ValueError(f"rows points outside a batch of {batch}")
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
                raise ValueError(f"{name} does not have one entry for each of {number} batches")
        return self


class PlanState(Schema):
    """The batches of an epoch, as pool rows (S, B), and how they are mixed."""

    index: Rows
    draws: DrawsState | None = None

    @model_validator(mode="after")
    def _same_shape(self) -> PlanState:
        if self.draws is not None and self.draws.partners.rows.shape != self.index.shape:
            raise ValueError("draws: the partners do not have the shape of the batches")
        return self


class TablesState(Schema):
    """Full pair tables."""

    classes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    scores: Annotated[Tensor, TensorOf(torch.float32, torch.float64, ndim=3, finite=True)]

    @model_validator(mode="after")
    def _square(self) -> TablesState:
        number = len(self.classes)
        if not number or len(self.scores) < 1 or self.scores.shape[1:] != (number, number):
            raise ValueError(f"scores do not have the shape (T, {number}, {number})")
        if not bool((self.classes[1:] > self.classes[:-1]).all()):
            raise ValueError("classes are not sorted")
        return self


class SketchState(Schema):
    """What the criterion for many classes keeps; see `criterion.many_classes.sketch`."""

    classes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    counts: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    left: Rows
    right: Rows
    embeddings: Annotated[Tensor, TensorOf(torch.float32, ndim=2, finite=True)]
    rows: Annotated[Tensor, TensorOf(torch.float32, ndim=3, finite=True)]
    biases: Annotated[Tensor, TensorOf(torch.float32, ndim=2, finite=True)]
    top: Rows
    tail: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]

    @model_validator(mode="after")
    def _fits(self) -> SketchState:
        classes, samples, outputs = len(self.classes), len(self.embeddings), len(self.rows)
        for name in ("counts", "left", "right", "top"):
            if len(getattr(self, name)) != classes:
                raise ValueError(f"{name} does not have one row for each of {classes} classes")
        if self.rows.shape[1:] != (2, self.embeddings.shape[1]):
            raise ValueError("rows does not fit the embeddings")
        if self.biases.shape != (outputs, 2):
            raise ValueError("biases does not fit the rows")
        limits = {"left": samples, "right": samples, "top": outputs, "tail": outputs}
        for name, limit in limits.items():
            part = getattr(self, name)
            if part.numel() and not 0 <= int(part.min()) <= int(part.max()) < limit:
                raise ValueError(f"{name} has numbers outside 0 to {limit - 1}")
        return self


class OnDemandState(Schema):
    """Pairs of many classes that are scored on demand."""

    sketch: SketchState
    ratios: Annotated[list[Ratio], Field(min_length=1)]
    search: str
    best: Rows
    asked: Annotated[list[Count], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _fits(self) -> OnDemandState:
        classes = len(self.sketch.classes)
        if self.best.shape != (len(self.ratios), classes):
            raise ValueError("best does not have one row per ratio and one column per class")
        if self.best.numel() and not -1 <= int(self.best.min()) <= int(self.best.max()) < classes:
            raise ValueError("best has numbers outside the classes")
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
    counts: Annotated[Tensor, TensorOf(torch.int64, ndim=2)]
    pairs: PairsState


class BufferState(Schema):
    """The buffer of one class in `gss-stream`."""

    capacity: Count
    index: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    scores: Annotated[Tensor, TensorOf(torch.float32, ndim=1, finite=True)]
    kept: dict[str, Annotated[Tensor, TensorOf(torch.float32, ndim=2, finite=True)]]

    @model_validator(mode="after")
    def _same_rows(self) -> BufferState:
        if self.kept.keys() not in ({"residuals", "embeddings"}, set()):
            raise ValueError(f"kept has {sorted(self.kept)}")
        for name, part in {"scores": self.scores, **self.kept}.items():
            if len(part) != len(self.index):
                raise ValueError(f"{name} does not have one row for each of {len(self.index)}")
        if len(self.index) > self.capacity:
            raise ValueError(f"index has more than the {self.capacity} rows of the buffer")
        return self


class SamplesState(Schema):
    """Samples and their labels."""

    x: Finite
    y: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]

    @model_validator(mode="after")
    def _same_rows(self) -> SamplesState:
        if self.x.ndim < 1 or len(self.x) != len(self.y):
            raise ValueError(f"x does not have one row for each of {len(self.y)} labels")
        return self


class MethodState(Schema):
    """The state of a method between steps; methods add fields of their own."""

    model_config = ConfigDict(extra="allow")  # methods of users have fields of their own

    structure: dict[str, bool | Count]
    networks: dict[str, Weights]
    memory: MemoryState
    buffers: dict[str, BufferState] = Field(default_factory=dict)  # of gss-stream, by class
    first_epoch: bool = False  # of gss-stream
    kept: SamplesState | None = None  # of joint training
    initial: Weights | None = None  # of joint training


class StreamsState(Schema):
    """The state of all random streams."""

    seed: Count
    device: dict[str, Annotated[Tensor, TensorOf(torch.uint8, ndim=1)]]
    host: dict[str, str]


class TrainingState(Schema):
    """The state of a training."""

    position: PositionState
    losses: Annotated[Tensor, TensorOf(torch.float32, torch.float64, ndim=1, finite=True)]
    method: MethodState
    stage: StageState | None
    streams: StreamsState

    @model_validator(mode="after")
    def _stage_belongs(self) -> TrainingState:
        if self.position.in_stage != (self.stage is not None):
            raise ValueError("stage: a stage is saved exactly in the middle of one")
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
