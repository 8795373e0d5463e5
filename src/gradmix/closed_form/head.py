"""The interface of the closed-form heads: linear classifiers computed from sums over samples.

    embedding (d,) ─ normalise ─ features (M,) ─ linear ─ scores (C,)

No head has epochs, a learning rate or exemplars. `update` adds samples to the stored sums, and
the linear layer is computed from the sums when it is first needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.closed_form._moments import Moments
from gradmix.errors import InputError


class Linear(NamedTuple):
    """A linear classifier on features: scores = h · weight + bias."""

    weight: Tensor  # (M, C)
    bias: Tensor  # (C,)


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

    second_moments = True  # whether the head needs Σ h hᵀ

    def __init__(self, embedding_size: int, *, normalise: bool = True) -> None:
        if embedding_size < 1:
            raise InputError(f"embedding_size is {embedding_size}; it must be at least 1")
        self.embedding_size, self.normalise = embedding_size, normalise
        self._moments = Moments(self.feature_size, second=self.second_moments)
        self._linear: Linear | None = None

    @property
    def feature_size(self) -> int:
        """The number of features, M."""
        return self.embedding_size

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels that have been learned, in ascending order."""
        return tuple(self._moments.classes.tolist())

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of samples of each class."""
        return tuple(self._moments.counts.tolist())

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
        self._moments.add(self.features(embeddings), labels.to("cpu", torch.int64), weights)
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
        exact = self._moments.remove(label, own)
        self._linear = None
        return exact

    def shift_labels(self, label: int) -> None:
        """Lower every label above `label` by one, after the class `label` was removed."""
        self._moments.classes = self._moments.classes - (self._moments.classes > label).long()
        self._linear = None

    def linear(self) -> Linear:
        """Return the linear classifier on features; it is computed when the sums have changed."""
        if not len(self._moments.classes):
            raise InputError("the head has no classes; call update first")
        if self._linear is None:
            self._linear = self._solve(self._moments)
        return self._linear

    def scores(self, embeddings: Tensor) -> Tensor:
        """Return the score of each class for embeddings (B, d): (B, C) in float64."""
        weight, bias = self.linear()
        return self.features(embeddings) @ weight + bias

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that was learned, as plain tensors."""
        return self._moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything that was learned by the state of a head with the same arguments.

        Raises:
            FileError: If the state does not fit; nothing is changed.
        """
        self._moments.load_state_dict(state)
        self._linear = None

    @abstractmethod
    def _solve(self, moments: Moments) -> Linear:
        """Compute the linear classifier of the moments."""
