"""Networks on several ranks: weights that are split over them, and BatchNorm over all rows.

With split weights (PyTorch's FSDP2), each rank holds a part of every weight, a `DTensor`. A block
of the network has whole weights only during its forward and backward pass, for which all ranks
gather them. Every rank must therefore make the same forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


# --- BatchNorm ----------------------------------------------------------------------------------

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Sum(torch.autograd.Function):
    """The sum of a tensor over the ranks; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        total = value.clone()
        ranks.all_sum([total])
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        ctx.ranks.all_sum([total])
        return total, None


class SyncedBatchNorm(nn.BatchNorm2d):
    """BatchNorm of inputs (B, C, …), normalised over the rows of all ranks while it trains.

    It takes the weights and the statistics of the layer `like`, which it replaces. PyTorch's
    `SyncBatchNorm` works on GPUs only. This one works on every device, also with float64 and with
    ranks that have different numbers of rows.
    """

    def __init__(self, like: nn.Module, ranks: Ranks) -> None:
        assert isinstance(like, BATCH_NORMS)
        track = like.track_running_stats
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, track)
        self.ranks = ranks
        self.weight, self.bias = like.weight, like.bias
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = like.num_batches_tracked
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised inputs."""
        if not self.training and self.running_mean is not None:
            mean, var = self.running_mean, self.running_var
            return F.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        shape, dims = (1, -1, *(1,) * (x.ndim - 2)), [0, *range(2, x.ndim)]
        wide = x if x.dtype == torch.float64 else x.float()
        rows = wide.new_tensor([x.numel() / x.shape[1]])
        total: Callable[[Tensor, Ranks], Tensor] = _Sum.apply
        sums = total(torch.cat([wide.sum(dims), rows]), self.ranks)
        mean, count = sums[:-1] / sums[-1], sums[-1].detach()
        centred = wide - mean.view(shape)
        variance = total(centred.square().sum(dims), self.ranks) / count
        if self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            pace = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance.detach() * count / (count - 1)
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), pace)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), pace)
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(x.dtype)


def synchronise_batch_norms(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return a network whose BatchNorm layers use the rows of all ranks; it is changed in place."""
    if isinstance(model, BATCH_NORMS):
        return SyncedBatchNorm(model, ranks)
    for name, child in model.named_children():
        setattr(model, name, synchronise_batch_norms(child, ranks))
    return model
