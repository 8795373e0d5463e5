"""Initial weights from an explicit generator: PyTorch's defaults without its global state."""

from __future__ import annotations

import math

import torch
from torch import nn


def draw_defaults(module: nn.Module, generator: torch.Generator) -> None:
    """Give one layer PyTorch's default initial values; modules without such values are skipped.

    The values are those of the layer's own `reset_parameters` with the same random numbers.
    """
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
        if module.bias is not None:
            bound = 1 / math.sqrt(module.weight[0].numel())
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        module.reset_parameters()


def new_linear(
    inputs: int,
    outputs: int,
    bias: bool = True,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> nn.Linear:
    """Return a linear layer with default initial values, drawn on the CPU.

    On the meta device, the layer has no values.
    """
    if torch.device(device).type == "meta":
        return nn.Linear(inputs, outputs, bias, device="meta", dtype=dtype)
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias, device="cpu")
    draw_defaults(layer, generator)
    return layer.to(device, dtype)
