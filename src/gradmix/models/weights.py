"""Saved weights into networks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gradmix.errors import InputError


def load_weights(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Give a network saved weights; InputError if they are those of another.

    A network on the meta device takes the saved tensors as its own, once it is clear that they fit.
    """
    own = network.state_dict()
    if own.keys() != saved.keys():
        names = ", ".join(sorted(own.keys() ^ saved.keys())[:3])
        raise InputError(f"the saved weights are of another network ({names})")
    for name, value in own.items():
        if saved[name].shape != value.shape or saved[name].dtype != value.dtype:
            raise InputError(
                f"{name} is saved as {saved[name].dtype} {tuple(saved[name].shape)}; "
                f"this network has {value.dtype} {tuple(value.shape)}"
            )
    if any(value.is_meta for value in own.values()):
        _take_over(network, saved)
    else:
        network.load_state_dict(saved)


def _take_over(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Let saved tensors be the network's own: what `assign=True` of PyTorch does, sooner done."""
    for prefix, module in network.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, old in module._parameters.items():
            if old is not None:
                new = nn.Parameter(saved[start + name], requires_grad=old.requires_grad)
                module._parameters[name] = new
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            if module._buffers[name] is not None:
                module._buffers[name] = saved[start + name]
