"""Accuracy of the criterion's approximation: errors of its scores and of the pairs it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.diagnostics.inner_products import (
    LastLayer,
    Pair,
    Seen,
    check,
    check_counts,
    check_ratios,
    draw_per_class,
)
from gradmix.methods.losses import as_soft
from gradmix.types import Samples

BLOCK = 1024  # pairs mixed at once
EXEMPLARS = 32  # samples drawn of every class
CURVE = tuple(k / 10 for k in range(11))  # mixing ratios of a curve
CENTRES = tuple((k + 0.5) / 8 for k in range(8))  # mixing ratios that represent a uniform λ


class ApproximationError(NamedTuple):
    """Root mean squared errors of approximated scores, for every λ and for a uniform λ.

    The score of a pair of classes is the mean over its pairs of samples.
    """

    lambdas: tuple[float, ...]
    of_samples: tuple[float, ...]
    of_classes: tuple[float, ...]
    mean_of_samples: float
    mean_of_classes: float


class PairAgreement(NamedTuple):
    """How pairs chosen by approximated scores agree with pairs chosen by true scores."""

    precision: float  # share of the mixed pairs that should be mixed
    recall: float  # share of the pairs that should be mixed that are mixed
    optimal: float  # share of classes with the same partner in S*
    negative: float  # share of class pairs on whose membership in S⁻ both agree


def approximation_error(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    lambdas: Sequence[float] = CURVE,
    **options: Any,
) -> ApproximationError:
    """Return the RMSE between approximated and true ⟨ḡ_buf, g̃_ij⟩ of mixed samples, against λ.

    At λ = 0 and 1 the mix is one of the samples, so the error is 0. The means are the areas under
    the piecewise linear curves over `lambdas` with 0 at both ends: the errors for a uniform λ. The
    arguments are those of `class_pair_scores`.
    """
    scores = class_pair_scores(model, memory, current, lambdas=lambdas, **options)
    of_samples = _rmse(scores.approximated, scores.true)
    of_classes = _rmse(scores.by_class(scores.approximated), scores.by_class(scores.true))
    areas = _area(lambdas, of_samples), _area(lambdas, of_classes)
    return ApproximationError(tuple(lambdas), tuple(of_samples), tuple(of_classes), *areas)


def pair_agreement(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    lambdas: Sequence[float] = CENTRES,
    **options: Any,
) -> PairAgreement:
    """Return precision and recall of the pairs that selective mixup chooses.

    Algorithm 1 mixes the class pairs (a, b) outside S⁻, which stay as drawn, and the pairs in S*,
    which replace the others (steps 16 to 19). Let A be the set of both. With A from approximated
    scores and A_true from true scores,

        precision = |A ∩ A_true| / |A|        recall = |A ∩ A_true| / |A_true|,

    over all ordered class pairs and all `lambdas` together. docs/diagnostics.md explains this
    choice. The arguments are those of `class_pair_scores`.
    """
    scores = class_pair_scores(model, memory, current, lambdas=lambdas, **options)
    ours, true = scores.by_class(scores.approximated), scores.by_class(scores.true)
    mixed, should = _mixed(ours), _mixed(true)
    both = float((mixed & should).sum())
    return PairAgreement(
        both / float(mixed.sum()),
        both / float(should.sum()),
        float((ours.argmax(dim=2) == true.argmax(dim=2)).double().mean()),
        float(((ours < 0) == (true < 0)).double().mean()),
    )


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
    criterion_exemplars: int = EXEMPLARS,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> PairScores:
    """Return the score of every pair by the criterion and by the last layer's true gradient.

    The approximated score assumes that mixed inputs have mixed embeddings and logits (Eq. 7). The
    true score uses the last layer's gradient at the mixed input.

    Args:
        model: A classifier.
        memory: Inputs and labels of the exemplars.
        current: Inputs and labels of current samples.
        lambdas: Mixing ratios.
        criterion_exemplars: Samples drawn of every class. They are paired one to one, as by the
            criterion, for all ordered pairs of the K classes: K² · `criterion_exemplars` mixed
            inputs for each λ.
        rows: Number of classes drawn as first of a pair. Default: all K.
        average: Mean gradient of the memory over `sample`s or over `class`es.
        head: The last layer. Default: the last `nn.Linear`.
        generator: Default: PyTorch's global generator.

    Raises:
        InputError: An argument is invalid.
    """
    given = check(model, memory, current, average, head)
    check_ratios("lambdas", lambdas)
    check_counts(criterion_exemplars=criterion_exemplars, rows=rows)
    outputs = given.head.out_features
    pool = [torch.cat(parts) for parts in zip(given.current, given.memory, strict=True)]  # T_l ∪ M
    rows_drawn = draw_per_class(pool[1], criterion_exemplars, generator, outputs)
    exemplars = Samples(*(part[rows_drawn.sort().values] for part in pool))
    pairs = _pair_classes(exemplars.y, rows, generator)
    last_layer = LastLayer(model, given.head, given.memory, average)
    blocks: list[tuple[Tensor, Tensor]] = []  # approximated and true scores, (L, BLOCK)
    for i, j in zip(pairs.left.split(BLOCK), pairs.right.split(BLOCK), strict=True):
        x_i, x_j = exemplars.x[i], exemplars.x[j]
        y_i, y_j = (as_soft(exemplars.y[index], outputs) for index in (i, j))
        # Samples and mixes pass the network in batches of the same shape, so both scores are
        # bit-identical at λ = 0 and 1, where the mix is one of the samples.
        seen = list(zip(last_layer.see(x_i), last_layer.see(x_j), strict=True))
        approximated, true = [], []
        for lam in lambdas:
            targets = torch.lerp(y_j, y_i, lam)
            approximated.append(Seen(*(torch.lerp(b, a, lam) for a, b in seen)).products(targets))
            true.append(last_layer.see(torch.lerp(x_j, x_i, lam)).products(targets))
        blocks.append((torch.stack(approximated), torch.stack(true)))
    return PairScores(pairs, *(torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True)))


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


def _rmse(one: Tensor, other: Tensor) -> list[float]:
    """Return the RMSE over all dimensions except the first."""
    squares = (one.double() - other.double()).square().flatten(1)
    return list(squares.mean(dim=1).sqrt().tolist())


def _area(lambdas: Sequence[float], errors: Sequence[float]) -> float:
    """Return the area under the piecewise linear curve with 0 at both ends."""
    points = sorted({0.0: 0.0, 1.0: 0.0, **dict(zip(lambdas, errors, strict=True))}.items())
    at, error = np.array(points).T
    return float(((error[1:] + error[:-1]) / 2) @ np.diff(at))


def _mixed(scores: Tensor) -> Tensor:
    """Return which class pairs are outside S⁻ or in S*, (L, R, K)."""
    best = scores.argmax(dim=2, keepdim=True)
    return (scores >= 0).scatter(2, best, True)
