"""Approximated and true scores of class pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.diagnostics.inner_products import LastLayer, Seen
from gradmix.diagnostics.inputs import (
    Pair,
    check,
    check_count,
    check_ratios,
    draw_per_class,
    one_hot,
)
from gradmix.types import Samples

BLOCK = 1024  # pairs mixed at once


class ClassPairs(NamedTuple):
    """Ordered pairs of R classes with all K classes, and their P pairs of exemplars."""

    classes: Tensor  # (K,) the class labels
    rows: Tensor  # (R,) positions of the classes that come first
    left: Tensor  # (P,) exemplars of the first class
    right: Tensor  # (P,) exemplars of the second class
    cell: Tensor  # (P,) row · K + column


class PairScores(NamedTuple):
    """⟨ḡ_buf, g̃⟩ of mixed exemplars at L mixing ratios, (L, P)."""

    pairs: ClassPairs
    approximated: Tensor
    true: Tensor

    def by_class(self, scores: Tensor) -> Tensor:
        """Return the mean of each class pair, (L, R, K)."""
        rows, columns = len(self.pairs.rows), len(self.pairs.classes)
        total = scores.new_zeros(len(scores), rows * columns)
        total.index_add_(1, self.pairs.cell, scores)
        counts = self.pairs.cell.bincount(minlength=rows * columns)
        return (total / counts).view(-1, rows, columns)


def class_pair_scores(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    lambdas: Sequence[float],
    criterion_exemplars: int = 32,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> PairScores:
    """Return the score of every pair by the criterion and by the last layer's true gradient.

    The approximated score assumes that mixed inputs have mixed embeddings and logits (Eq. 7). The
    true score uses the gradient at the mixed input. The arguments are those of
    `approximation_error`.
    """
    given = check(model, memory, current, average, head)
    check_ratios("lambdas", lambdas)
    check_count("criterion_exemplars", criterion_exemplars)
    if rows is not None:
        check_count("rows", rows)
    outputs = given.head.out_features
    exemplars = draw_per_class(given.pool, criterion_exemplars, generator, outputs)
    pairs = _pair_classes(exemplars.y, rows, generator)
    last_layer = LastLayer(model, given.head, given.memory, average)
    blocks = [
        _score(last_layer, exemplars, i, j, lambdas, outputs)
        for i, j in zip(pairs.left.split(BLOCK), pairs.right.split(BLOCK), strict=True)
    ]
    approximated, true = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
    return PairScores(pairs, approximated, true)


def _pair_classes(
    labels: Tensor, rows: int | None, generator: torch.Generator | None
) -> ClassPairs:
    """Pair exemplar k of one class with k + 1 of another, cyclically, as the criterion does."""
    classes = labels.unique()
    number = len(classes)
    chosen = torch.arange(number, device=labels.device)
    if rows is not None and rows < number:
        order = torch.randperm(number, generator=generator, device=labels.device)
        chosen = order[:rows].sort().values
    members = [(labels == label).nonzero().squeeze(1) for label in classes]
    left, right, cell = [], [], []
    for place, row in enumerate(chosen.tolist()):
        for column in range(number):
            a, b = members[row], members[column]
            k = torch.arange(max(len(a), len(b)), device=labels.device)
            left.append(a[k % len(a)])
            right.append(b[(k + 1) % len(b)])
            cell.append(torch.full_like(k, place * number + column))
    return ClassPairs(classes, chosen, torch.cat(left), torch.cat(right), torch.cat(cell))


def _score(
    last_layer: LastLayer,
    exemplars: Samples,
    i: Tensor,
    j: Tensor,
    lambdas: Sequence[float],
    outputs: int,
) -> tuple[Tensor, Tensor]:
    """Return approximated and true scores of exemplars i mixed with j, (L, P) each.

    Samples and mixes pass the network in batches of the same shape, so both scores are
    bit-identical at λ = 0 and 1, where the mix is one of the samples.
    """
    x_i, x_j = exemplars.x[i], exemplars.x[j]
    y_i, y_j = (one_hot(exemplars.y[index], outputs) for index in (i, j))
    left, right = last_layer.see(x_i), last_layer.see(x_j)
    approximated, true = [], []
    for lam in lambdas:
        targets = torch.lerp(y_j, y_i, lam)
        mixed = Seen(*(torch.lerp(b, a, lam) for a, b in zip(left, right, strict=True)))
        approximated.append(mixed.products(targets))
        true.append(last_layer.see(torch.lerp(x_j, x_i, lam)).products(targets))
    return torch.stack(approximated), torch.stack(true)
