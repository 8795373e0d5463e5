"""Networks: a backbone that gives embeddings, and a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gradmix.errors import InputError, UnknownNameError
from gradmix.models.adapt import Adapted, adapt, load_backbone
from gradmix.models.base import Network, Part
from gradmix.models.heads import carry_over, drop_output, grow_head, widen_head
from gradmix.models.mlp import MLP
from gradmix.models.resnet import ResNet18
from gradmix.models.vit import ViT

__all__ = [
    "MLP",
    "MODELS",
    "Adapted",
    "ModelInfo",
    "Network",
    "Part",
    "ResNet18",
    "ViT",
    "adapt",
    "build_model",
    "carry_over",
    "drop_output",
    "grow_head",
    "load_backbone",
    "widen_head",
]


@dataclass(frozen=True)
class ModelInfo:
    """A network by name; `build` takes the shape of one input and the number of outputs."""

    summary: str
    source: str
    build: Callable[[Sequence[int], int], Network]


def _mlp(shape: Sequence[int], outputs: int, *, hidden: Sequence[int]) -> Network:
    return MLP(math.prod(shape), outputs, hidden)


def _resnet18(shape: Sequence[int], outputs: int, *, width: int = 64, stem: str = "3x3") -> Network:
    channels, _, _ = _image(shape, "a ResNet")
    return ResNet18(outputs, in_channels=channels, width=width, stem=stem)


def _vit(shape: Sequence[int], outputs: int, *, dim: int, depth: int, heads: int) -> Network:
    channels, height, width = _image(shape, "a ViT")
    return ViT(
        outputs,
        image_size=(height, width),
        patch=_patch(height, width),
        in_channels=channels,
        dim=dim,
        depth=depth,
        heads=heads,
    )


def _image(shape: Sequence[int], network: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(
            f"input_shape is {tuple(shape)}; {network} needs images (channels, height, width), "
            "an MLP takes any input"
        )
    channels, height, width = shape
    return channels, height, width


def _patch(height: int, width: int) -> int:
    """Nearest to 8 patches a side: 4 at 28 and 32 pixels, 8 at 64; at most ViT's usual 16."""
    common, ideal = math.gcd(height, width), min(max(height, width) / 8, 16)
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    return min(divisors, key=lambda size: (abs(size - ideal), -size))


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(
        "two hidden layers of 256 units, ReLU",
        "the paper, for MNIST and FMNIST",
        partial(_mlp, hidden=(256, 256)),
    ),
    "mlp-small": ModelInfo(
        "two hidden layers of 128 units, ReLU",
        "our choice, for the digits",
        partial(_mlp, hidden=(128, 128)),
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


def build_model(name: str, input_shape: Sequence[int], outputs: int) -> Network:
    """A new network; its weights come from the global generator (see `randomness`).

    The number of channels and, for a ViT, the size of images and patches follow the input.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name].build(input_shape, outputs)
