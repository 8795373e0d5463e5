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
    return HeadGradient(gradient, None if head.bias is None else bias), favourites


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
    gradient, favourites = logits_pass(embeddings, labels, head, weights, top, block)
    classes, counts = labels.unique_consecutive(return_counts=True)
    rank = torch.arange(len(labels), device=labels.device)
    rank -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    embeddings, counts = embeddings[rank < most], counts.clamp(max=most)
    rows = torch.stack([head.weight, gradient.weight], 1)
    zero = torch.zeros_like(head.weight[:, 0])
    trained = None if fixed_bias else gradient.bias
    biases = torch.stack([zero if b is None else b for b in (head.bias, trained)], 1)
    outputs = torch.randperm(len(head.weight), generator=generator, device=labels.device)
    drawn = outputs[:tail].sort().values
    # Sample pair k has exemplar `left` of a first class and `right` of a second. Entries beyond a
    # class's count repeat earlier ones.
    start, largest = (counts.cumsum(0) - counts)[:, None], int(counts.max())
    k = torch.arange(largest, device=counts.device)
    first, second = (k.repeat_interleave(largest), k.repeat(largest)) if all_pairs else (k, k + 1)
    left, right = (start + each % counts[:, None] for each in (first, second))  # (K, M)
    return Sketch(classes, counts, left, right, embeddings, rows, biases, favourites, drawn)


class Outputs:
    """The outputs at which a sketch is evaluated: some favourites, and the sample of all outputs.

    Args:
        sketch: The sketch.
    """

    def __init__(self, sketch: Sketch) -> None:
        self._rows, self._biases, self._size = sketch.rows, sketch.biases, len(sketch.tail)
        self._tail = take(sketch.rows, sketch.tail).transpose(0, 1).flatten(0, 1)  # (2 R, d)
        self._tail_bias = sketch.biases[sketch.tail].T.flatten()
        # (C,) the position of each output in the sample; the sample's size if absent
        self._place = torch.full((len(sketch.rows),), self._size, device=sketch.tail.device)
        self._place[sketch.tail] = torch.arange(self._size, device=sketch.tail.device)

    def at(self, top: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and projections of X (P, M, d) at `top` (P, T) and the sample.

        Both are (P, M, T + R).
        """
        rows = take(self._rows, top).flatten(1, 2)  # (P, 2 T, d)
        on_top = (X @ rows.mT).unflatten(2, (-1, 2)) + take(self._biases, top)[:, None]
        flat = torch.addmm(self._tail_bias, X.flatten(0, 1), self._tail.T)
        on_tail = flat.view(*X.shape[:2], 2, -1)
        logits, projections = (
            torch.cat([on_top[..., kind], on_tail[..., kind, :]], 2) for kind in (0, 1)
        )
        return logits, projections

    def log_weights(self, top: Tensor, of_top: Tensor, distinct: Tensor | int) -> Tensor:
        """Return the log of how many outputs each column stands for, (P, T + R); -inf for none.

        Args:
            top: The favourites, (P, T).
            of_top: The log weights of the favourites, (P, T).
            distinct: How many different favourites each row has.
        """
        named = torch.zeros(len(top), self._size + 1, dtype=torch.bool, device=top.device)
        free = ~named.scatter_(1, self._place[top], True)[:, : self._size]
        left_out = len(self._rows) - distinct
        weight = (left_out / free.sum(1, keepdim=True).clamp(min=1)).log()
        return torch.cat([of_top, torch.where(free, weight, -torch.inf)], 1)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows[index]; plain indexing is much slower for long rows."""
    chosen = rows.index_select(0, index.flatten())
    return chosen.view(*index.shape, *rows.shape[1:])


def pair_scores(
    sketch: Sketch, own: Tensor, other: Tensor, lam: Tensor, block: int | None = None
) -> Tensor:
    """Return the scores of class pairs, given as positions in `sketch.classes`, (P,).

    The mixing ratios `lam` (P,) weight the class `own`.
    """
    block = BLOCK_ELEMENTS if block is None else block
    (tops, pairs), d = (sketch.top.shape[1], sketch.left.shape[1]), sketch.embeddings.shape[1]
    step = max(1, block // max(4 * tops * d, 4 * pairs * (2 * tops + len(sketch.tail))))
    outputs, scores = Outputs(sketch), sketch.embeddings.new_empty(len(own))
    for part in range(0, len(own), step):
        some = slice(part, part + step)
        scores[some] = _pair_scores(sketch, outputs, own[some], other[some], lam[some])
    return scores


def _pair_scores(
    sketch: Sketch, outputs: Outputs, own: Tensor, other: Tensor, lam: Tensor
) -> Tensor:
    i, j = sketch.left[own], sketch.right[other]  # (P, M)
    ratio = lam.to(sketch.embeddings)[:, None, None]
    mixed = torch.lerp(take(sketch.embeddings, j), take(sketch.embeddings, i), ratio)
    top_own, top_other = sketch.top[own], sketch.top[other]
    tops = top_own.shape[1]
    # Favourites of both classes count once.
    ordered = top_own.sort(1).values
    nearest = torch.searchsorted(ordered, top_other).clamp(max=tops - 1)
    twice = ordered.gather(1, nearest) == top_other
    of_top = torch.cat([torch.zeros_like(top_own), torch.where(twice, -torch.inf, 0.0)], 1)
    top, distinct = torch.cat([top_own, top_other], 1), tops + (~twice).sum(1, keepdim=True)
    z, s = outputs.at(top, mixed)  # (P, M, 2 T + R)
    p = (z + outputs.log_weights(top, of_top, distinct.double())[:, None].to(z)).softmax(2)
    ratio = ratio[..., 0]
    scores = (p * s).sum(2) - (ratio * s[..., 0] + (1 - ratio) * s[..., tops])
    # Which of the M sample pairs belong to each class pair, (P, M).
    pairs, largest = sketch.left.shape[1], int(sketch.counts.max())
    k = torch.arange(pairs, device=own.device)
    a, b = sketch.counts[own, None], sketch.counts[other, None]
    one_to_one = pairs == largest
    used = k < torch.maximum(a, b) if one_to_one else (k // largest < a) & (k % largest < b)
    return torch.where(used, scores, 0).sum(1) / used.sum(1)
