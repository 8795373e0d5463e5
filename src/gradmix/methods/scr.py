"""SCR, supervised contrastive replay: similar embeddings for a class, prediction by class means.

Source: Mai et al., "Supervised Contrastive Replay: Revisiting the Nearest Class Mean Classifier in
Online Class-Incremental Continual Learning", CVPR Workshops 2021; reference code
RaptorMai/online-continual-learning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.data.augment import second_view
from gradmix.methods.components import Options
from gradmix.methods.icarl import NearestMean
from gradmix.methods.losses import as_soft
from gradmix.models.adapt import Adapted
from gradmix.models.finetune import FineTuned
from gradmix.models.network import Network, new_linear

PROJECTION = 128  # length of the projections that the loss compares


class SCROptions(Options):
    """The reference's values."""

    temperature: Number = setting(0.07, "Temperature of the contrastive loss.", gt=0)
    crop: Number = setting(0.2, "Smallest share of an image in its second view.", gt=0, le=1)


class SCR(NearestMean):
    """A contrastive loss on two views of B1 ∪ B2; a prediction is the nearest mean of exemplars.

    The loss makes projections of samples with one label similar. The projector is a small network
    on the embedding, which only the loss uses. Class means are means of embeddings.

    Choices where the reference does not fit: the first task trains on B1 alone, because the memory
    is filled at its end. (The reference trains only when the memory has samples.) Images with one
    channel are not mirrored. The second view of rows of numbers is the rows with some noise.

    Mixing: the second view shows the mixed images. Two samples are as similar as their soft labels:
    the weight of a pair is the product y_i · y_j in place of 0 or 1. Criterion: a linear head that
    learns from the embeddings without changing them, reported as "head".
    """

    row_wise = False  # each row is compared with all others
    options: SCROptions = SCROptions()
    other_networks = ("projector",)
    model: Network | Adapted | FineTuned

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size, generator = self.head.in_features, self.streams.generator("projector")
        kind: dict[str, Any] = {"generator": generator, "device": self.head.weight.device}
        self.projector = nn.Sequential(
            new_linear(size, size, **kind), nn.ReLU(), new_linear(size, PROJECTION, **kind)
        )

    def trained_modules(self) -> list[nn.Module]:
        """Add the projector."""
        return [self.model, self.projector]

    def train_step(self, step: int) -> Tensor:
        """Return the contrastive loss of two views, plus the cross-entropy of the linear head."""
        mixed = self.mixed_batch(step)
        generator = self.streams.device("views")
        other = second_view(
            mixed.x, self.normalise, smallest=self.options.crop, generator=generator
        )
        one, two = (self.model.features(x, mixed.mix, mixed.at) for x in (mixed.x, other))
        projected = F.normalize(self.projector(torch.cat([one, two])), dim=1)
        soft = self.smoothed(as_soft(mixed.targets, self.head.out_features))
        loss = supervised_contrast(projected, soft.repeat(2, 1), self.options.temperature)
        return loss + self.class_loss(self.head(one.detach()), mixed.targets)


def supervised_contrast(projected: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss (Khosla et al., NeurIPS 2020) with soft labels.

    For each row, the softmax runs over the similarities with all other rows. The loss is minus the
    mean of its logarithms, weighted by the products of the labels.

    Args:
        projected: Rows of length 1, (n, p).
        targets: Soft labels, (n, C).
        temperature: Divides the similarities.
    """
    own = torch.eye(len(projected), dtype=torch.bool, device=projected.device)
    similar = (projected @ projected.T / temperature).masked_fill(own, -torch.inf)
    logarithms = similar.log_softmax(dim=1).masked_fill(own, 0.0)
    weights = (targets @ targets.T).masked_fill(own, 0.0)
    return -((weights * logarithms).sum(dim=1) / weights.sum(dim=1)).mean()
