"""Accuracy of the criterion's approximation: errors of its scores and of the pairs it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.diagnostics.inputs import Pair
from gradmix.diagnostics.pairs import class_pair_scores

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
    criterion_exemplars: int = 32,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> ApproximationError:
    """Return the RMSE between approximated and true ⟨ḡ_buf, g̃_ij⟩ of mixed samples, against λ.

    The approximated score comes from the embeddings and logits of the two samples (Eq. 7). The
    true score uses the last layer's gradient at the mixed input. At λ = 0 and 1 the mix is one of
    the samples, so the error is 0. The means are the areas under the piecewise linear curves over
    `lambdas` with 0 at both ends: the errors for a uniform λ.

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
    scores = class_pair_scores(
        model,
        memory,
        current,
        lambdas=lambdas,
        criterion_exemplars=criterion_exemplars,
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
    criterion_exemplars: int = 32,
    rows: int | None = None,
    average: str = "sample",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> PairAgreement:
    """Return precision and recall of the pairs that selective mixup chooses.

    Algorithm 1 mixes the class pairs (a, b) outside S⁻, which stay as drawn, and the pairs in S*,
    which replace the others (steps 16 to 19). Let A be the set of both. With A from approximated
    scores and A_true from true scores (see `approximation_error`),

        precision = |A ∩ A_true| / |A|        recall = |A ∩ A_true| / |A_true|,

    over all ordered class pairs and all `lambdas` together. The two sets can differ in size, so
    precision and recall can differ. S* has exactly one pair for each class, so its precision
    equals its recall: `optimal`. docs/diagnostics.md explains this choice.

    The arguments are those of `approximation_error`.
    """
    scores = class_pair_scores(
        model,
        memory,
        current,
        lambdas=lambdas,
        criterion_exemplars=criterion_exemplars,
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
    """Return the RMSE over all dimensions except the first."""
    squares = (one.double() - other.double()).square().flatten(1)
    errors: list[float] = squares.mean(dim=1).sqrt().tolist()
    return errors


def _area(lambdas: Sequence[float], errors: Sequence[float]) -> float:
    """Return the area under the piecewise linear curve with 0 at both ends."""
    points = sorted({0.0: 0.0, 1.0: 0.0, **dict(zip(lambdas, errors, strict=True))}.items())
    at, error = np.array(points).T
    return float(((error[1:] + error[:-1]) / 2) @ np.diff(at))


def _mixed(scores: Tensor) -> Tensor:
    """Return which class pairs are outside S⁻ or in S*, (L, R, K)."""
    best = scores.argmax(dim=2, keepdim=True)
    return (scores >= 0).scatter(2, best, True)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
