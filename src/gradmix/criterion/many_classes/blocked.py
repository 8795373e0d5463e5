"""Exact scores of any number of classes, from embeddings, with bounded memory.

Neither logits of all exemplars nor scores of all pairs are ever stored: both are computed for one
block of classes after another, with the products of `scores.py`; the caller keeps what it wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.criterion.gradients import HeadGradient, projections
from gradmix.criterion.pairing import class_positions
from gradmix.criterion.scores import BLOCK_ELEMENTS, Scored, sample_scores
from gradmix.types import LinearHead


class Described(NamedTuple):
    """Exemplars by their embeddings, with all that logits and projections follow from."""

    embeddings: Tensor  # (n, d), in order of the labels
    labels: Tensor  # (n,)
    head: LinearHead
    gradient: HeadGradient  # ḡ_buf

    def scored(self, index: Tensor, labels: Tensor) -> Scored:
        """Logits and projections of some, (..., C)."""
        X = self.embeddings[index]
        return Scored(self.head(X), projections(X, self.gradient), labels)


def score_rows(
    samples: Described,
    rows: Tensor,
    lam: float,
    *,
    pairing: str = "one-to-one",
    block: int = BLOCK_ELEMENTS,
) -> Iterator[Tensor]:
    """Scores of the classes at `rows` with all, (rows, K), a block of rows after another.

    A row is what Algorithm 1 has for a class: S⁻ is where it is negative, S* where it is highest.
    `block` is how many numbers a block of logits or scores may have.
    """
    classes, counts = samples.labels.unique_consecutive(return_counts=True)
    left, right = class_positions(counts, pairing)
    most, outputs = int(counts.max()), len(samples.head.weight)
    side = max(1, min(int(block**0.5), block // outputs))
    for part in rows.split(side):
        total = samples.embeddings.new_zeros(len(part), len(classes))
        number = torch.zeros_like(total)
        for k in range(left.shape[1]):
            own = samples.scored(left[part, k], classes[part])
            for columns in torch.arange(len(classes), device=rows.device).split(side):
                other = samples.scored(right[columns, k], classes[columns])
                scores = sample_scores(own, other, lam)
                used = _used(k, counts[part, None], counts[columns], most, pairing)
                total[:, columns] += scores.mul_(used)
                number[:, columns] += used
        yield total.div_(number)


def _used(k: int, own: Tensor, other: Tensor, most: int, pairing: str) -> Tensor:
    """Whether two classes of so many exemplars have a sample pair k."""
    if pairing == "one-to-one":
        return k < torch.maximum(own, other)
    return (k // most < own) & (k % most < other)
