"""Counts, sums and second moments of features: everything that the closed-form heads store.

The moments of a union of samples are the sums of the parts' moments. Learning is addition, so the
order of the classes and the number of calls make no difference beyond floating-point rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from gradmix.errors import FileError, InputError
from gradmix.files.schema import Schema, TensorOf, validate

SAME_SAMPLES = 1e-3  # relative tolerance: the same features, computed in another batch, as float16
FIRST_JITTER = 1e-12  # relative to the mean of the diagonal
STATE = "the state of the head"  # the name of the file in error messages


class SavedMoments(Schema):
    """The state of `Moments`; see its attributes."""

    classes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    counts: Annotated[Tensor, TensorOf(torch.int64, torch.float64, ndim=1, finite=True)]
    sums: Annotated[Tensor, TensorOf(torch.float64, ndim=2, finite=True)]
    gram: Annotated[Tensor, TensorOf(torch.float64, ndim=1, finite=True)]


class Moments:
    """The moments of features (M,) with integer labels, in float64 on the CPU.

    Attributes:
        classes: The labels in ascending order, (C,).
        counts: The number of samples of each class, or the sum of their weights, (C,).
        sums: The sum of the features of each class, (C, M).
        gram: The sum of h hᵀ over all samples, (M, M); (0, 0) without second moments.

    Args:
        size: The number of features, M.
        second: Whether to keep `gram`, M² · 8 bytes.
    """

    def __init__(self, size: int, *, second: bool = True) -> None:
        self.size, self.second = size, second
        order = size if second else 0
        self.classes = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.sums = torch.zeros(0, size, dtype=torch.float64)
        self.gram = torch.zeros(order, order, dtype=torch.float64)

    @property
    def samples(self) -> float:
        """The number of samples of all classes, or the sum of their weights."""
        return float(self.counts.sum())

    def means(self) -> Tensor:
        """Return the mean of the features of each class, (C, M)."""
        return self.sums / self.counts[:, None]

    def scatter(self) -> Tensor:
        """Return Σ (h − μ_y)(h − μ_y)ᵀ over all samples, (M, M)."""
        return self.gram - self.sums.T @ self.means()

    def add(self, features: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add samples: features (B, M) and weights (B,) in float64, labels (B,) in int64."""
        times = torch.ones_like(labels) if weights is None else weights
        weighted = features if weights is None else features * weights[:, None]
        classes = torch.cat([self.classes, labels]).unique()  # in ascending order
        old, new = torch.searchsorted(classes, self.classes), torch.searchsorted(classes, labels)
        dtype = torch.promote_types(self.counts.dtype, times.dtype)  # int64 without weights
        counts = torch.zeros(len(classes), dtype=dtype).index_add(0, old, self.counts.to(dtype))
        sums = torch.zeros(len(classes), self.size, dtype=torch.float64)
        sums = sums.index_add(0, old, self.sums).index_add(0, new, weighted)
        if self.second:
            self.gram = symmetric(self.gram + weighted.T @ features)
        self.counts = counts.index_add(0, new, times.to(dtype))
        self.classes, self.sums = classes, sums

    def remove(self, label: int, features: Tensor | None = None) -> bool:
        """Remove a class; return whether the result is as if it had never been added.

        Removal is exact with the class's own features, and without second moments. Otherwise the
        class is assumed to scatter around its mean like all samples together. The difference
        between its scatter and the average one remains in `gram`.
        """
        place = int(torch.searchsorted(self.classes, label))
        others = torch.arange(len(self.classes)) != place
        if features is not None:
            self._check_same_samples(place, features)
        if self.second:
            self.gram = symmetric(self._gram_without(others, features))
        self.classes, self.counts = self.classes[others], self.counts[others]
        self.sums = self.sums[others]
        return not self.second or features is not None or not others.any()

    def _gram_without(self, others: Tensor, features: Tensor | None) -> Tensor:
        """Return the second moments of the other classes, (M, M)."""
        if not others.any():
            return torch.zeros_like(self.gram)
        if features is not None:
            return self.gram - features.T @ features
        share = self.counts[others].sum() / self.counts.sum()
        return self.scatter() * share + self.sums[others].T @ self.means()[others]

    def _check_same_samples(self, place: int, features: Tensor) -> None:
        """Refuse features other than the added ones, by their number and their sum."""
        label, count = int(self.classes[place]), float(self.counts[place])
        if len(features) != count:
            raise InputError(
                f"embeddings has {len(features)} rows, but class {label} was learned from "
                f"{count:g}; pass all of them, or None"
            )
        near = SAME_SAMPLES * features.abs().sum(0)
        if ((features.sum(0) - self.sums[place]).abs() > near).any():
            raise InputError(
                f"embeddings differ from those that class {label} was learned from; pass the "
                "same embeddings, or None"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the moments; `gram` is packed into its lower triangle."""
        return {
            "classes": self.classes.clone(),
            "counts": self.counts.clone(),
            "sums": self.sums.clone(),
            "gram": pack(self.gram),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the moments by saved ones of the same size and kind.

        Raises:
            FileError: If the state does not fit; nothing is changed.
        """
        saved = validate(SavedMoments, dict(state), STATE)
        order, classes = len(self.gram), len(saved.classes)
        triangle = order * (order + 1) // 2
        shapes = {"counts": (classes,), "sums": (classes, self.size), "gram": (triangle,)}
        for name, shape in shapes.items():
            found = tuple(getattr(saved, name).shape)
            if found != shape:
                raise FileError(f"{STATE} is damaged: {name} has shape {found}, not {shape}")
        if (saved.classes.diff() <= 0).any() or (saved.counts <= 0).any():
            raise FileError(f"{STATE} is damaged: classes must ascend and counts be positive")
        self.classes, self.counts = saved.classes.clone(), saved.counts.clone()
        self.sums, self.gram = saved.sums.clone(), unpack(saved.gram, order)


def symmetric(matrix: Tensor) -> Tensor:
    """Return a matrix whose upper triangle mirrors the lower, as after saving and loading it.

    The product of a matrix with its own transpose is not symmetric in the last bits.
    """
    return matrix.tril() + matrix.tril(-1).T


def pack(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a symmetric matrix (M, M) as (M (M + 1) / 2,)."""
    rows, columns = torch.tril_indices(len(matrix), len(matrix))
    return matrix[rows, columns]


def unpack(triangle: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix (M, M) with this lower triangle."""
    rows, columns = torch.tril_indices(size, size)
    matrix = torch.zeros(size, size, dtype=triangle.dtype)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Return matrix⁻¹ · right by Cholesky decomposition.

    A matrix that rounding has made singular gets a multiple of the identity, ten times larger at
    each attempt.

    Args:
        matrix: A symmetric positive semidefinite matrix, (M, M).
        right: The right-hand sides, (M, C).
    """
    scale = max(float(matrix.diagonal().mean()), torch.finfo(matrix.dtype).tiny)
    jitter = 0.0
    while True:
        shifted = matrix.clone()
        shifted.diagonal().add_(jitter * scale)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            return torch.cholesky_solve(right, factor)
        jitter = 10 * jitter if jitter else FIRST_JITTER
