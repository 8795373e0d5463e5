"""Compare convolutions in channels-last order with PyTorch's default order, on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import ratio
from gradmix.models import build_model

BATCH = 128


def channels_last_over_usual() -> str:
    parts = []
    for name in ("resnet18-tiny", "resnet18-narrow"):
        usual = build_model(name, (3, 32, 32), 10)
        last = build_model(name, (3, 32, 32), 10)
        last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parts.append(f"{name} {ratio(_steps(last), _steps(usual), repeats=5)}")
    return "a training step, channels-last over usual: " + ", ".join(parts)


def _steps(model: nn.Module) -> Callable[[], object]:
    x, y = torch.rand(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return step
