"""Scores of chosen class pairs in time and memory that do not grow with the square of classes.

The softmax of a mix of two samples has its weight on the few outputs that either of them favours;
the rest is a long tail of small terms. A sketch keeps, for every class, the `top` outputs that its
exemplars favour, on which scores are exact, and one random sample of all outputs, from which the
sum over the tail is estimated. With the sample as large as the head the score is the exact one.

Outputs of other classes' favourites are inner products with rows of the head and of ḡ_buf, so
logits are needed only once, block by block, to find the favourites and ḡ_buf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.criterion.gradients import HeadGradient
from gradmix.criterion.pairing import class_positions
from gradmix.types import LinearHead

TOP = 64
TAIL = 512
MOST_EXEMPLARS = 8
BLOCK_ELEMENTS = 2**21
"""How many numbers are computed at once; a few such blocks are alive at a time.

Larger ones leave the processor's caches and are slower."""


class Sketch(NamedTuple):
    """What is kept of K classes; n are their exemplars, M the sample pairs of a class pair."""

    classes: Tensor  # (K,) the class labels
    counts: Tensor  # (K,) exemplars used of each
    left: Tensor  # (K, M) the exemplar that a class gives to each pair, as the first
    right: Tensor  # (K, M) and as the second
    embeddings: Tensor  # (n, d)
    rows: Tensor  # (C, 2, d) of the head and of ḡ_buf
    biases: Tensor  # (C, 2)
    top: Tensor  # (K, T) favourite outputs, its own label first
    tail: Tensor  # (R,) the sample of outputs, in order
    on_top: Tensor  # (n, 2, T) logits and projections at the class's favourites
    on_tail: Tensor  # (n, 2, R) and at the sample


def logits_pass(
    embeddings: Tensor,
    labels: Tensor,
    head: LinearHead,
    weights: Tensor,
    top: int,
    block: int = BLOCK_ELEMENTS,
) -> tuple[HeadGradient, Tensor]:
    """ḡ_buf, with `weights` (n,) of the exemplars, and every class's favourites, (K, T).

    Samples are in order of their labels. The only part whose cost grows with n · C.
    """
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
        each[torch.arange(last - first), classes[first:last]] = torch.inf  # its own comes first
        favourites[first:last] = each.topk(top, dim=1).indices
        delta[torch.arange(len(y)), y] -= 1
        delta.mul_(weights[start:end, None])
        gradient.addmm_(delta.T, x)
        bias += delta.sum(0)
    return HeadGradient(gradient, None if head.bias is None else bias), favourites


def _blocks_of_classes(counts: Tensor, samples: int) -> list[tuple[int, int, int, int]]:
    """Whole classes in blocks of about so many samples: first and last class, and sample."""
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
    pairing: str = "one-to-one",
    most: int = MOST_EXEMPLARS,
    top: int = TOP,
    tail: int = TAIL,
    block: int = BLOCK_ELEMENTS,
    generator: torch.Generator | None = None,
) -> Sketch:
    """Describe exemplars; up to `most` of each class are scored, ḡ_buf is of all by `weights`.

    `weights` (n,) are 0 for what is not in memory, and sum to 1.
    """
    order = labels.argsort(stable=True)
    embeddings, labels, weights = embeddings[order], labels[order], weights[order]
    gradient, favourites = logits_pass(embeddings, labels, head, weights, top, block)
    return describe(
        embeddings,
        labels,
        head,
        gradient,
        favourites,
        pairing=pairing,
        most=most,
        tail=tail,
        block=block,
        generator=generator,
    )


def describe(
    embeddings: Tensor,
    labels: Tensor,
    head: LinearHead,
    gradient: HeadGradient,
    favourites: Tensor,
    *,
    pairing: str = "one-to-one",
    most: int = MOST_EXEMPLARS,
    tail: int = TAIL,
    block: int = BLOCK_ELEMENTS,
    generator: torch.Generator | None = None,
) -> Sketch:
    """The sketch, from what `logits_pass` found of exemplars in order of their labels."""
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
    position = torch.repeat_interleave(counts)
    on_top, on_tail = (
        embeddings.new_empty(len(embeddings), 2, number)
        for number in (favourites.shape[1], len(drawn))
    )
    each = 2 * max(favourites.shape[1] * embeddings.shape[1], len(drawn))
    for some in torch.arange(len(position), device=device).split(_chunk(block, each)):
        X = embeddings[some]
        on_top[some] = _values(rows, biases, favourites[position[some]], X[:, None]).squeeze(1)
        on_tail[some] = _values(rows, biases, drawn[None], X[None]).squeeze(0)
    left, right = class_positions(counts, pairing)
    return Sketch(
        classes,
        counts,
        left,
        right,
        embeddings,
        rows,
        biases,
        favourites,
        drawn,
        on_top,
        on_tail,
    )


def _chunk(block: int, each: int) -> int:
    return max(1, block // each)


def _values(rows: Tensor, biases: Tensor, outputs: Tensor, X: Tensor) -> Tensor:
    """Logits and projections of samples X (P, M, d) at `outputs` (P, T): (P, M, 2, T)."""
    chosen = take(rows, outputs).flatten(1, 2)  # (P, 2 T, d)
    values: Tensor = (X @ chosen.mT).unflatten(2, (-1, 2)).transpose(2, 3)
    return values + take(biases, outputs).transpose(1, 2)[:, None]


def take(rows: Tensor, index: Tensor) -> Tensor:
    """rows[index], which is far slower for long rows."""
    chosen = rows.index_select(0, index.flatten())
    return chosen.view(*index.shape, *rows.shape[1:])


def pair_scores(
    sketch: Sketch,
    own: Tensor,
    other: Tensor,
    lam: Tensor,
    pairing: str = "one-to-one",
    block: int = BLOCK_ELEMENTS,
) -> Tensor:
    """Scores of class pairs, given by their places in `sketch.classes`; `lam` weights `own`."""
    (tops, pairs), d = (sketch.top.shape[1], sketch.left.shape[1]), sketch.embeddings.shape[1]
    step = _chunk(block, max(4 * tops * d, 4 * pairs * (2 * tops + len(sketch.tail))))
    place = places_in_tail(sketch)
    scores = sketch.embeddings.new_empty(len(own))
    for part in range(0, len(own), step):
        some = slice(part, part + step)
        scores[some] = _pair_scores(sketch, own[some], other[some], lam[some], place, pairing)
    return scores


def _pair_scores(
    sketch: Sketch, own: Tensor, other: Tensor, lam: Tensor, place: Tensor, pairing: str
) -> Tensor:
    i, j = sketch.left[own], sketch.right[other]  # (P, M)
    top_own, top_other = sketch.top[own], sketch.top[other]
    at_own, at_other = take(sketch.embeddings, i), take(sketch.embeddings, j)
    from_own = torch.cat(
        [
            take(sketch.on_top, i),
            _values(sketch.rows, sketch.biases, top_other, at_own),
            take(sketch.on_tail, i),
        ],
        dim=3,
    )
    from_other = torch.cat(
        [
            _values(sketch.rows, sketch.biases, top_own, at_other),
            take(sketch.on_top, j),
            take(sketch.on_tail, j),
        ],
        dim=3,
    )
    ratio = lam.to(from_own)[:, None, None]
    mixed = torch.lerp(from_other, from_own, ratio[..., None])
    z, s = mixed.unbind(2)  # (P, M, 2 T + R)
    p = (z + _log_weights(sketch, top_own, top_other, place)[:, None].to(z)).softmax(2)
    ratio = ratio[..., 0]
    tops = sketch.top.shape[1]
    scores = (p * s).sum(2) - (ratio * s[..., 0] + (1 - ratio) * s[..., tops])
    used = _used(sketch, own, other, pairing)
    return torch.where(used, scores, 0).sum(1) / used.sum(1)


def _log_weights(sketch: Sketch, top_own: Tensor, top_other: Tensor, place: Tensor) -> Tensor:
    """For how many outputs each stands, as logarithm, (P, 2 T + R): 0 times if named twice."""
    outputs, size = len(sketch.rows), len(sketch.tail)
    twice = (top_other[:, :, None] == top_own[:, None, :]).any(2)
    tops = torch.cat([torch.zeros_like(top_own), torch.where(twice, -torch.inf, 0.0)], 1)
    free = ~named_in_tail(place[torch.cat([top_own, top_other], 1)], size)
    left_out = outputs - top_own.shape[1] - (~twice).sum(1)
    weight = (left_out.double() / free.sum(1).clamp(min=1)).log()[:, None]
    return torch.cat([tops, torch.where(free, weight, -torch.inf)], 1)


def places_in_tail(sketch: Sketch) -> Tensor:
    """Where each output stands in the sample, (C,); the sample's size if it is not in it."""
    size, device = len(sketch.tail), sketch.tail.device
    place = torch.full((len(sketch.rows),), size, device=device)
    place[sketch.tail] = torch.arange(size, device=device)
    return place


def named_in_tail(places: Tensor, size: int) -> Tensor:
    """For rows of places in the sample, which of it they name, (P, R)."""
    named = torch.zeros(len(places), size + 1, dtype=torch.bool, device=places.device)
    return named.scatter_(1, places, True)[:, :size]


def _used(sketch: Sketch, own: Tensor, other: Tensor, pairing: str) -> Tensor:
    """Which of the M sample pairs belong to each class pair, (P, M)."""
    k = torch.arange(sketch.left.shape[1], device=own.device)
    a, b = sketch.counts[own, None], sketch.counts[other, None]
    if pairing == "one-to-one":
        return k < torch.maximum(a, b)
    most = int(sketch.counts.max())
    return (k // most < a) & (k % most < b)
