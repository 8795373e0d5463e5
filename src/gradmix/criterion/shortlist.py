"""Which classes are worth scoring as the best partner of a class, where all are too many.

Two ways, each a few candidates for every class asked for; `on_demand.py` scores them and takes the
best.

* "neighbours". The gradient of a mix is near the mix of the gradients, and with that

      score(a, b) ≈ λ² u_a + λ(1−λ) (h_a · X_b + h_b · X_a + v_a + v_b) + (1−λ)² u_b

  where δ = softmax(z) − y, h = Ḡ_wᵀ δ, v = ḡ_b · δ and u = δ · s: an inner product of what is known
  of a and what is known of b, which an index of nearest neighbours (faiss) searches. The softmax
  of a mix keeps it from being more than a way to find candidates.
* "clusters". Classes that resemble each other have like partners. The class nearest the centre of
  each cluster is scored with the other centres' and then with the members of the best clusters;
  the best of these are the candidates of its whole cluster.

A few classes help nearly everybody: those with the highest u. An index or an unlucky cluster may
miss them, so they are half of every shortlist.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.criterion.sketch import (
    BLOCK_ELEMENTS,
    Sketch,
    named_in_tail,
    places_in_tail,
    take,
)
from gradmix.errors import InputError

SHORTLIST = 32
PROBED = 4  # clusters whose members are looked at

Score = Callable[[Tensor, Tensor, Tensor], Tensor]  # places of classes a, b and λ → scores


class ClassVectors(NamedTuple):
    """Means over a class's exemplars."""

    X: Tensor  # (K, d)
    h: Tensor  # (K, d)
    v: Tensor  # (K,)
    u: Tensor  # (K,)

    @property
    def joined(self) -> Tensor:
        """Embeddings and h of like size, for distances between classes, (K, 2 d)."""
        return torch.cat([part / _mean_norm(part) for part in self[:2]], 1)


def class_vectors(sketch: Sketch, block: int = BLOCK_ELEMENTS) -> ClassVectors:
    """Of every class in a sketch, with the softmax of its samples as far as the sketch knows it."""
    position = torch.repeat_interleave(sketch.counts)
    width = 2 * sketch.top.shape[1] * sketch.embeddings.shape[1] + 4 * len(sketch.tail)
    every, place = torch.arange(len(position), device=position.device), places_in_tail(sketch)
    X = sketch.embeddings
    h, v, u = torch.empty_like(X), X.new_empty(len(X)), X.new_empty(len(X))
    for index in every.split(max(1, block // width)):
        # Into one place: many small results between large blocks would leave memory in pieces.
        h[index], v[index], u[index] = _sample_vectors(sketch, index, position[index], place)

    def mean(values: Tensor) -> Tensor:
        total = values.new_zeros(len(sketch.classes), *values.shape[1:])
        total.index_add_(0, position, values)
        return total / sketch.counts.view(-1, *(1,) * (values.ndim - 1))

    return ClassVectors(*(mean(values) for values in (sketch.embeddings, h, v, u)))


def _sample_vectors(
    sketch: Sketch, index: Tensor, position: Tensor, place: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """h, v and u of some samples."""
    top = sketch.top[position]
    z, s = torch.cat([sketch.on_top[index], sketch.on_tail[index]], 2).unbind(1)
    named = named_in_tail(place[top], len(sketch.tail))
    free = (~named).sum(1, keepdim=True)
    weight = ((len(sketch.rows) - top.shape[1]) / free.clamp(min=1)).log()
    weights = torch.cat([torch.zeros_like(top), torch.where(named, -torch.inf, weight)], 1)
    delta = (z + weights.to(z)).softmax(1)
    delta[:, 0] -= 1  # its own label
    on_top, on_tail = delta.split([top.shape[1], len(sketch.tail)], 1)
    h = (on_top[:, None] @ take(sketch.rows, top)[:, :, 1]).squeeze(1)
    h += on_tail @ sketch.rows[sketch.tail, 1]
    bias = sketch.biases[:, 1]
    v = (on_top * bias[top]).sum(1) + on_tail @ bias[sketch.tail]
    return h, v, (delta * s).sum(1)


def hubs(vectors: ClassVectors, size: int) -> Tensor:
    """Places of the classes that help most by themselves, half a shortlist."""
    return vectors.u.topk(min(size // 2, len(vectors.u))).indices


def _mean_norm(rows: Tensor) -> float:
    norms = rows.abs() if rows.ndim == 1 else rows.norm(dim=1)
    return max(float(norms.mean()), 1e-30)


class Neighbours:
    """Candidates by the nearest neighbours of a class in faiss's index of all classes."""

    def __init__(self, sketch: Sketch, score: Score, size: int = SHORTLIST) -> None:
        faiss: Any = importlib.import_module("faiss")
        self._vectors = vectors = class_vectors(sketch)
        self._hubs = hubs(vectors, size)
        self._size = min(size - len(self._hubs), len(vectors.u))
        # Columns are brought to one size, which queries undo: lists of the index depend on it.
        self._scale = [_mean_norm(part) for part in vectors]
        keys = torch.cat([*self._scaled(vectors.h, vectors.X), self._one(vectors)], 1)
        faiss.omp_set_num_threads(torch.get_num_threads())
        number, lists = len(keys), max(1, int(2 * len(keys) ** 0.5))
        flat = faiss.IndexFlatIP(keys.shape[1])
        if number < 1000:
            self._index = flat
        else:
            self._index = faiss.IndexIVFFlat(flat, keys.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
            self._index.cp.niter = 5
            self._index.cp.max_points_per_centroid = 64
            self._index.cp.seed = 0
            self._index.nprobe = max(8, lists // 16)
            self._index.train(keys.cpu().numpy())
        self._index.add(keys.cpu().numpy())

    def _scaled(self, h: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        return h / self._scale[1], X / self._scale[0]

    def _one(self, vectors: ClassVectors) -> Tensor:
        return torch.stack([vectors.v / self._scale[2], vectors.u / self._scale[3]], 1)

    def candidates(self, own: Tensor, lam: Tensor) -> Tensor:
        """Places of classes for those at `own`, (N, shortlist); -1 where there are no more."""
        vectors, cross = self._vectors, (lam * (1 - lam))[:, None]
        X_scale, h_scale, v_scale, u_scale = self._scale
        parts = [vectors.X[own] * cross * h_scale, vectors.h[own] * cross * X_scale]
        parts += [cross * v_scale, (1 - lam)[:, None] ** 2 * u_scale]
        queries = F.normalize(torch.cat([part.to(vectors.X) for part in parts], 1), dim=1)
        found = self._index.search(queries.float().cpu().numpy(), self._size)[1]
        found = torch.from_numpy(found).to(own.device)
        return torch.cat([found, self._hubs.expand(len(own), -1)], 1)


class Clusters:
    """Candidates that are shared by a whole cluster of classes."""

    def __init__(self, sketch: Sketch, score: Score, size: int = SHORTLIST) -> None:
        vectors = class_vectors(sketch)
        points = vectors.joined
        self._hubs = hubs(vectors, size)
        self._score, self._size = score, min(size - len(self._hubs), len(points))
        self._cluster, self._centre = k_means(points, max(1, int(len(points) ** 0.5)))
        self._found: dict[float, Tensor] = {}

    def candidates(self, own: Tensor, lam: Tensor) -> Tensor:
        """Places of classes for those at `own`, (N, shortlist); -1 where there are no more."""
        result = torch.full((len(own), self._size), -1, device=own.device)
        for ratio in lam.unique().tolist():
            if ratio not in self._found:
                self._found[ratio] = self._candidates(ratio)
            chosen = lam == ratio
            result[chosen] = self._found[ratio][self._cluster[own[chosen]]]
        return torch.cat([result, self._hubs.expand(len(own), -1)], 1)

    def _candidates(self, lam: float) -> Tensor:
        """The shortlist of every cluster, (clusters, shortlist)."""
        centre, number = self._centre, len(self._centre)
        left, right = (part.flatten() for part in torch.meshgrid(centre, centre, indexing="ij"))
        between = self._score(left, right, torch.full_like(left, lam, dtype=torch.float64))
        probed = between.view(number, number).topk(min(PROBED, number), dim=1).indices
        looked_at = torch.zeros(number, number, dtype=torch.bool, device=centre.device)
        looked_at.scatter_(1, probed, True)
        of, member = looked_at[:, self._cluster].nonzero().unbind(1)  # in order of the cluster
        scores = self._score(centre[of], member, torch.full_like(of, lam, dtype=torch.float64))
        order = scores.argsort(descending=True, stable=True)
        order = order[of[order].argsort(stable=True)]  # by cluster, the best first
        sizes = of.bincount(minlength=number)
        rank = torch.arange(len(of), device=of.device)
        rank -= torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        first = rank < self._size
        result = torch.full((number, self._size), -1, device=of.device)
        result[of[order][first], rank[first]] = member[order][first]
        return result


def k_means(points: Tensor, number: int, rounds: int = 5) -> tuple[Tensor, Tensor]:
    """The cluster of every point, (n,), and the point nearest to each cluster's centre.

    Lloyd's algorithm from evenly spaced points: it needs no luck, for clusters only guide a search.
    Clusters that end up empty are dropped.
    """
    centres = points[torch.linspace(0, len(points) - 1, number, device=points.device).long()]
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        counts = nearest.bincount(minlength=number)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts[:, None] > 0, total / counts.clamp(min=1)[:, None], centres)
    kept, cluster = _nearest(points, centres).unique(return_inverse=True)
    distance = (points - centres[kept][cluster]).pow(2).sum(1)
    order = distance.argsort(stable=True)
    order = order[cluster[order].argsort(stable=True)]
    sizes = cluster.bincount()
    return cluster, order[sizes.cumsum(0) - sizes]


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The centre nearest to each point."""
    half = centres.pow(2).sum(1) / 2
    step = max(1, BLOCK_ELEMENTS // len(centres))
    return torch.cat([(half - part @ centres.T).argmin(1) for part in points.split(step)])


def require_faiss() -> None:
    """Say what to do if it is not there: it is an extra."""
    if importlib.util.find_spec("faiss") is None:
        raise InputError(
            "criterion is 'neighbours', which needs faiss: pip install 'gradmix[many]', or give "
            "criterion='clusters'"
        )


SHORTLISTS: dict[str, type[Neighbours] | type[Clusters]] = {
    "neighbours": Neighbours,
    "clusters": Clusters,
}
