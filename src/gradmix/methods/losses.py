"""What several methods have in common: soft labels, folded labels, distillation, splitting."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models.base import Network


def as_soft(targets: Tensor, outputs: int) -> Tensor:
    """Soft labels (B, C) of hard ones (B,); soft ones as they are."""
    return targets if targets.ndim == 2 else F.one_hot(targets, outputs).to(torch.float32)


def fold_old_classes(targets: Tensor, number_old: int) -> Tensor:
    """One slot for the mass of all old classes, then the new classes' own, (B, 1 + new)."""
    return torch.cat([targets[:, :number_old].sum(1, keepdim=True), targets[:, number_old:]], 1)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy of softened outputs, mean over the batch, without the factor T²."""
    soft = (teacher / temperature).softmax(dim=1)
    return -(soft * (student / temperature).log_softmax(dim=1)).sum(dim=1).mean()


def check_splittable(model: nn.Module, method: str) -> Network:
    """Networks that change need to know their parts."""
    if not isinstance(model, Network):
        raise InputError(
            f"model is a {type(model).__name__}; {method} changes the network and needs one with "
            "shared and special parts: write it as a gradmix.models.base.Network"
        )
    return model
