"""What the criterion's approximation costs: errors of scores, and of the pairs chosen by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.diagnostics.inputs import Pair
from gradmix.diagnostics.pairs import class_pair_scores

CURVE = tuple(k / 10 for k in range(11))  # ratios of a curve from 0 to 1
CENTRES = tuple((k + 0.5) / 8 for k in range(8))  # ratios that stand for λ uniform in 0 to 1


class ApproximationError(NamedTuple):
    """Root mean squared errors of approximated scores, for every λ and for λ uniform in 0 to 1.

    Of pairs of samples, and of pairs of classes, whose scores are means over such pairs.
    """

    lambdas: tuple[float, ...]
    of_samples: tuple[float, ...]
    of_classes: tuple[float, ...]
    mean_of_samples: float
    mean_of_classes: float


class PairAgreement(NamedTuple):
    """How the pairs chosen by approximated scores compare with those chosen by true ones."""

    precision: float  # share of the pairs that would be mixed that truly should be
    recall: float  # share of the pairs that should be mixed that would be
    optimal: float  # share of classes whose partner in S* is the same
    negative: float  # share of class pairs on whose being in S⁻ both agree


def approximation_error(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    lambdas: Sequence[float] = CURVE,
    exemplars_per_class: int = 32,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> ApproximationError:
    """RMSE between approximated and true ⟨ḡ_buf, g̃_ij⟩ of mixed samples, against λ.

    Approximated is the criterion's score, from the embeddings and logits of the two samples
    (Eq. 7); true the one with the last layer's gradient at the really mixed input. At λ = 0 and 1
    the mix is a sample itself and the error is 0. The means are the areas under the curves over
    `lambdas`, drawn with straight lines and from 0 at 0 to 0 at 1: errors for λ uniform.

    Pairs are those of the criterion: of every class up to `exemplars_per_class` samples are drawn
    and paired one to one, for all ordered pairs of classes. That is K² · `exemplars_per_class`
    mixed inputs for each λ; `rows` draws so many classes as first of the pair instead of all K.
    """
    scores = class_pair_scores(
        model,
        memory,
        current,
        lambdas=lambdas,
        exemplars_per_class=exemplars_per_class,
        rows=rows,
        average=average,
        head=head,
        generator=generator,
    )
    of_samples = _rmse(scores.approximated, scores.true)
    of_classes = _rmse(scores.by_class(scores.approximated), scores.by_class(scores.true))
    return ApproximationError(
        tuple(lambdas),
        tuple(of_samples),
        tuple(of_classes),
        _area(lambdas, of_samples),
        _area(lambdas, of_classes),
    )


def pair_agreement(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    lambdas: Sequence[float] = CENTRES,
    exemplars_per_class: int = 32,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> PairAgreement:
    """Precision and recall of the pairs that selective mixup mixes, by approximated gradients.

    By one set of scores, Algorithm 1 mixes the class pairs (a, b) that are not in S⁻, which stay
    as drawn, and those in S*, which replace the others (steps 16 to 19). Call the set of both A.
    With A by approximated scores and A_true by true ones (see `approximation_error`),

        precision = |A ∩ A_true| / |A|        recall = |A ∩ A_true| / |A_true|,

    counted over all ordered class pairs and all `lambdas` together. The two sets need not be of one
    size, so precision and recall may differ. S* alone always has one pair for each class,
    so that its precision is its recall: it is `optimal`. See docs/analysis.md for the choice.

    Pairs of samples and `rows` are as in `approximation_error`.
    """
    scores = class_pair_scores(
        model,
        memory,
        current,
        lambdas=lambdas,
        exemplars_per_class=exemplars_per_class,
        rows=rows,
        average=average,
        head=head,
        generator=generator,
    )
    ours, true = scores.by_class(scores.approximated), scores.by_class(scores.true)
    mixed, should = _mixed(ours), _mixed(true)
    both = float((mixed & should).sum())
    return PairAgreement(
        both / float(mixed.sum()),
        both / float(should.sum()),
        _share(ours.argmax(dim=2) == true.argmax(dim=2)),
        _share((ours < 0) == (true < 0)),
    )


def _rmse(one: Tensor, other: Tensor) -> list[float]:
    """Over all but the first dimension."""
    squares = (one.double() - other.double()).square().flatten(1)
    errors: list[float] = squares.mean(dim=1).sqrt().tolist()
    return errors


def _area(lambdas: Sequence[float], errors: Sequence[float]) -> float:
    """Under the straight lines through the points, with 0 at both ends."""
    points = sorted({0.0: 0.0, 1.0: 0.0, **dict(zip(lambdas, errors, strict=True))}.items())
    at, error = np.array(points).T
    return float(((error[1:] + error[:-1]) / 2) @ np.diff(at))


def _mixed(scores: Tensor) -> Tensor:
    """Class pairs that are not in S⁻ or are in S*, as (L, R, K)."""
    best = scores.argmax(dim=2, keepdim=True)
    return (scores >= 0).scatter(2, best, True)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
