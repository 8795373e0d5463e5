"""Rules that choose exemplars: which samples of a class the memory keeps.

Herding and k-means return a priority for every sample; the memory keeps the lowest of each class.
The greedy rule of GSS keeps samples with diverse last-layer gradients. The gradient of sample i
with respect to a linear head is δ_i ⊗ (X_i, 1), so the cosine of two gradients is
cos(δ_i, δ_j) · cos((X_i, 1), (X_j, 1)). Two small matrix products compare a batch with a buffer,
and no gradient is built.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


def class_priorities(
    rule: str, features: Tensor, labels: Tensor, quota: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the priorities (N,) of samples by "herding" or "kmeans" of their features (N, d).

    A priority is a rank as a share of the class, so the more samples of a class arrive at once,
    the more of its exemplars come from there. `quota` is the number of exemplars of each class.
    """
    priority = torch.empty(len(labels), dtype=torch.float64, device=labels.device)
    for label in labels.unique().tolist():
        rows, most = labels == label, int(quota[label])
        if rule == "herding":
            ranks = herding_ranks(features[rows], most)
        else:
            ranks = kmeans_ranks(features[rows], most, generator)
        priority[rows] = (ranks + 0.5) / len(ranks)
    return priority


def herding_ranks(features: Tensor, most: int) -> Tensor:
    """Return the rank at which herding chooses each sample of one class, (n,).

    Each turn chooses the sample that brings the mean of the chosen nearest to the mean of all
    (Welling 2009, as used by iCaRL, Rebuffi et al., CVPR 2017). Features (n, d) are scaled to
    length 1. All samples after the first `most` share the last rank.
    """
    x = F.normalize(features, dim=1)
    mean = x.mean(dim=0)
    ranks = torch.full((len(x),), float(len(x)), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(mean)
    for turn in range(min(most, len(x))):
        distance = (mean - (total + x) / (turn + 1)).square().sum(dim=1)
        distance[ranks < len(x)] = torch.inf  # choose no sample twice
        chosen = int(distance.argmin())
        ranks[chosen] = turn
        total = total + x[chosen]
    return ranks


def kmeans_ranks(features: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return the rank at which each sample of one class is chosen, (n,).

    The samples are clustered into as many clusters as exemplars. The exemplars are the samples
    nearest to the centres. The largest cluster comes first, so it is the last to lose its exemplar
    if the quota shrinks. All samples after the first `most` share the last rank.
    """
    from sklearn.cluster import KMeans  # slow to import and rarely needed
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    number = min(most, len(features))
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    clusters = KMeans(number, n_init=1, random_state=seed)
    # With several threads, the order of summation and thus the last bits would vary.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different samples than clusters
        distance = torch.from_numpy(clusters.fit_transform(features.float().numpy(force=True)))
    sizes = torch.from_numpy(clusters.labels_).long().bincount(minlength=number)
    ranks = torch.full((len(features),), float(len(features)), dtype=torch.float64)
    for turn, centre in enumerate(sizes.argsort(descending=True, stable=True).tolist()):
        chosen = int(distance[:, centre].argmin())
        distance[chosen] = torch.inf  # choose no sample twice
        ranks[chosen] = turn
    return ranks.to(features.device)


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
        if self._kept is None:
            self.index, self.scores = index, torch.full_like(directions.residuals[:, 0], 1.1)
            self._kept = Directions(*(part.clone() for part in directions))
            return
        device = directions.residuals.device
        some = torch.randperm(len(self.index), generator=generator, device=device)[: self.compared]
        scores = directions.cosines(self._kept.rows(some)).amax(dim=1) + 1
        if len(self.index) < self.capacity:
            self.index = torch.cat([self.index, index])
            self.scores = torch.cat([self.scores, scores])
            self._kept = Directions(
                *(torch.cat(pair) for pair in zip(self._kept, directions, strict=True))
            )
            return
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
