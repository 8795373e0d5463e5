"""Fine-tuning: a pretrained backbone whose last layers, or all, train with a linear head.

    photos ─ resize, normalise ─ backbone ─ embedding of length 1 (B, d) ─ head ─ logits (B, C)

The backbone keeps its BatchNorm statistics: batches of few classes would shift them, and the head
starts from a closed-form solution on features that must not change with the mode.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models.network import Mix, new_linear
from gradmix.models.pretrained import Backbone

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
LAST_SHARE = 0.2  # of the backbone's weights that "last" trains at least

FineTune = Literal["last", "all"]


class FineTuned(nn.Module):
    """A pretrained backbone and a linear head on its embeddings, which are scaled to length 1.

    Only the input can be mixed.

    Args:
        backbone: The backbone; its module is copied.
        head: The head.
        finetune: Which layers of the backbone train: "last" (its last blocks, at least a fifth of
            its weights) or "all".
    """

    mix_points = 1
    draws_randomly = True  # a backbone may contain dropout

    def __init__(self, backbone: Backbone, head: nn.Linear, finetune: FineTune) -> None:
        super().__init__()
        if finetune not in ("last", "all"):
            raise InputError(f"finetune is {finetune!r}; give 'last' or 'all'")
        self._input = replace(backbone, module=nn.Identity())  # for size and normalisation
        self.module = deepcopy(backbone.module).requires_grad_(False)
        self._trained = last_blocks(self.module) if finetune == "last" else [self.module]
        for block in self._trained:
            block.requires_grad_(True)
        self.head = head
        self.embedding_size = head.in_features

    def features(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return embeddings of length 1, (B, d).

        Args:
            x: Photos of any size with 1, 3 or 4 channels and values from 0 to 1, (B, C, H, W).
            mix: Applied to the photos.
            at: 0, the input.
        """
        if mix is not None:
            if at != 0:
                raise InputError(f"at is {at}; a backbone mixes only at point 0, its input")
            x = mix(x)
        return F.normalize(self.module(self._input.normalise(self._input.fit(x))))

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits, (B, C); see `features`."""
        logits: Tensor = self.head(self.features(x, mix, at))
        return logits

    def pretrained_parameters(self) -> list[nn.Parameter]:
        """Return the backbone's parameters that train."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def train(self, mode: bool = True) -> FineTuned:
        """Set the mode; frozen layers and all BatchNorm layers stay in evaluation mode."""
        super().train(mode)
        self.module.eval()
        for block in self._trained:
            for module in block.modules():
                module.training = mode and not isinstance(module, BATCH_NORMS)
        return self


def fine_tune(
    backbone: Backbone, outputs: int, finetune: FineTune, *, generator: torch.Generator
) -> FineTuned:
    """Return a network that fine-tunes a copy of a backbone.

    Args:
        backbone: The pretrained backbone, from `load_pretrained`.
        outputs: Classes.
        finetune: "last" or "all"; see `FineTuned`.
        generator: Draws the head, on the CPU. Methods replace it by a closed-form solution.
    """
    head = new_linear(backbone.embedding_size, outputs, generator=generator)
    return FineTuned(backbone, head, finetune)


def last_blocks(module: nn.Module, share: float = LAST_SHARE) -> list[nn.Module]:
    """Return the last blocks of a module that together have at least a share of its weights.

    >>> layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> [block.out_features for block in last_blocks(layers)]
    [8, 1]
    """
    total, chosen = _weights(module), 0
    blocks = _blocks(module, total)
    first = len(blocks)
    while first and chosen < share * total:
        first -= 1
        chosen += _weights(blocks[first])
    return blocks[first:]


def _blocks(module: nn.Module, total: int) -> list[nn.Module]:
    """Return blocks in order: sequences and parts with most of the weights are taken apart."""
    children = [child for child in module.children() if _weights(child)]
    apart = isinstance(module, nn.Sequential | nn.ModuleList) or _weights(module) > total / 2
    if not children or not apart:
        return [module]
    return [block for child in children for block in _blocks(child, total)]


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
