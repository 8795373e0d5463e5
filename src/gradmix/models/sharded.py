"""Networks whose weights are split over the ranks, by PyTorch's FSDP2.

Each rank holds a part of every weight, a `DTensor`. A block of the network has whole weights only
during its forward and backward pass, for which all ranks gather them. Every rank must therefore
make the same forward passes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradmix.ranks import Ranks


def shard(model: nn.Module, head: nn.Linear, ranks: Ranks) -> None:
    """Split the weights of a network over the ranks, in place, and move them to their devices.

    A block's weights are gathered together. Blocks are the head and those members of every
    `nn.Sequential` and `nn.ModuleList` that have weights.

    Args:
        model: The network, with the same weights on all ranks.
        head: Its last layer, which is also called alone.
        ranks: The ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh  # slow to import
    from torch.distributed.fsdp import fully_shard

    lists = (nn.Sequential, nn.ModuleList)
    members = {child for m in model.modules() if isinstance(m, lists) for child in m.children()}
    blocks = {m for m in members if list(m.parameters()) and not isinstance(m, lists)}
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for module in reversed(list(model.modules())):  # inner blocks first
        if module in blocks or module is head or module is model:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)


def whole(value: Tensor) -> Tensor:
    """Return a whole weight; if it is split, all ranks must call this."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def whole_state(state: Any, keep: bool) -> Any:
    """Return a state with whole tensors, on the CPU where they were split; all ranks call this.

    Args:
        state: Tensors and other values in dicts and lists.
        keep: Whether this rank needs the result; otherwise it holds one whole tensor at a time.
    """
    if isinstance(state, dict):
        return {name: whole_state(value, keep) for name, value in state.items()}
    if isinstance(state, list):
        return [whole_state(value, keep) for value in state]
    if not hasattr(state, "full_tensor"):
        return state
    full = whole(state)
    return full.cpu() if keep else None


def split_like(value: Tensor, own: Tensor) -> Tensor:
    """Return a whole tensor in the form of `own`: on its device, and split if it is split."""
    if not hasattr(own, "full_tensor"):
        return value.to(own.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
