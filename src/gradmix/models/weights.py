"""Load saved weights into networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradmix.errors import InputError


def load_weights(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load saved weights; a network on the meta device takes the saved tensors as its own.

    Raises:
        InputError: If a name, shape or dtype differs from the network's; nothing changes then.
    """
    own = network.state_dict()
    if own.keys() != saved.keys():
        names = ", ".join(sorted(own.keys() ^ saved.keys())[:3])
        raise InputError(f"the saved weights belong to another network ({names})")
    for name, value in own.items():
        if saved[name].shape != value.shape or saved[name].dtype != value.dtype:
            raise InputError(
                f"{name} is saved as {saved[name].dtype} {tuple(saved[name].shape)}; "
                f"this network has {value.dtype} {tuple(value.shape)}"
            )
    empty = any(value.is_meta for value in own.values())
    laid_out = {name: _like(saved[name], value) for name, value in own.items()} if empty else saved
    network.load_state_dict(laid_out, assign=empty)


def _like(saved: Tensor, own: Tensor) -> Tensor:
    """Return the saved tensor in the memory layout of the network's own tensor."""
    if saved.stride() == own.stride():
        return saved
    return torch.empty_like(own, device=saved.device).copy_(saved)
