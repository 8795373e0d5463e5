"""How alike the gradients of a class are: cosine distances within and between classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import Exemplars, embed, find_head
from gradmix.diagnostics.inputs import Pair, check_samples
from gradmix.errors import InputError

BLOCK = 1024  # samples compared with all others at once


class ClassDistances(NamedTuple):
    """Mean cosine distances, 0 (same direction) to 2 (opposite)."""

    within: float  # over pairs of different samples of one class
    between: float  # over pairs of samples of two classes


def class_distances(
    model: nn.Module, samples: Pair, *, head: nn.Linear | None = None
) -> ClassDistances:
    """Mean cosine distance 1 − cos(g_i, g_j) of the samples' last-layer gradients.

    No gradient is built: g = δ ⊗ (X, 1) with δ = softmax(z) − y, so the cosine of two is that of
    their δ times that of their (X, 1), or of X alone without bias. It depends on directions
    only, so samples that are learned to the last bit, whose gradient has vanished, count as any
    other. (Without bias an embedding of zeros has no direction: its distance to all is 1.)
    """
    head = find_head(model) if head is None else head
    x, y = check_samples("samples", samples, head)
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
        distances[torch.arange(len(rows), device=y.device), rows] = 0  # of a sample to itself
        within += float(distances[same].sum())
    pairs_within = int((counts * (counts - 1)).sum())
    pairs_between = len(y) ** 2 - int(counts.square().sum())
    return ClassDistances(within / pairs_within, between / pairs_between)


def _error_directions(seen: Exemplars) -> Tensor:
    """softmax(z) − y, normalised, (n, C) in float64.

    Without its own class a sample's softmax is that of the other logits up to a factor, and the
    own entry is minus their sum: so nothing cancels or underflows, however sure the network is.
    """
    own = seen.labels[:, None]
    others = seen.logits.double().scatter(1, own, -torch.inf).softmax(dim=1)
    return nn.functional.normalize(others.scatter(1, own, -1.0), dim=1)
