"""Compare ideas to speed up a step on a CPU with a plain step of the same arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import ratio
from gradmix.models import build_model

SEEDS = 4


def _network(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    shape, classes = ((1, 28, 28), 10) if name == "mlp" else ((3, 32, 32), 100)
    x, y = torch.rand(128, *shape), torch.arange(128) % classes
    model = build_model(name, shape, classes)
    return model.to(memory_format=torch.channels_last), x, y  # type: ignore[call-overload]


def _steps(
    name: str, number: int, *, bf16: bool = False, compiled: bool = False
) -> Callable[[], object]:
    model, x, y = _network(name)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        for _ in range(number):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(forward(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def autocast_over_float32() -> str:
    parts = []
    for name, number in (("mlp", 5), ("resnet18-tiny", 1)):
        found = ratio(_steps(name, number, bf16=True), _steps(name, number), repeats=3)
        parts.append(f"{name} {found}")
    return "a step in bf16 autocast over float32: " + ", ".join(parts)


def compiled_over_eager() -> str:
    """Return the time of a compiled step over an eager one; the first call is not counted."""
    parts = []
    for name, number in (("mlp", 20), ("resnet18-tiny", 2)):
        found = ratio(_steps(name, number, compiled=True), _steps(name, number), repeats=7)
        parts.append(f"{name} {found}")
    return "a step under torch.compile over eager: " + ", ".join(parts)


def seeds_over_one_by_one() -> str:
    """Return the time of four MLPs as one, with batched matrix products, over the four in turn."""
    sizes = [784, 256, 256, 10]
    weights = [(torch.rand(SEEDS, a, b) / a**0.5).requires_grad_() for a, b in pairwise(sizes)]
    biases = [torch.zeros(SEEDS, 1, b, requires_grad=True) for b in sizes[1:]]
    x, y = torch.rand(SEEDS, 128, 784), (torch.arange(128) % 10).repeat(SEEDS)
    optimizer = torch.optim.SGD([*weights, *biases], lr=0.01, momentum=0.9, fused=True)

    def together() -> None:
        for _ in range(10):
            h = x
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                h = torch.baddbmm(bias, h.relu() if layer else h, weight)
            loss = F.cross_entropy(h.flatten(0, 1), y) * SEEDS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = ratio(together, _steps("mlp", 10 * SEEDS), repeats=7)
    return f"{SEEDS} seeds in one go over one by one, MLP: {found}"


TRIED = {
    "autocast": autocast_over_float32,
    "compile": compiled_over_eager,
    "seeds": seeds_over_one_by_one,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or TRIED:
        print(TRIED[name](), flush=True)
