"""Pieces of losses that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def as_soft(targets: Tensor, outputs: int) -> Tensor:
    """Return soft labels, (B, C), with C outputs; hard labels (B,) become one-hot."""
    return targets if targets.ndim == 2 else F.one_hot(targets, outputs).to(torch.float32)


def fold_old_classes(targets: Tensor, number_old: int) -> Tensor:
    """Return the summed mass of the old classes, which come first, then each new one's, (B, 1 + n).

    >>> fold_old_classes(torch.tensor([[0.25, 0.25, 0.5]]), 2)
    tensor([[0.5000, 0.5000]])
    """
    return torch.cat([targets[:, :number_old].sum(1, keepdim=True), targets[:, number_old:]], 1)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Return the mean cross-entropy of logits (B, C), both divided by T, without the factor T²."""
    soft = (teacher / temperature).softmax(dim=1)
    return -(soft * (student / temperature).log_softmax(dim=1)).sum(dim=1).mean()


def contrast(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Return the InfoNCE loss of two views: each row must find the other view of its sample.

    Queries and keys, (2 B, d) each, are the first views and then the second views of the same
    samples. They are compared by cosine. A row is not compared with its own key.
    """
    number = len(queries)
    scores = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / temperature
    own = torch.eye(number, dtype=torch.bool, device=scores.device)
    other = torch.arange(number, device=scores.device).roll(number // 2)
    return F.cross_entropy(scores.masked_fill(own, -torch.inf), other)
