"""Use any module with a final linear layer as a network, and load pretrained weights."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.errors import InputError
from gradmix.models.network import Mix, Network
from gradmix.models.weights import load_matching, read_weights

Source = Mapping[str, Tensor] | nn.Module | str | PathLike[str]


class Adapted(nn.Module):
    """Any module with the interface of `Network`, but without its two parts."""

    mix_points = 1  # only the input can be mixed
    draws_randomly = True  # the module may contain dropout

    def __init__(self, module: nn.Module, head_name: str) -> None:
        super().__init__()
        self.module = module
        self._head_name = head_name
        self.embedding_size = self.head.in_features

    @property
    def head(self) -> nn.Linear:
        """The module's final linear layer; assigning another one replaces it."""
        head = self.module.get_submodule(self._head_name)
        assert isinstance(head, nn.Linear)  # see adapt and __setattr__
        return head

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "head":
            super().__setattr__(name, value)
        elif not isinstance(value, nn.Linear):
            raise InputError(f"head is a {type(value).__name__}; it must be an nn.Linear")
        elif self._head_name:
            self.module.set_submodule(self._head_name, value)
        else:  # the module consists of its head
            self.module = value

    def features(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return the input of the head, (B, d), recorded while the whole module runs."""
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self(x, mix, at)
        finally:
            hook.remove()
        if len(seen) != 1 or seen[0].ndim != 2:
            raise InputError(
                f"head {self.head} saw inputs of shapes {[tuple(h.shape) for h in seen]} in one "
                "forward pass; pass as head= the layer that is used once, on one row per sample"
            )
        return seen[0]

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits, (B, C); `mix` is applied to the input, which is point 0."""
        if mix is not None:
            if at != 0:
                raise InputError(
                    f"at is {at}; an adapted network mixes only at point 0, its input "
                    "(see gradmix.models.adapt on how to write a Network)"
                )
            x = mix(x)
        return tensor_of(self.module(x), "logits")


def adapt(module: nn.Module, head: nn.Linear | None = None) -> Network | Adapted:
    """Return a module with the interface of a network: features, head, and a mix of the input.

    The module is not copied. A `Network` is returned unchanged.

    Args:
        module: Any module with a final linear layer.
        head: The layer whose output is the module's; None means the last `nn.Linear` registered.

    Raises:
        InputError: If there is no such layer.

    >>> import torch
    >>> mine = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    >>> network = adapt(mine)
    >>> network.features(torch.zeros(5, 1, 8, 8)).shape, network.head.out_features
    (torch.Size([5, 32]), 10)

    Manifold Mixup of hidden states and methods that change the network (FOSTER, MEMO) need a
    `Network` made of two parts. Split your layers where the general part ends and the special
    part begins. `mix_after` lists the stages of a part after which hidden states may be mixed; 0
    is before the first:

    >>> from gradmix.models import Network, Part
    >>> class Small(Network):
    ...     def __init__(self, outputs):
    ...         shared = Part(
    ...             nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU()),
    ...             nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()),
    ...             mix_after=(0, 1, 2),
    ...         )
    ...         special = Part(nn.Flatten(), nn.Linear(16 * 4 * 4, 32), nn.ReLU())
    ...         super().__init__(shared, special, nn.Linear(32, outputs))
    >>> network = Small(10)
    >>> network(torch.zeros(6, 1, 8, 8), mix=lambda h: (h[:3] + h[3:]) / 2, at=1).shape
    torch.Size([3, 10])
    """
    if isinstance(module, Network | Adapted):
        if head is not None and head is not module.head:
            raise InputError(f"head is {head}, but module has the head {module.head}")
        return module
    if not isinstance(module, nn.Module):
        raise InputError(f"module is {module!r}; give a torch.nn.Module")
    linears = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    names = [name for name, linear in linears.items() if head is None or linear is head]
    if not names:
        wanted = "any nn.Linear" if head is None else f"the head {head} that was given"
        raise InputError(
            f"module is a {type(module).__name__} without {wanted}; "
            "a network needs a final linear layer"
        )
    return Adapted(module, names[-1])


def tensor_of(output: object, *names: str) -> Tensor:
    """Return a module's output; of a Hugging Face output, the first named attribute there is."""
    for value in (output, *(getattr(output, name, None) for name in names)):
        if isinstance(value, Tensor):
            return value
    wanted = " or ".join(f".{name}" for name in names)
    raise InputError(
        f"the model returned a {type(output).__name__}; it must return a tensor, or an object "
        f"with {wanted}"
    )


def without_head(module: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a module that stops before its final linear layer.

    A module whose output for `x` is not the output of its last `nn.Linear` is returned unchanged.
    """
    linears = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not linears or not linears[-1]:
        return module
    shorter = deepcopy(module)
    head = shorter.get_submodule(linears[-1])
    shorter.set_submodule(linears[-1], nn.Identity())
    names = ("last_hidden_state", "logits")
    try:
        embedding, output = tensor_of(shorter(x), *names), tensor_of(module(x), *names)
        is_head = embedding.ndim == 2 and torch.allclose(head(embedding), output, atol=1e-5)
    except (InputError, RuntimeError):  # the layers after it need its output
        return module
    return shorter if is_head else module


def load_backbone(
    network: Network | Adapted, source: Source, rename: Mapping[str, str] | None = None
) -> None:
    """Load pretrained weights into everything except the head.

    Args:
        network: The network.
        source: A state dict, a module, or the path of a file (`.safetensors`, or a state dict
            that `torch.load` reads with `weights_only=True`). Tensors are matched by name and
            shape; the head's are skipped.
        rename: Replaces beginnings of the source's names. `TORCHVISION_NAMES` in
            `gradmix.models.convolutional` loads torchvision's resnet18.

    Raises:
        InputError: If a tensor is missing, left over or has another shape; nothing changes then.
    """
    target = network.module if isinstance(network, Adapted) else network
    head_names = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in target.named_modules(remove_duplicate=False)
        if module is network.head
        for name in ("weight", "bias")
    }
    wanted = [name for name in target.state_dict() if name not in head_names]
    if not wanted:
        raise InputError("weights: the network has only a head, which is not loaded; omit them")
    if isinstance(source, Adapted):
        source = source.module
    if isinstance(source, nn.Module):
        source = source.state_dict()
    tensors = source if isinstance(source, Mapping) else read_weights(source)
    given = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"source[{name!r}] is a {type(tensor).__name__}, not a tensor")
        beginnings = (pair for pair in (rename or {}).items() if name.startswith(pair[0]))
        old, new = next(beginnings, ("", ""))
        if (own_name := new + name.removeprefix(old)) not in head_names:
            given[own_name] = tensor
    load_matching(target, given, wanted)
