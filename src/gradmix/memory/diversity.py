"""Keeping what differs: the greedy rule of GSS on last-layer gradients, batch by batch.

The gradient of sample i with respect to a linear head is δ_i ⊗ (X_i, 1), so the cosine of two
gradients is cos(δ_i, δ_j) · cos((X_i, 1), (X_j, 1)): no gradient is ever built, and a batch is
compared with a buffer by two small matrix products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Directions(NamedTuple):
    """Directions of last-layer gradients in factored form, rows of length 1."""

    residuals: Tensor  # (n, C) softmax(z) − y
    embeddings: Tensor  # (n, d + 1) the head's input, and 1 for its bias, if it has one

    def rows(self, which: Tensor | slice) -> Directions:
        """Some of them."""
        return Directions(self.residuals[which], self.embeddings[which])

    def cosines(self, other: Directions) -> Tensor:
        """Of every gradient with every other, (n, m)."""
        return (self.residuals @ other.residuals.T) * (self.embeddings @ other.embeddings.T)


def gradient_directions(embeddings: Tensor, residuals: Tensor, *, bias: bool = True) -> Directions:
    """Directions of the gradients δ ⊗ (X, 1); δ ⊗ X for a head without bias."""
    inputs = F.pad(embeddings, (0, 1), value=1.0) if bias else embeddings
    return Directions(F.normalize(residuals, dim=1), F.normalize(inputs, dim=1))


class GreedyBuffer:
    """The samples of one class that a stream left behind, by the greedy rule of GSS.

    A sample's score is the highest cosine of its gradient with those of a few kept samples.
    While there is room it is kept. Then it competes with a kept sample drawn in proportion to
    how alike that one was to the others, and takes its place with probability
    s / (s + c), where s and c are the scores of the kept and the new one, plus 1: what
    resembles the rest gives way to what differs.
    """

    def __init__(self, capacity: int, compared: int = 10) -> None:
        self.capacity, self.compared = capacity, compared
        self.index = torch.empty(0, dtype=torch.int64)  # of the kept samples in the stream
        self.scores = torch.empty(0)
        self._kept: Directions | None = None

    def offer(self, index: Tensor, directions: Directions, generator: torch.Generator) -> None:
        """Take note of a batch of the stream; no two of it compete for one place."""
        while len(index):
            number = self.capacity if len(self.index) >= self.capacity else 1
            first, rest = slice(number), slice(number, None)
            self._offer(index[first].clone(), directions.rows(first), generator)
            index, directions = index[rest], directions.rows(rest)

    def _offer(self, index: Tensor, directions: Directions, generator: torch.Generator) -> None:
        scores = self._similarity(directions, generator)
        if self._kept is None:
            self.index, self.scores = index, scores
            self._kept = Directions(*(part.clone() for part in directions))
        elif len(self.index) < self.capacity:
            self.index = torch.cat([self.index, index])
            self.scores = torch.cat([self.scores, scores])
            self._kept = Directions(
                *(torch.cat(pair) for pair in zip(self._kept, directions, strict=True))
            )
        else:
            self._compete(index, scores, directions, generator)

    def _similarity(self, directions: Directions, generator: torch.Generator) -> Tensor:
        """The highest cosine with some of the kept ones, + 1; the first of all has 0.1 + 1."""
        if self._kept is None:
            return torch.full_like(directions.residuals[:, 0], 1.1)
        device = directions.residuals.device
        some = torch.randperm(len(self.index), generator=generator, device=device)[: self.compared]
        return directions.cosines(self._kept.rows(some)).amax(dim=1) + 1

    def _compete(
        self, index: Tensor, scores: Tensor, directions: Directions, generator: torch.Generator
    ) -> None:
        assert self._kept is not None
        low, high = self.scores.min(), self.scores.max()
        chance = (self.scores - low) / (high - low + 0.01) + 1e-6
        places = torch.multinomial(chance, len(index), generator=generator)
        kept = self.scores[places]
        uniform = torch.rand(len(index), generator=generator, device=scores.device)
        won = uniform < kept / (kept + scores + 1e-12)
        places = places[won]
        self.index[places], self.scores[places] = index[won], scores[won]
        for ours, theirs in zip(self._kept, directions, strict=True):
            ours[places] = theirs[won]

    def state_dict(self) -> dict[str, Any]:
        """All but the generator."""
        kept = {} if self._kept is None else self._kept._asdict()
        kept = {name: part.clone() for name, part in kept.items()}
        state = {"capacity": self.capacity, "index": self.index.clone()}
        return {**state, "scores": self.scores.clone(), "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved buffer."""
        self.capacity = state["capacity"]
        self.index, self.scores = state["index"].clone(), state["scores"].clone()
        kept = {name: part.clone() for name, part in state["kept"].items()}
        self._kept = Directions(**kept) if kept else None
