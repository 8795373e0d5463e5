"""Heads that grow and shrink: new classes, wider embeddings, forgotten classes.

A head is replaced and not changed in place, so that autograd and optimizers never see a
parameter change its shape.
"""

from __future__ import annotations

import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.models.network import new_linear


def grow_head(head: nn.Linear, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a head with more outputs; the old rows and biases are kept exactly.

    Args:
        head: The present head.
        outputs: New number of outputs.
        generator: Draws the new values on the CPU, by PyTorch's default initialisation.
    """
    return widen_head(head, head.in_features, outputs, generator=generator)


def widen_head(
    head: nn.Linear, inputs: int, outputs: int, *, generator: torch.Generator
) -> nn.Linear:
    """Return a head for longer embeddings and more classes; the old weights are its first block.

    FOSTER and MEMO append the features of a new block to the old ones.

    Raises:
        InputError: If the head would have fewer inputs or outputs than before.
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
    bias = head.bias is not None
    shorter: nn.Linear = nn.utils.skip_init(
        nn.Linear,
        head.in_features,
        len(kept),
        bias,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    with torch.no_grad():
        shorter.weight.copy_(head.weight[kept])
        if bias:
            shorter.bias.copy_(head.bias[kept])
    shorter.requires_grad_(head.weight.requires_grad)
    return shorter.train(head.training)
