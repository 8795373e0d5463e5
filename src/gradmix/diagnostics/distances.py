"""Cosine distances between the gradients of samples, within and between classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import Exemplars, embed, find_head
from gradmix.criterion.embedding import check_samples
from gradmix.diagnostics.inputs import Pair
from gradmix.errors import InputError

BLOCK = 1024  # samples per block of the distance matrix


class ClassDistances(NamedTuple):
    """Mean cosine distances, 0 (same direction) to 2 (opposite)."""

    within: float  # over pairs of different samples of one class
    between: float  # over pairs of samples of two classes


def class_distances(
    model: nn.Module, samples: Pair, *, head: nn.Linear | None = None
) -> ClassDistances:
    """Return the mean cosine distance 1 − cos(g_i, g_j) of last-layer gradients.

    With g = δ ⊗ (X, 1) and δ = softmax(z) − y, cos(g_i, g_j) is the cosine of the δ times the
    cosine of the (X, 1), so no gradient is computed. Only directions matter: samples whose gradient
    has vanished count as well. Without bias, an embedding of zeros has distance 1 to all.

    Args:
        model: A classifier.
        samples: Inputs and labels with two classes and two samples of one of them.
        head: The last layer. Default: the last `nn.Linear`.

    Raises:
        InputError: An argument is invalid.
    """
    head = find_head(model) if head is None else head
    x, y = check_samples("samples", samples, head.out_features)
    if head.out_features < 2:
        raise InputError("head has 1 output; gradients of a single class are zero, give 2 or more")
    _, counts = y.unique(return_counts=True)
    if len(counts) < 2 or int(counts.max()) < 2:
        raise InputError(
            f"samples have {len(counts)} classes of at most {int(counts.max())}; distances within "
            "and between classes need two classes and two samples of one of them"
        )
    seen = embed(model, head, x, y)
    errors = _error_directions(seen)
    embeddings = seen.embeddings.double()
    if head.bias is not None:
        embeddings = torch.cat([embeddings, embeddings.new_ones(len(y), 1)], dim=1)
    embeddings = nn.functional.normalize(embeddings, dim=1)
    within, between = 0.0, 0.0
    for rows in torch.arange(len(y), device=y.device).split(BLOCK):
        distances = 1 - (errors[rows] @ errors.T) * (embeddings[rows] @ embeddings.T)
        same = y[rows, None] == y
        between += float(distances[~same].sum())
        distances[torch.arange(len(rows), device=y.device), rows] = 0  # distance to itself
        within += float(distances[same].sum())
    pairs_within = int((counts * (counts - 1)).sum())
    pairs_between = len(y) ** 2 - int(counts.square().sum())
    return ClassDistances(within / pairs_within, between / pairs_between)


def _error_directions(seen: Exemplars) -> Tensor:
    """Return softmax(z) − y, normalised, (n, C) in float64.

    Up to a factor, the entries of other classes are the softmax of their logits, and the entry of
    the own class is minus their sum. This form neither cancels nor underflows.
    """
    own = seen.labels[:, None]
    others = seen.logits.double().scatter(1, own, -torch.inf).softmax(dim=1)
    return nn.functional.normalize(others.scatter(1, own, -1.0), dim=1)
