"""Networks: a backbone that computes embeddings, and a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gradmix.errors import InputError, UnknownNameError
from gradmix.models.adapt import Adapted, adapt, load_backbone
from gradmix.models.convolutional import CNN, ResNet18
from gradmix.models.heads import drop_output, grow_head, widen_head
from gradmix.models.network import MLP, LinearModel, Network, Part, new_linear
from gradmix.models.vit import ViT

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "Adapted",
    "LinearModel",
    "ModelInfo",
    "Network",
    "Part",
    "ResNet18",
    "ViT",
    "adapt",
    "build_empty_model",
    "build_model",
    "drop_output",
    "grow_head",
    "load_backbone",
    "memory_format",
    "new_linear",
    "widen_head",
]


@dataclass(frozen=True)
class ModelInfo:
    """A network by name; `build` takes the shape of one input and the number of outputs."""

    summary: str
    source: str
    build: Callable[[Sequence[int], int], Network]


def _image(shape: Sequence[int], network: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(
            f"input_shape is {tuple(shape)}; {network} needs images (channels, height, width), "
            "an MLP takes any input"
        )
    channels, height, width = shape
    return channels, height, width


def _resnet18(shape: Sequence[int], outputs: int, *, width: int = 64, stem: str = "3x3") -> Network:
    channels, _, _ = _image(shape, "a ResNet")
    return ResNet18(outputs, in_channels=channels, width=width, stem=stem)


def _vit(shape: Sequence[int], outputs: int, **sizes: int) -> Network:
    """Return a ViT of about 8 patches a side: of 4 pixels at 28 and 32, 8 at 64, at most 16."""
    channels, *sides = _image(shape, "a ViT")
    common, ideal = math.gcd(*sides), min(max(sides) / 8, 16)
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    patch = min(divisors, key=lambda size: (abs(size - ideal), -size))
    height, width = sides
    return ViT(outputs, image_size=(height, width), patch=patch, in_channels=channels, **sizes)


MODELS: dict[str, ModelInfo] = {
    "linear": ModelInfo(
        "a linear head on the inputs themselves",
        "for frozen features and closed-form methods",
        lambda shape, outputs: LinearModel(math.prod(shape), outputs),
    ),
    "mlp": ModelInfo(
        "two hidden layers of 256 units, ReLU",
        "the paper, for MNIST and FMNIST",
        lambda shape, outputs: MLP(math.prod(shape), outputs, (256, 256)),
    ),
    "mlp-small": ModelInfo(
        "two hidden layers of 128 units, ReLU",
        "our choice, for the digits",
        lambda shape, outputs: MLP(math.prod(shape), outputs, (128, 128)),
    ),
    "cnn": ModelInfo(
        "four 3x3 convolutions of 32 to 256 channels, for 8 to 224 pixels",
        "our choice, for photos from scratch on CPUs",
        lambda shape, outputs: CNN(outputs, in_channels=_image(shape, "a CNN")[0]),
    ),
    "resnet18": ModelInfo(
        "ResNet-18 with a 3x3 stem, 64 to 512 channels, for 32 and 64 pixels",
        "the paper, for CIFAR and Tiny ImageNet; form and weights as kuangliu, Mammoth",
        _resnet18,
    ),
    "resnet18-narrow": ModelInfo(
        "ResNet-18 with a 3x3 stem, 20 to 160 channels",
        "repositories of online continual learning (nf=20)",
        partial(_resnet18, width=20),
    ),
    "resnet18-tiny": ModelInfo(
        "ResNet-18 with a 3x3 stem, 8 to 64 channels",
        "our choice, for one core",
        partial(_resnet18, width=8),
    ),
    "resnet18-imagenet": ModelInfo(
        "ResNet-18 with a 7x7 stem and max-pooling, for 224 pixels",
        "He et al. 2016, for ImageNet",
        partial(_resnet18, stem="7x7"),
    ),
    "vit": ModelInfo(
        "ViT of 6 blocks, width 384, 12 heads, 8 x 8 patches",
        "Dosovitskiy et al. 2021, sizes as DyTox for CIFAR-100 (the paper gives none)",
        partial(_vit, dim=384, depth=6, heads=12),
    ),
    "vit-small": ModelInfo(
        "ViT of 4 blocks, width 128, 4 heads, 8 x 8 patches",
        "our choice, for CPUs",
        partial(_vit, dim=128, depth=4, heads=4),
    ),
}


MOST_CHANNELS_LAST = 32
"""Largest side of images, in pixels, for which networks on CPUs use the channels-last format.

Up to this size it takes 0.6 to 0.8 of the time of the default format (`make bench`, `networks`).
From 48 pixels on, oneDNN crashes in the backward pass of some of its convolutions on CPUs with
AVX-512. `tests/robustness` trains every network at sizes on both sides of the limit.
"""


def memory_format(input_shape: Sequence[int], device: torch.device | str) -> torch.memory_format:
    """Return the memory format for a network with inputs of this shape on this device."""
    small = len(input_shape) == 3 and max(input_shape[1:]) <= MOST_CHANNELS_LAST
    if small and torch.device(device).type == "cpu":
        return torch.channels_last
    return torch.contiguous_format


def build_model(
    name: str,
    input_shape: Sequence[int],
    outputs: int,
    *,
    generator: torch.Generator | None = None,
) -> Network:
    """Return a new network.

    Args:
        name: A name in `MODELS`.
        input_shape: Shape of one sample. The number of channels and, for a ViT, the sizes of
            images and patches follow from it.
        outputs: Classes.
        generator: Draws the initial weights, on the CPU; None is PyTorch's global generator.

    Raises:
        UnknownNameError: If there is no network of this name.
        InputError: If the network cannot take such inputs.
    """
    if name not in MODELS:
        raise UnknownNameError("network", name, MODELS)
    if generator is None:
        return MODELS[name].build(input_shape, outputs)
    network = build_empty_model(name, input_shape, outputs)
    if getattr(network, "initialises_all", False):
        network = network.to_empty(device="cpu")
        network.initialise(generator)
        return network
    with torch.random.fork_rng(devices=[]):  # a user's network initialises itself
        seed = int(torch.randint(2**62, (1,), generator=generator))
        torch.default_generator.manual_seed(seed)
        return MODELS[name].build(input_shape, outputs)


def build_empty_model(name: str, input_shape: Sequence[int], outputs: int) -> Network:
    """Return a network without values, on the meta device, to load saved weights into."""
    if name not in MODELS:
        raise UnknownNameError("network", name, MODELS)
    with torch.device("meta"):
        return MODELS[name].build(input_shape, outputs)
