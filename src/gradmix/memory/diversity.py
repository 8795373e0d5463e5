"""The greedy rule of GSS: keep samples with diverse last-layer gradients.

The gradient of sample i with respect to a linear head is δ_i ⊗ (X_i, 1), so the cosine of two
gradients is cos(δ_i, δ_j) · cos((X_i, 1), (X_j, 1)). Two small matrix products compare a batch
with a buffer, and no gradient is built.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Directions(NamedTuple):
    """Directions of last-layer gradients in factored form; rows have length 1."""

    residuals: Tensor  # (n, C) softmax(z) − y
    embeddings: Tensor  # (n, d + 1) the head's input, and 1 for its bias; (n, d) without bias

    def rows(self, which: Tensor | slice) -> Directions:
        """Return some of them."""
        return Directions(self.residuals[which], self.embeddings[which])

    def cosines(self, other: Directions) -> Tensor:
        """Return the cosine of every gradient with every other, (n, m)."""
        return (self.residuals @ other.residuals.T) * (self.embeddings @ other.embeddings.T)


def gradient_directions(embeddings: Tensor, residuals: Tensor, *, bias: bool = True) -> Directions:
    """Return the directions of the gradients δ ⊗ (X, 1), or δ ⊗ X without bias."""
    inputs = F.pad(embeddings, (0, 1), value=1.0) if bias else embeddings
    return Directions(F.normalize(residuals, dim=1), F.normalize(inputs, dim=1))


class GreedyBuffer:
    """The samples of one class that remain of a stream, by the greedy rule of GSS.

    The score of a sample is the highest cosine of its gradient with a few kept samples, plus 1.
    The buffer keeps every sample while there is room. Afterwards a new sample competes with a
    kept one, drawn in proportion to its score, and replaces it with probability s / (s + c),
    where s and c are the scores of the kept and the new sample. Samples that resemble the rest
    therefore give way to samples that differ.
    """

    def __init__(self, capacity: int, compared: int = 10) -> None:
        self.capacity, self.compared = capacity, compared
        self.index = torch.empty(0, dtype=torch.int64)  # kept positions in the stream
        self.scores = torch.empty(0)
        self._kept: Directions | None = None

    def offer(self, index: Tensor, directions: Directions, generator: torch.Generator) -> None:
        """Process a batch of the stream; no two of its samples compete for one place."""
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
        """Return the highest cosine with some kept samples, plus 1; 1.1 for the first sample."""
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
        """Return the buffer as tensors and plain values."""
        kept = {} if self._kept is None else self._kept._asdict()
        kept = {name: part.clone() for name, part in kept.items()}
        state = {"capacity": self.capacity, "index": self.index.clone()}
        return {**state, "scores": self.scores.clone(), "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved buffer."""
        self.capacity = state["capacity"]
        self.index, self.scores = state["index"].clone(), state["scores"].clone()
        kept = {name: part.clone() for name, part in state["kept"].items()}
        self._kept = Directions(**kept) if kept else None
