"""Heads that model each class by its mean: nearest mean, and linear discriminants (SLDA)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.closed_form.head import ClosedFormHead, Linear, solve_positive
from gradmix.errors import InputError

ROUNDING = 1e-12  # scatter below this share of the second moments is a rounding error


class NearestMean(ClosedFormHead):
    """Predicts the class whose mean embedding is nearest; stores counts and sums only.

    The score is h · μ − ‖μ‖² / 2, which orders the classes like −‖h − μ‖². Forgetting a class is
    always exact.

    >>> head = NearestMean(2, normalise=False)
    >>> head.update(torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0]]), torch.tensor([7, 7, 3]))
    >>> head.classes
    (3, 7)
    >>> head.scores(torch.tensor([[3.0, 0.0]])).argmax(1)  # the column of class 3
    tensor([0])
    """

    second_moments = False

    def _solve(self) -> Linear:
        means = self.means()
        return Linear(means.T, -means.square().sum(1) / 2)


class SLDA(ClosedFormHead):
    """Linear discriminants (Hayes and Kanan 2020): Gaussian classes with one covariance.

    All classes are equally likely.

    The covariance is the exact pooled one. The published SLDA updates a running covariance with
    the class mean before each sample, which depends on the order of the samples.

    Args:
        embedding_size: The number of values of an embedding, d.
        shrinkage: The weight of the scaled identity in the covariance, from 0 to 1. Default: the
            oracle approximating shrinkage (Chen et al. 2010), computed from the moments.
        normalise: Whether to scale each embedding to length 1 first.
    """

    def __init__(
        self, embedding_size: int, *, shrinkage: float | None = None, normalise: bool = True
    ) -> None:
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise InputError(f"shrinkage is {shrinkage}; it must be between 0 and 1")
        super().__init__(embedding_size, normalise=normalise)
        self.shrinkage = shrinkage

    def _solve(self) -> Linear:
        means = self.means()  # (C, M)
        weight = solve_positive(self.covariance(), means.T)
        return Linear(weight, -(means * weight.T).sum(1) / 2)

    def covariance(self) -> Tensor:
        """Return the pooled covariance of the classes, shrunk towards a multiple of I, (M, M)."""
        size, covariance = self.feature_size, self.scatter() / self.samples
        scale = float(covariance.trace()) / size
        identity = torch.eye(size, dtype=torch.float64)
        if scale <= ROUNDING * float(self._gram.trace()) / size:
            return identity  # one sample per class: no scatter, only rounding errors
        share = self.shrinkage
        if share is None:
            share = oracle_shrinkage(covariance, self.samples)
        return (1 - share) * covariance + share * scale * identity


def oracle_shrinkage(covariance: Tensor, samples: float) -> float:
    """Return the oracle approximating shrinkage of Chen et al. 2010, as scikit-learn's OAS.

    Args:
        covariance: A covariance, (M, M).
        samples: The number of samples it was computed from.
    """
    size = len(covariance)
    mean_square = float(covariance.square().mean())  # tr(Σ²) / M²
    scale_square = (float(covariance.trace()) / size) ** 2
    denominator = (samples + 1) * (mean_square - scale_square / size)
    return 1.0 if denominator <= 0 else min((mean_square + scale_square) / denominator, 1.0)
