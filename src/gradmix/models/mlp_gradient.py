"""The gradient of an MLP's cross-entropy, written out.

It is what autograd gives, to the last bit, from the same operations in the same order, in a tenth
less time for a whole step: that much goes into modules and the graph where layers are small.
`layers_of` decides where; what it cannot see are hooks on the graph's own nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from gradmix.models.base import Linear, Part
from gradmix.models.mlp import MLP, FlatPart, HiddenLayer

Layer = tuple[nn.Parameter, nn.Parameter]  # weight and bias

HEADS = (Linear, nn.Linear)
MEAN, IGNORED = 1, -100  # how PyTorch's kernels call the mean, and no label at all
ONE = torch.ones((), dtype=torch.float32, device="cpu")  # whatever the defaults are

_nll = torch.ops.aten.nll_loss_forward.default
_nll_backward = torch.ops.aten.nll_loss_backward.default
_log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
_relu_backward = torch.ops.aten.threshold_backward.grad_input


def layers_of(model: nn.Module) -> list[Layer] | None:
    """The layers of an MLP whose gradient may be written out; None where it must not be.

    It must be our MLP as it was made, in float32 on a CPU, all of it trained, and without hooks,
    which would not be called. Products with a layer of width 1 are rounded otherwise.
    """
    if type(model) is not MLP or _is_watched():
        return None
    if type(model.shared) is not FlatPart or type(model.special) is not Part:
        return None
    hidden = [*model.shared, *model.special]
    if any(type(layer) is not HiddenLayer for layer in hidden) or type(model.head) not in HEADS:
        return None
    if any(_is_called_otherwise(module) for module in model.modules()):
        return None
    layers = [(layer.weight, layer.bias) for layer in (*hidden, model.head)]
    values = list(chain(*layers))
    if len(set(values)) < len(values) or not all(_is_plain(value) for value in values):
        return None
    return layers if all(min(weight.shape) > 1 for weight, _ in layers) else None


def _is_watched() -> bool:
    """Whether PyTorch is to do more, or less, than to compute."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.is_anomaly_enabled()
        or not torch.is_grad_enabled()
        or _has_any_global_hook()
    )


def _is_called_otherwise(module: nn.Module) -> bool:
    """Whether calling a module is more than its class's `forward`."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl
        or {"forward", "features"} & vars(module).keys()
    )


def _is_plain(value: object) -> bool:
    """Whether autograd would write down a parameter's gradient and do nothing else."""
    return (
        type(value) is nn.Parameter
        and value.requires_grad
        and value.dtype is torch.float32
        and value.is_cpu
        and value.is_contiguous()
        and value._backward_hooks is None
        and value._post_accumulate_grad_hooks is None
    )


@torch.no_grad()
def cross_entropy(layers: Sequence[Layer], x: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch, by labels (B,) or soft targets (B, C); sets every `grad`."""
    inputs = [x.flatten(1)]  # of each layer
    for weight, bias in layers[:-1]:
        inputs.append(F.linear(inputs[-1], weight, bias).relu_())
    log_p = F.linear(inputs[-1], *layers[-1]).log_softmax(1)
    if targets.is_floating_point():
        loss = -(log_p * targets).sum() / len(x)
        gradient = targets * (-1 / len(x))
    else:
        loss, total = _nll(log_p, targets, None, MEAN, IGNORED)
        gradient = _nll_backward(ONE, log_p, targets, None, MEAN, IGNORED, total)
    gradient = _log_softmax_backward(gradient, log_p, 1, log_p.dtype)
    for number in reversed(range(len(layers))):
        weight, bias = layers[number]
        weight.grad, bias.grad = gradient.t().mm(inputs[number]), gradient.sum(0)
        if number:
            gradient = gradient.mm(weight)
            _relu_backward(gradient, inputs[number], 0, grad_input=gradient)
    return loss
