"""Heads that grow: new classes, wider embeddings, and the optimizer that goes on.

A head is replaced, not changed, so that autograd and optimizers never see a parameter of
another shape:

    old, network.head = network.head, grow_head(network.head, outputs)
    carry_over(optimizer, old.weight, network.head.weight)
    carry_over(optimizer, old.bias, network.head.bias)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradmix.errors import InputError


def grow_head(head: nn.Linear, outputs: int) -> nn.Linear:
    """A head with more outputs: the old rows and biases exactly, new ones initialised afresh.

    New values are PyTorch's default, drawn from the global generator on the CPU (see
    `RandomStreams.as_global`), so that they are the same on every device.
    """
    return widen_head(head, head.in_features, outputs)


def widen_head(head: nn.Linear, inputs: int, outputs: int) -> nn.Linear:
    """A head for longer embeddings and more classes; the old weights are its top left block.

    FOSTER and MEMO append the features of a new block to the old. All else is initialised
    afresh as in `grow_head`, with the deviation that fits the new number of inputs.
    """
    for name, old, new in (
        ("inputs", head.in_features, inputs),
        ("outputs", head.out_features, outputs),
    ):
        if new < old:
            raise InputError(f"{name} is {new}; this head has {old}, and heads only grow")
    bias = head.bias is not None
    grown = nn.Linear(inputs, outputs, bias).to(head.weight.device, head.weight.dtype)
    with torch.no_grad():
        grown.weight[: head.out_features, : head.in_features] = head.weight
        if bias:
            grown.bias[: head.out_features] = head.bias
    return grown.train(head.training)


def drop_output(head: nn.Linear, label: int) -> nn.Linear:
    """A head without the output `label`; the others keep their weights exactly."""
    kept = [row for row in range(head.out_features) if row != label]
    shorter: nn.Linear = nn.utils.skip_init(
        nn.Linear,
        head.in_features,
        len(kept),
        head.bias is not None,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    with torch.no_grad():
        shorter.weight.copy_(head.weight[kept])
        if head.bias is not None:
            shorter.bias.copy_(head.bias[kept])
    shorter.requires_grad_(head.weight.requires_grad)
    return shorter.train(head.training)


def carry_over(optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    """Let `optimizer` train `new` in place of `old`, with the state it had for `old`.

    State of the parameter's shape (momentum, Adam's moments) moves to the top left of zeros;
    other state, such as Adam's step count, is kept. So old entries move as they would have.
    New ones start without momentum, which in Adam and AdamW lacks the correction of the first
    steps: their first moves are up to about three times as long as in a new optimizer.
    """
    if old.ndim != new.ndim or any(n < o for o, n in zip(old.shape, new.shape, strict=True)):
        raise InputError(
            f"new has shape {tuple(new.shape)}; it must be {tuple(old.shape)} or larger"
        )
    places = [
        (params, number)
        for group in optimizer.param_groups
        for params in [group["params"]]
        for number, param in enumerate(params)
        if param is old
    ]
    if not places:
        raise InputError("old is not among the parameters of optimizer")
    if any(param is new for group in optimizer.param_groups for param in group["params"]):
        raise InputError("new is already among the parameters of optimizer")
    for params, number in places:
        params[number] = new
    if old in optimizer.state:
        state = optimizer.state.pop(old)
        optimizer.state[new] = {key: _enlarge(value, old, new) for key, value in state.items()}


def _enlarge(value: object, old: Tensor, new: Tensor) -> object:
    """State of the old shape, surrounded by zeros; anything else as it is."""
    if not isinstance(value, Tensor) or value.shape != old.shape:
        return value
    grown = torch.zeros_like(new, dtype=value.dtype, device=value.device, requires_grad=False)
    grown[tuple(slice(size) for size in old.shape)] = value
    return grown
