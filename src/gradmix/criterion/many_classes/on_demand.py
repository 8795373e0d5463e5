"""The criterion for many classes: score a class pair when a batch contains it.

A full table takes time that grows with the cube of the number of classes and memory that grows
with its square. Here S⁻ is computed for the pairs in the batches only, and S* for the classes
whose partner is replaced. Both costs then grow slightly faster than the number of classes, once
the logits are computed (docs/performance.md).

S* is the best of a shortlist. The gradient of a mix is close to the mix of the gradients. With this
approximation

    score(a, b) ≈ λ² u_a + λ(1−λ) (h_a · X_b + h_b · X_a + v_a + v_b) + (1−λ)² u_b

where δ = softmax(z) − y, h = Ḡ_wᵀ δ, v = ḡ_b · δ and u = δ · s. Apart from terms of a alone, this
is an inner product of a query of a and a key of b (`Linearised`). The best partners are among those
with the largest products. `Clusters` finds these without computing all K² products, because similar
classes have similar partners: the mean query of each of √K clusters finds many candidates, and each
class of the cluster chooses among them by its own query.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradmix.criterion.many_classes.sketch import (
    BLOCK_ELEMENTS,
    Outputs,
    Sketch,
    pair_scores,
    take,
)

SHORTLIST = 16
WIDE = 4096  # candidates of a cluster


class PairsOnDemand:
    """S⁻ and S*, computed for the class pairs that are asked for."""

    def __init__(self, sketch: Sketch, ratios: Sequence[float], block: int | None = None) -> None:
        self.number = len(ratios)  # of mixing ratios
        self.classes = sketch.classes  # (K,)
        self._sketch, self._ratios, self._block = sketch, list(ratios), block
        device = sketch.top.device
        self._lam = torch.tensor(self._ratios, dtype=torch.float64, device=device)
        self._best = torch.full((self.number, len(sketch.classes)), -1, device=device)
        self._asked = self._negative = 0

    @cached_property
    def _shortlist(self) -> Clusters:
        return Clusters(self._sketch)

    @property
    def negative_rate(self) -> float:
        """The share in S⁻ of the pairs asked for; 0 before the first."""
        return self._negative / max(self._asked, 1)

    def harmful(self, which: Tensor, y: Tensor, partner_y: Tensor) -> Tensor:
        """Whether each pair of labels is in S⁻, (S, B)."""
        own, other = (torch.searchsorted(self.classes, labels) for labels in (y, partner_y))
        number = len(self.classes)
        # Each pair is scored once.
        pairs, back = ((which * number + own) * number + other).unique(return_inverse=True)
        first, second = pairs // number, pairs % number
        harmful = self.score(first // number, first % number, second) < 0
        self._asked += len(pairs)
        self._negative += int(harmful.sum())
        return harmful[back]

    def best(self, which: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        """The label S* of each label where `wanted`, (S, B); elsewhere the label itself."""
        number, table = len(self.classes), which.expand_as(y)[wanted]
        own = torch.searchsorted(self.classes, y[wanted])
        searched = (table * number + own).unique()
        searched = searched[self._best.flatten()[searched] < 0]  # each class once
        if len(searched):
            at, first = searched // number, searched % number
            others = self._shortlist.candidates(first, self._lam[at])  # (N, shortlist)
            tables, own_classes = (part.repeat_interleave(others.shape[1]) for part in (at, first))
            scores = self.score(tables, own_classes, others.flatten()).view_as(others)
            best = others.gather(1, scores.argmax(1, keepdim=True))
            self._best.view(-1)[searched] = best.squeeze(1)
        result = y.clone()
        result[wanted] = self.classes[self._best[table, own]]
        return result

    def score(self, table: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Return the scores of class pairs, given as positions, at the given ratios."""
        return pair_scores(self._sketch, own, other, self._lam[table], self._block)

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the shortlist, which is rebuilt."""
        return {
            "sketch": self._sketch._asdict(),
            "ratios": self._ratios,
            "search": "clusters",  # earlier versions had another search
            "best": self._best.clone(),
            "asked": [self._asked, self._negative],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], block: int | None = None) -> PairsOnDemand:
        """Rebuild saved pairs."""
        pairs = cls(Sketch(**state["sketch"]), state["ratios"], block)
        pairs._best = state["best"].clone()
        pairs._asked, pairs._negative = state["asked"]
        return pairs


# --- shortlists ---------------------------------------------------------------------------------


def class_vectors(sketch: Sketch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the means X (K, d), h (K, d), v (K,) and u (K,) over the exemplars of each class.

    The sketch estimates the softmax.
    """
    position = torch.repeat_interleave(sketch.counts)
    width = 2 * sketch.top.shape[1] * sketch.embeddings.shape[1] + 4 * len(sketch.tail)
    every = torch.arange(len(position), device=position.device)
    outputs, samples, bias = Outputs(sketch), sketch.embeddings, sketch.biases[:, 1]
    h, v = torch.empty_like(samples), samples.new_empty(len(samples))
    u = torch.empty_like(v)
    for index in every.split(max(1, BLOCK_ELEMENTS // width)):
        # Write into one tensor: many small results between large blocks would fragment memory.
        X, top = samples[index], sketch.top[position[index]]
        z, s = (values.squeeze(1) for values in outputs.at(top, X[:, None]))
        weights = outputs.log_weights(top, torch.zeros_like(top), top.shape[1])
        delta = (z + weights.to(z)).softmax(1)
        delta[:, 0] -= 1  # its own label
        on_top, on_tail = delta.split([top.shape[1], len(sketch.tail)], 1)
        h_top = (on_top[:, None] @ take(sketch.rows, top)[:, :, 1]).squeeze(1)
        h[index] = h_top + on_tail @ sketch.rows[sketch.tail, 1]
        v[index] = (on_top * bias[top]).sum(1) + on_tail @ bias[sketch.tail]
        u[index] = (delta * s).sum(1)

    def mean(values: Tensor) -> Tensor:
        total = values.new_zeros(len(sketch.classes), *values.shape[1:])
        total.index_add_(0, position, values)
        return total / sketch.counts.view(-1, *(1,) * (values.ndim - 1))

    return mean(samples), mean(h), mean(v), mean(u)


class Linearised:
    """The linearised criterion of the classes in a sketch, as queries and keys."""

    def __init__(self, sketch: Sketch) -> None:
        X, h, v, u = class_vectors(sketch)
        self.keys = torch.cat([h, X, v[:, None], u[:, None]], 1)
        self._own = torch.cat([X, h, torch.ones_like(v)[:, None]], 1)

    def queries(self, own: Tensor, lam: Tensor | float) -> Tensor:
        """Return queries of the classes at `own`, (N, 2 d + 2), to multiply with the keys."""
        ratio = torch.as_tensor(lam).to(self.keys).expand(len(own))[:, None]
        return torch.cat([ratio * self._own[own], 1 - ratio], 1)


class Clusters:
    """Finds candidates among those that suit a whole cluster of classes."""

    def __init__(self, sketch: Sketch, size: int = SHORTLIST, wide: int = WIDE) -> None:
        self._linear = linear = Linearised(sketch)
        self._wide, self._size = (min(number, len(linear.keys)) for number in (wide, size))
        d = sketch.embeddings.shape[1]
        h, X = linear.keys[:, :d], linear.keys[:, d : 2 * d]
        norms = [max(float(part.norm(dim=1).mean()), 1e-30) for part in (h, X)]
        points = torch.cat([h / norms[0], X / norms[1]], 1)
        self._cluster = k_means(points, max(1, int(len(points) ** 0.5)))
        self._shared: dict[float, Tensor] = {}

    def candidates(self, own: Tensor, lam: Tensor) -> Tensor:
        """Return positions of candidates for the classes at `own`, (N, shortlist)."""
        result = own.new_empty(len(own), self._size)
        for ratio in lam.unique().tolist():
            if ratio not in self._shared:
                self._shared[ratio] = self._of_clusters(ratio)
            rows = (lam == ratio).nonzero().squeeze(1)
            rows = rows[self._cluster[own[rows]].argsort(stable=True)]
            sizes = self._cluster[own[rows]].bincount(minlength=len(self._shared[ratio]))
            for group, shared in zip(rows.split(sizes.tolist()), self._shared[ratio], strict=True):
                for part in group.split(BLOCK_ELEMENTS // self._wide):
                    scores = self._linear.queries(own[part], ratio) @ self._linear.keys[shared].T
                    result[part] = shared[scores.topk(self._size, dim=1).indices]
        return result

    def _of_clusters(self, lam: float) -> Tensor:
        """Return the candidates of each cluster, (clusters, wide)."""
        keys, sizes = self._linear.keys, self._cluster.bincount()
        queries = self._linear.queries(torch.arange(len(keys), device=keys.device), lam)
        total = keys.new_zeros(len(sizes), keys.shape[1])
        total.index_add_(0, self._cluster, queries)
        parts = (total / sizes[:, None]).split(max(1, BLOCK_ELEMENTS // len(keys)))
        return torch.cat([(part @ keys.T).topk(self._wide, dim=1).indices for part in parts])


def k_means(points: Tensor, number: int, rounds: int = 5) -> Tensor:
    """Return the cluster of every point, (n,), by Lloyd's algorithm from evenly spaced points.

    The start is deterministic, because clusters only guide a search. Empty clusters are dropped.
    """
    centres = points[torch.linspace(0, len(points) - 1, number, device=points.device).long()]
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        counts = nearest.bincount(minlength=number)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts[:, None] > 0, total / counts.clamp(min=1)[:, None], centres)
    cluster: Tensor = _nearest(points, centres).unique(return_inverse=True)[1]
    return cluster


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Return the centre nearest to each point, (n,)."""
    half = centres.pow(2).sum(1) / 2
    step = max(1, BLOCK_ELEMENTS // len(centres))
    return torch.cat([(half - part @ centres.T).argmin(1) for part in points.split(step)])
