"""The declared state in the middle of a stage: optimizer, planned batches, harmful pairs.

Shapes that depend on the data and the optimizer are checked when the state is loaded.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from gradmix.files.schema import Schema, TensorOf, refuse

Count = Annotated[int, Field(ge=0, le=2**53)]
Rows = Annotated[Tensor, TensorOf(torch.int64, ndim=2)]
Mask = Annotated[Tensor, TensorOf(torch.bool, ndim=2)]
AnyTensor = Annotated[Tensor, TensorOf()]
Ratio = Annotated[float, Field(ge=0, le=1)]


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

    classes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
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
    search: str
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
    counts: Annotated[Tensor, TensorOf(torch.int64, ndim=2)]
    pairs: PairsState
