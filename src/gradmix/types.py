"""The small bundles that pass between the parts of gradmix, each with a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.errors import InputError


class Samples(NamedTuple):
    """Inputs and their labels: uint8 images (N, C, H, W) or float32 rows (N, d); int64 (N,)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """The classes that arrive together, with their data."""

    number: int
    classes: tuple[int, ...]
    train: Samples
    test: Samples


class LinearHead(NamedTuple):
    """A network's last layer, as numbers."""

    weight: Tensor  # (C, d)
    bias: Tensor | None = None  # (C,)

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Logits of embeddings, (..., d)."""
        return torch.nn.functional.linear(embeddings, self.weight, self.bias)


class Partners(NamedTuple):
    """With whom each row of S batches of B rows is mixed; all (S, B).

    Row i of a batch is mixed with its row `rows[i]`, unless `replaced[i]`, in which case it is
    mixed with pool sample `drawn[i]`. `drawn` is None when nobody comes from outside the batch.
    """

    rows: Tensor
    replaced: Tensor | None = None
    drawn: Tensor | None = None


class MixedBatch(NamedTuple):
    """What the network trains on.

    `targets` are soft labels (B, C), or the hard labels (B,) of an unmixed batch. Where the
    mix happens on hidden states, `mix` is applied by the model at layer `at`, and `x` holds
    the batch, followed by its partners if these come from outside the batch.
    """

    x: Tensor
    targets: Tensor
    mix: Callable[[Tensor], Tensor] | None = None
    at: int | None = None


@dataclass(frozen=True)
class PairTable:
    """Which class pairs help the memory and which harm it (Algorithm 1, steps 8 and 9).

    Rows and columns follow `classes`; pairs are ordered, and the mixing ratio weights the row.
    """

    classes: Tensor  # (K,) the class labels
    scores: Tensor  # (K, K) mean inner product of the mixed and the memory's gradient
    negative: Tensor  # (K, K) bool, S⁻: scores strictly below zero
    optimal: Tensor  # (K,) S*: for each row the column of its highest score

    @classmethod
    def from_scores(cls, classes: Tensor, scores: Tensor) -> PairTable:
        """S⁻ and S* of the given scores."""
        if scores.shape != (len(classes), len(classes)):
            raise InputError(
                f"scores has shape {tuple(scores.shape)}; "
                f"{len(classes)} classes need ({len(classes)}, {len(classes)})"
            )
        return cls(classes, scores, scores < 0, scores.argmax(dim=1))

    @property
    def negative_rate(self) -> float:
        """The share of class pairs in S⁻."""
        return float(self.negative.to(torch.float64).mean())
