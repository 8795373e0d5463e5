"""Scores of chosen class pairs, without time or memory that grows with the square of classes.

The softmax of a mix of two samples has its weight on the few outputs that either sample favours;
the rest is a long tail of small terms. For every class, a sketch keeps the `top` outputs that its
exemplars favour, where scores are exact. One random sample of all outputs estimates the sum over
the tail. If this sample is as large as the head, the score is exact.

Logits and projections are linear in the embedding. Those of a mix are therefore inner products
of the mixed embedding with rows of the head and of ḡ_buf. All logits are needed only once, block
by block, to find the favourites and ḡ_buf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.criterion.scores import HeadGradient
from gradmix.types import LinearHead

TOP = 64
TAIL = 1024
MOST_EXEMPLARS = 8
BLOCK_ELEMENTS = 2**21
"""Numbers computed at once; a few such blocks are in memory at a time. Larger blocks do not fit
the processor's caches and are slower."""


class Sketch(NamedTuple):
    """What is kept of K classes with n exemplars and M sample pairs per class pair."""

    classes: Tensor  # (K,) the class labels
    counts: Tensor  # (K,) exemplars of each class
    left: Tensor  # (K, M) the exemplar of each class in sample pair m, as first
    right: Tensor  # (K, M) the same, as second
    embeddings: Tensor  # (n, d)
    rows: Tensor  # (C, 2, d) weights of the head and of ḡ_buf
    biases: Tensor  # (C, 2)
    top: Tensor  # (K, T) favourite outputs of each class, its own label first
    tail: Tensor  # (R,) the random sample of outputs, sorted


def logits_pass(
    embeddings: Tensor,
    labels: Tensor,
    head: LinearHead,
    weights: Tensor,
    top: int,
    block: int | None = None,
    *,
    fixed_bias: bool = False,
) -> tuple[HeadGradient, Tensor]:
    """Return ḡ_buf and the favourite outputs of every class, (K, T).

    This is the only part whose cost grows with n · C.

    Args:
        embeddings: (n, d), sorted by label.
        labels: (n,), sorted.
        head: The last layer.
        weights: Weight of each exemplar in ḡ_buf, (n,).
        top: Number of favourite outputs T.
        block: Numbers computed at once.
        fixed_bias: See `make_sketch`.
    """
    block = BLOCK_ELEMENTS if block is None else block
    classes, counts = labels.unique_consecutive(return_counts=True)
    outputs = len(head.weight)
    gradient = torch.zeros_like(head.weight)
    bias = torch.zeros_like(head.weight[:, 0])
    top = min(top, outputs)
    favourites = labels.new_empty(len(classes), top)
    for first, last, start, end in _blocks_of_classes(counts, max(1, block // outputs)):
        x, y = embeddings[start:end], labels[start:end]
        delta = head(x).softmax(1)
        position = torch.repeat_interleave(counts[first:last])
        each = x.new_zeros(last - first, outputs).index_add_(0, position, delta)
        each[torch.arange(last - first), classes[first:last]] = torch.inf  # own label first
        favourites[first:last] = each.topk(top, dim=1).indices
        delta[torch.arange(len(y)), y] -= 1
        delta.mul_(weights[start:end, None])
        gradient.addmm_(delta.T, x)
        bias += delta.sum(0)
    trained = head.bias is not None and not fixed_bias
    return HeadGradient(gradient, bias if trained else None), favourites


def _blocks_of_classes(counts: Tensor, samples: int) -> list[tuple[int, int, int, int]]:
    """Return blocks of whole classes: first and last class, first and last sample."""
    ends = [0, *counts.cumsum(0).tolist()]
    blocks, first = [], 0
    while first < len(counts):
        last = first + 1
        while last < len(counts) and ends[last + 1] - ends[first] <= samples:
            last += 1
        blocks.append((first, last, ends[first], ends[last]))
        first = last
    return blocks


def make_sketch(
    embeddings: Tensor,
    labels: Tensor,
    head: LinearHead,
    weights: Tensor,
    *,
    fixed_bias: bool = False,
    all_pairs: bool = False,
    most: int = MOST_EXEMPLARS,
    top: int = TOP,
    tail: int = TAIL,
    block: int | None = None,
    generator: torch.Generator | None = None,
) -> Sketch:
    """Return the sketch of exemplars.

    Args:
        embeddings: (n, d).
        labels: (n,).
        head: The last layer.
        weights: Weight of each exemplar in ḡ_buf, (n,): 0 outside the memory, with sum 1.
        fixed_bias: Whether no step changes the bias of the head; ḡ_buf then has no part for it.
        all_pairs: How exemplars of two classes are paired, see `class_scores`.
        most: Largest number of exemplars of a class that are scored.
        top: Number of favourite outputs of a class.
        tail: Size of the random sample of outputs.
        block: Numbers computed at once.
        generator: Draws the sample of outputs.
    """
    order = labels.argsort(stable=True)
    embeddings, labels, weights = embeddings[order], labels[order], weights[order]
    gradient, favourites = logits_pass(
        embeddings, labels, head, weights, top, block, fixed_bias=fixed_bias
    )
    return describe(
        embeddings,
        labels,
        head,
        gradient,
        favourites,
        all_pairs=all_pairs,
        most=most,
        tail=tail,
        generator=generator,
    )


def describe(
    embeddings: Tensor,
    labels: Tensor,
    head: LinearHead,
    gradient: HeadGradient,
    favourites: Tensor,
    *,
    all_pairs: bool = False,
    most: int = MOST_EXEMPLARS,
    tail: int = TAIL,
    generator: torch.Generator | None = None,
) -> Sketch:
    """Return the sketch of exemplars, sorted by label, from the results of `logits_pass`."""
    classes, counts = labels.unique_consecutive(return_counts=True)
    rank = torch.arange(len(labels), device=labels.device)
    rank -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    embeddings, labels = embeddings[rank < most], labels[rank < most]
    counts = counts.clamp(max=most)
    rows = torch.stack([head.weight, gradient.weight], 1)
    zero = torch.zeros_like(head.weight[:, 0])
    biases = torch.stack([zero if b is None else b for b in (head.bias, gradient.bias)], 1)
    device, outputs = labels.device, len(head.weight)
    drawn = torch.randperm(outputs, generator=generator, device=device)[:tail].sort().values
    left, right = _class_positions(counts, all_pairs)
    return Sketch(classes, counts, left, right, embeddings, rows, biases, favourites, drawn)


def _class_positions(counts: Tensor, all_pairs: bool) -> tuple[Tensor, Tensor]:
    """Return the exemplar of each class in sample pair k, as first and as second, both (K, M).

    Samples are sorted by class; `counts` (K,) says how many each class has. Entries beyond a
    class's count repeat earlier ones.
    """
    start, most = (counts.cumsum(0) - counts)[:, None], int(counts.max())
    each = torch.arange(most, device=counts.device)
    first, second = (
        (each.repeat_interleave(most), each.repeat(most)) if all_pairs else (each, each + 1)
    )
    return start + first % counts[:, None], start + second % counts[:, None]


class Outputs:
    """Computes logits and projections at the favourites and at the sample of outputs."""

    def __init__(self, sketch: Sketch) -> None:
        self._rows, self._biases = sketch.rows, sketch.biases
        self._tail = take(sketch.rows, sketch.tail).transpose(0, 1).flatten(0, 1)  # (2 R, d)
        self._tail_bias = sketch.biases[sketch.tail].T.flatten()

    def at(self, top: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return both for X (P, M, d), at favourites `top` (P, T) and the sample: (P, M, T + R)."""
        rows = take(self._rows, top).flatten(1, 2)  # (P, 2 T, d)
        on_top = (X @ rows.mT).unflatten(2, (-1, 2)) + take(self._biases, top)[:, None]
        flat = torch.addmm(self._tail_bias, X.flatten(0, 1), self._tail.T)
        on_tail = flat.view(*X.shape[:2], 2, -1)
        logits, projections = (
            torch.cat([on_top[..., kind], on_tail[..., kind, :]], 2) for kind in (0, 1)
        )
        return logits, projections


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows[index]; plain indexing is much slower for long rows."""
    chosen = rows.index_select(0, index.flatten())
    return chosen.view(*index.shape, *rows.shape[1:])


def pair_scores(
    sketch: Sketch,
    own: Tensor,
    other: Tensor,
    lam: Tensor,
    block: int | None = None,
) -> Tensor:
    """Return the scores of class pairs, given as positions in `sketch.classes`, (P,).

    The mixing ratios `lam` (P,) weight the class `own`.
    """
    block = BLOCK_ELEMENTS if block is None else block
    (tops, pairs), d = (sketch.top.shape[1], sketch.left.shape[1]), sketch.embeddings.shape[1]
    step = max(1, block // max(4 * tops * d, 4 * pairs * (2 * tops + len(sketch.tail))))
    place, outputs = places_in_tail(sketch), Outputs(sketch)
    scores = sketch.embeddings.new_empty(len(own))
    for part in range(0, len(own), step):
        some = slice(part, part + step)
        scores[some] = _pair_scores(sketch, outputs, own[some], other[some], lam[some], place)
    return scores


def _pair_scores(
    sketch: Sketch, outputs: Outputs, own: Tensor, other: Tensor, lam: Tensor, place: Tensor
) -> Tensor:
    i, j = sketch.left[own], sketch.right[other]  # (P, M)
    ratio = lam.to(sketch.embeddings)[:, None, None]
    mixed = torch.lerp(take(sketch.embeddings, j), take(sketch.embeddings, i), ratio)
    top_own, top_other = sketch.top[own], sketch.top[other]
    z, s = outputs.at(torch.cat([top_own, top_other], 1), mixed)  # (P, M, 2 T + R)
    p = (z + _log_weights(sketch, top_own, top_other, place)[:, None].to(z)).softmax(2)
    ratio = ratio[..., 0]
    tops = sketch.top.shape[1]
    scores = (p * s).sum(2) - (ratio * s[..., 0] + (1 - ratio) * s[..., tops])
    used = _used(sketch, own, other)
    return torch.where(used, scores, 0).sum(1) / used.sum(1)


def _log_weights(sketch: Sketch, top_own: Tensor, top_other: Tensor, place: Tensor) -> Tensor:
    """Return the log of how many outputs each column stands for, (P, 2 T + R); -inf if repeated."""
    outputs, size = len(sketch.rows), len(sketch.tail)
    ordered = top_own.sort(1).values
    nearest = torch.searchsorted(ordered, top_other).clamp(max=ordered.shape[1] - 1)
    twice = ordered.gather(1, nearest) == top_other
    tops = torch.cat([torch.zeros_like(top_own), torch.where(twice, -torch.inf, 0.0)], 1)
    free = ~named_in_tail(place[torch.cat([top_own, top_other], 1)], size)
    left_out = outputs - top_own.shape[1] - (~twice).sum(1)
    weight = (left_out.double() / free.sum(1).clamp(min=1)).log()[:, None]
    return torch.cat([tops, torch.where(free, weight, -torch.inf)], 1)


def places_in_tail(sketch: Sketch) -> Tensor:
    """Return the position of each output in the sample, (C,); the sample's size if absent."""
    size, device = len(sketch.tail), sketch.tail.device
    place = torch.full((len(sketch.rows),), size, device=device)
    place[sketch.tail] = torch.arange(size, device=device)
    return place


def named_in_tail(places: Tensor, size: int) -> Tensor:
    """Return which members of the sample each row of positions names, (P, R)."""
    named = torch.zeros(len(places), size + 1, dtype=torch.bool, device=places.device)
    return named.scatter_(1, places, True)[:, :size]


def _used(sketch: Sketch, own: Tensor, other: Tensor) -> Tensor:
    """Return which of the M sample pairs belong to each class pair, (P, M)."""
    pairs, most = sketch.left.shape[1], int(sketch.counts.max())
    k = torch.arange(pairs, device=own.device)
    a, b = sketch.counts[own, None], sketch.counts[other, None]
    if pairs == most:  # one to one
        return k < torch.maximum(a, b)
    return (k // most < a) & (k % most < b)
