"""Small named bundles that pass between the parts of gradmix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Inputs and their labels."""

    x: Tensor  # uint8 images (N, C, H, W) or float32 rows (N, d)
    y: Tensor  # int64 (N,)


@dataclass(frozen=True)
class Task:
    """Classes that arrive together, with their data."""

    number: int
    classes: tuple[int, ...]
    train: Samples
    test: Samples


class LinearHead(NamedTuple):
    """The weights of a network's last layer."""

    weight: Tensor  # (C, d)
    bias: Tensor | None = None  # (C,)

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Return logits (..., C) of embeddings (..., d)."""
        return torch.nn.functional.linear(embeddings, self.weight, self.bias)


class Partners(NamedTuple):
    """The partners of S batches of B rows, each (S, B).

    Row i of a batch is mixed with row `rows[i]` of the batch. If `replaced[i]` is true, it is
    mixed with pool sample `drawn[i]` instead. If all partners come from the pool, `replaced` is
    true everywhere and `rows` has no effect.
    """

    rows: Tensor  # int64
    replaced: Tensor | None = None  # bool; None if all partners come from the batch
    drawn: Tensor | None = None  # int64


class MixedBatch(NamedTuple):
    """A batch that the network trains on.

    A mix of hidden states is a function `mix` that the model applies at mix point `at`. `x` then
    holds the batch, followed by its partners if these come from outside the batch.
    """

    x: Tensor  # network inputs
    targets: Tensor  # soft labels (B, C), or hard labels (B,) of an unmixed batch
    mix: Callable[[Tensor], Tensor] | None = None
    at: int | None = None
