"""Pieces of losses that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def as_soft(targets: Tensor, outputs: int) -> Tensor:
    """Return soft labels (B, C); hard labels (B,) become one-hot."""
    return targets if targets.ndim == 2 else F.one_hot(targets, outputs).to(torch.float32)


def fold_old_classes(targets: Tensor, number_old: int) -> Tensor:
    """Return the summed mass of the old classes, then the mass of each new class, (B, 1 + new)."""
    return torch.cat([targets[:, :number_old].sum(1, keepdim=True), targets[:, number_old:]], 1)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Return the cross-entropy of softened outputs, averaged over the batch, without factor T²."""
    soft = (teacher / temperature).softmax(dim=1)
    return -(soft * (student / temperature).log_softmax(dim=1)).sum(dim=1).mean()
