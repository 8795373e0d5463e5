"""Networks: a backbone that gives embeddings, and a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from gradmix.errors import UnknownNameError
from gradmix.models.mlp import MLP

__all__ = ["MLP", "MODELS", "ModelInfo", "build_model"]


@dataclass(frozen=True)
class ModelInfo:
    """A network by name; `build` takes the shape of one input and the number of outputs."""

    summary: str
    source: str
    build: Callable[[Sequence[int], int], nn.Module]


def _mlp(*hidden: int) -> Callable[[Sequence[int], int], nn.Module]:
    return lambda shape, outputs: MLP(math.prod(shape), outputs, hidden)


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(
        "two hidden layers of 256 units, ReLU", "the paper, for MNIST and FMNIST", _mlp(256, 256)
    ),
    "mlp-small": ModelInfo(
        "two hidden layers of 128 units, ReLU", "our choice, for the digits", _mlp(128, 128)
    ),
}


def build_model(name: str, input_shape: Sequence[int], outputs: int) -> nn.Module:
    """A new network; its weights come from the global generator (see `randomness`)."""
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name].build(input_shape, outputs)
