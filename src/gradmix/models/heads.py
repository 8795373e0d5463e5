"""Heads that grow, shrink and are aligned: new classes, wider embeddings, forgotten classes.

A head is replaced and not changed in place, so that autograd and optimizers never see a
parameter change its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from gradmix.errors import InputError
from gradmix.models.network import new_linear


def grow_head(head: nn.Linear, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a head with more outputs; the old rows and biases are kept exactly."""
    return widen_head(head, head.in_features, outputs, generator=generator)


def widen_head(
    head: nn.Linear, inputs: int, outputs: int, *, generator: torch.Generator
) -> nn.Linear:
    """Return a head for longer embeddings and more classes; the old weights are its first block.

    FOSTER and MEMO append the features of a new block to the old ones. The generator draws the
    other values on the CPU, by PyTorch's default initialisation.
    """
    for name, old, new in (
        ("inputs", head.in_features, inputs),
        ("outputs", head.out_features, outputs),
    ):
        if new < old:
            raise InputError(f"{name} is {new}; this head has {old}, and heads only grow")
    bias = head.bias is not None
    device, dtype = head.weight.device, head.weight.dtype
    grown = new_linear(inputs, outputs, bias, generator=generator, device=device, dtype=dtype)
    with torch.no_grad():
        grown.weight[: head.out_features, : head.in_features] = head.weight
        if bias:
            grown.bias[: head.out_features] = head.bias
    return grown.train(head.training)


def drop_output(head: nn.Linear, label: int) -> nn.Linear:
    """Return a head without the output `label`; the other outputs keep their weights exactly."""
    kept = [row for row in range(head.out_features) if row != label]
    shorter = deepcopy(head)
    shorter.out_features = len(kept)
    for name, rows in head.named_parameters():  # the weight, and the bias if there is one
        setattr(shorter, name, nn.Parameter(rows.detach()[kept], rows.requires_grad))
    return shorter


@torch.no_grad()
def align_weights(head: nn.Linear, old: int, seen: int) -> None:
    """Scale the weights of new classes to the mean length of the old ones, in place.

    The classes from `old` to `seen` − 1 are new; later outputs belong to no class yet. Biases stay.
    Source: Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning",
    CVPR 2020.
    """
    lengths = head.weight.norm(dim=1)
    head.weight[old:seen] *= lengths[:old].mean() / lengths[old:seen].mean()


class BlockLinear(nn.Linear):
    """Several linear layers side by side, each with its own part of the input.

    It is a linear layer whose weight is block-diagonal. DyTox has one block for each task. Each
    block has a bias.
    """

    def __init__(self, blocks: Sequence[nn.Linear]) -> None:
        nn.Module.__init__(self)  # nn.Linear would make a full weight
        self.blocks = nn.ModuleList(blocks)
        self.in_features = sum(block.in_features for block in blocks)
        self.out_features = sum(block.out_features for block in blocks)

    @property
    def layers(self) -> list[nn.Linear]:
        """The blocks."""
        return [block for block in self.blocks if isinstance(block, nn.Linear)]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weights of all blocks, with zeros outside them, (C, d)."""
        weight: Tensor = torch.block_diag(*(block.weight for block in self.layers))
        return weight

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """The biases of all blocks, (C,)."""
        return torch.cat([block.bias for block in self.layers])

    @property
    def mask(self) -> Tensor:
        """Which weights belong to a block, bool (C, d)."""
        ones = (torch.ones_like(block.weight, dtype=torch.bool) for block in self.layers)
        mask: Tensor = torch.block_diag(*ones)
        return mask

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name nn.Linear gives it
        """(B, d) → (B, C)."""
        parts = input.split([block.in_features for block in self.layers], dim=1)
        return torch.cat([block(x) for block, x in zip(self.layers, parts, strict=True)], dim=1)
