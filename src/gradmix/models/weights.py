"""Load saved weights into networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def load_matching(module: nn.Module, given: Mapping[str, Tensor], wanted: Sequence[str]) -> None:
    """Copy tensors into a module by name; its other tensors keep their values.

    Args:
        module: The module.
        given: The tensors.
        wanted: The names of the module's tensors that must be given, and no others.

    Raises:
        InputError: If a tensor is missing, left over or has another shape; nothing changes then.
    """
    own = module.state_dict()
    problems = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "misshaped": [
            f"{name} is {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
            for name in wanted
            if name in given and given[name].shape != own[name].shape
        ],
    }
    if any(problems.values()):
        found = "; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names)
        raise InputError(f"the weights do not fit this network: {found}")
    module.load_state_dict(given, strict=False)


def _listed(names: list[str], limit: int = 8) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _like(saved: Tensor, own: Tensor) -> Tensor:
    """Return the saved tensor in the memory layout of the network's own tensor."""
    if saved.stride() == own.stride():
        return saved
    return torch.empty_like(own, device=saved.device).copy_(saved)
