"""What closed-form heads share: linear classifiers computed from sums over samples.

    embedding (d,) ─ normalise ─ features h (M,) ─ linear ─ scores (C,)

No head has epochs, a learning rate or exemplars. `update` adds samples to the stored sums, and the
linear layer is computed from the sums when it is first needed. The sums of a union of samples are
the sums of the parts' sums, so the order of the classes and the number of calls make no difference
beyond floating-point rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import FileError, InputError
from gradmix.files.schema import Schema, TensorOf, validate

SAME_SAMPLES = 1e-3  # relative tolerance: the same features, computed in another batch, as float16
FIRST_JITTER = 1e-12  # relative to the mean of the diagonal
STATE = "the state of the head"  # the name of the file in error messages


class Linear(NamedTuple):
    """A linear classifier on features: scores = h · weight + bias."""

    weight: Tensor  # (M, C)
    bias: Tensor  # (C,)


class SavedSums(Schema):
    """The sums of a head in a file; `gram` is packed into its lower triangle."""

    classes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
    counts: Annotated[Tensor, TensorOf(torch.int64, torch.float64, ndim=1, finite=True)]
    sums: Annotated[Tensor, TensorOf(torch.float64, ndim=2, finite=True)]
    gram: Annotated[Tensor, TensorOf(torch.float64, ndim=1, finite=True)]


class _Normalise(nn.Module):
    """Scales rows to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, d) → (B, d)."""
        return F.normalize(x)


class ClosedFormHead(ABC):
    """A classifier on frozen embeddings that learns classes in any order and any number of calls.

    Labels are integers. The columns of all outputs follow `classes`, in ascending order.

    Args:
        embedding_size: The number of values of an embedding, d.
        normalise: Whether to scale each embedding to length 1 first.
    """

    second_moments = True  # whether the head needs Σ h hᵀ, M² · 8 bytes

    def __init__(self, embedding_size: int, *, normalise: bool = True) -> None:
        if embedding_size < 1:
            raise InputError(f"embedding_size is {embedding_size}; it must be at least 1")
        self.embedding_size, self.normalise = embedding_size, normalise
        size, order = self.feature_size, self.feature_size if self.second_moments else 0
        self._labels = torch.zeros(0, dtype=torch.int64)  # in ascending order, (C,)
        self._counts = torch.zeros(0, dtype=torch.int64)  # samples, or the sum of weights, (C,)
        self._sums = torch.zeros(0, size, dtype=torch.float64)  # of the features by class, (C, M)
        self._gram = torch.zeros(order, order, dtype=torch.float64)  # Σ h hᵀ, (M, M) or (0, 0)
        self._linear: Linear | None = None

    @property
    def feature_size(self) -> int:
        """The number of features, M."""
        return self.embedding_size

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels that have been learned, in ascending order."""
        return tuple(self._labels.tolist())

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of samples of each class."""
        return tuple(self._counts.tolist())

    @property
    def samples(self) -> float:
        """The number of samples of all classes, or the sum of their weights."""
        return float(self._counts.sum())

    def means(self) -> Tensor:
        """Return the mean of the features of each class, (C, M)."""
        return self._sums / self._counts[:, None]

    def scatter(self) -> Tensor:
        """Return Σ (h − μ_y)(h − μ_y)ᵀ over all samples, (M, M)."""
        return self._gram - self._sums.T @ self.means()

    def features(self, embeddings: Tensor) -> Tensor:
        """Return the features of embeddings (B, d): (B, M) in float64 on the CPU."""
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_size:
            raise InputError(
                f"embeddings has shape {tuple(embeddings.shape)}; "
                f"it must be (samples, {self.embedding_size})"
            )
        rows = embeddings.detach().to("cpu", torch.float64)
        if not torch.isfinite(rows).all():
            raise InputError("embeddings has values that are not finite; check the backbone")
        return F.normalize(rows) if self.normalise else rows

    def feature_module(self) -> nn.Module:
        """Return `features` as a module in float32, for export."""
        return _Normalise() if self.normalise else nn.Identity()

    # --- learning and forgetting ------------------------------------------------------------

    def update(self, embeddings: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Learn samples, of known or new classes.

        Args:
            embeddings: The embeddings, (B, d).
            labels: Their labels, (B,), of integers from 0.
            weights: How often each sample counts, (B,), above 0; None: once.

        Raises:
            InputError: If the shapes or values cannot be used; nothing is changed.
        """
        if labels.ndim != 1 or len(labels) != len(embeddings) or labels.is_floating_point():
            raise InputError(
                f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                f"it must hold one integer for each of {len(embeddings)} embeddings"
            )
        if (labels < 0).any():
            raise InputError(f"labels has {int(labels.min())}; labels must be 0 or more")
        if weights is not None:
            weights = weights.to("cpu", torch.float64)
            if weights.shape != labels.shape or not (weights > 0).logical_and(weights < inf).all():
                raise InputError(f"weights must be {len(labels)} finite numbers above 0")
        features, labels = self.features(embeddings), labels.to("cpu", torch.int64)
        times = torch.ones_like(labels) if weights is None else weights
        weighted = features if weights is None else features * weights[:, None]
        known = torch.cat([self._labels, labels]).unique()  # in ascending order
        old, new = torch.searchsorted(known, self._labels), torch.searchsorted(known, labels)
        dtype = torch.promote_types(self._counts.dtype, times.dtype)  # int64 without weights
        counts = torch.zeros(len(known), dtype=dtype).index_add(0, old, self._counts.to(dtype))
        sums = torch.zeros(len(known), features.shape[1], dtype=torch.float64)
        if self.second_moments:
            self._gram = symmetric(self._gram + weighted.T @ features)
        self._sums = sums.index_add(0, old, self._sums).index_add(0, new, weighted)
        self._labels, self._counts = known, counts.index_add(0, new, times.to(dtype))
        self._linear = None

    def forget(self, label: int, embeddings: Tensor | None = None) -> bool:
        """Remove a class, and return whether the head is as if it had never learned it.

        The removal is exact if the head stores no second moments (`NearestMean`), or if the
        class's own embeddings are given. Otherwise its count and its mean are removed, and the
        second moments are reduced as if the class had the average covariance of all classes. The
        difference between its covariance and the average remains.

        Args:
            label: The class.
            embeddings: All embeddings that the class was learned from, (n, d), in any order.

        Raises:
            InputError: If the class is unknown, or the embeddings are not the learned ones.
        """
        if label not in self.classes:
            raise InputError(f"label is {label}; known are {', '.join(map(str, self.classes))}")
        own = None if embeddings is None else self.features(embeddings)
        others = self._labels != label
        if own is not None:
            self._check_same_samples(self.classes.index(label), own)
        if self.second_moments and not others.any():
            self._gram = torch.zeros_like(self._gram)
        elif self.second_moments and own is not None:
            self._gram = symmetric(self._gram - own.T @ own)
        elif self.second_moments:
            share = self._counts[others].sum() / self._counts.sum()
            means = self.means()[others]
            self._gram = symmetric(self.scatter() * share + self._sums[others].T @ means)
        self._labels, self._counts = self._labels[others], self._counts[others]
        self._sums, self._linear = self._sums[others], None
        return not self.second_moments or own is not None or not others.any()

    def _check_same_samples(self, place: int, features: Tensor) -> None:
        """Refuse features other than the added ones, by their number and their sum."""
        label, count = self.classes[place], float(self._counts[place])
        if len(features) != count:
            raise InputError(
                f"embeddings has {len(features)} rows, but class {label} was learned from "
                f"{count:g}; pass all of them, or None"
            )
        near = SAME_SAMPLES * features.abs().sum(0)
        if ((features.sum(0) - self._sums[place]).abs() > near).any():
            raise InputError(
                f"embeddings differ from those that class {label} was learned from; pass the "
                "same embeddings, or None"
            )

    def shift_labels(self, label: int) -> None:
        """Lower every label above `label` by one, after the class `label` was removed."""
        self._labels = self._labels - (self._labels > label).long()
        self._linear = None

    # --- the linear classifier --------------------------------------------------------------

    def linear(self) -> Linear:
        """Return the linear classifier on features; it is computed when the sums have changed."""
        if not len(self._labels):
            raise InputError("the head has no classes; call update first")
        if self._linear is None:
            self._linear = self._solve()
        return self._linear

    @abstractmethod
    def _solve(self) -> Linear:
        """Compute the linear classifier of the sums."""

    def scores(self, embeddings: Tensor) -> Tensor:
        """Return the score of each class for embeddings (B, d): (B, C) in float64."""
        weight, bias = self.linear()
        return self.features(embeddings) @ weight + bias

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that was learned, as plain tensors."""
        triangle = self._gram[tuple(torch.tril_indices(*self._gram.shape))]  # a copy
        kept = {"classes": self._labels, "counts": self._counts, "sums": self._sums}
        return {**{name: part.clone() for name, part in kept.items()}, "gram": triangle}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything that was learned by the state of a head with the same arguments.

        Raises:
            FileError: If the state does not fit; nothing is changed.
        """
        saved = validate(SavedSums, dict(state), STATE)
        order, classes = len(self._gram), len(saved.classes)
        triangle = order * (order + 1) // 2
        shapes = {"counts": (classes,), "sums": (classes, self.feature_size), "gram": (triangle,)}
        for name, shape in shapes.items():
            found = tuple(getattr(saved, name).shape)
            if found != shape:
                raise FileError(f"{STATE} is damaged: {name} has shape {found}, not {shape}")
        if (saved.classes.diff() <= 0).any() or (saved.counts <= 0).any():
            raise FileError(f"{STATE} is damaged: classes must ascend and counts be positive")
        copies = (part.to("cpu", copy=True) for part in (saved.classes, saved.counts, saved.sums))
        self._labels, self._counts, self._sums = copies
        gram = torch.zeros(order, order, dtype=torch.float64)
        gram[tuple(torch.tril_indices(order, order))] = saved.gram.cpu()
        self._gram, self._linear = symmetric(gram), None


def symmetric(matrix: Tensor) -> Tensor:
    """Return a matrix whose upper triangle mirrors the lower, as after saving and loading it.

    The product of a matrix with its own transpose is not symmetric in the last bits.
    """
    return matrix.tril() + matrix.tril(-1).T


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
