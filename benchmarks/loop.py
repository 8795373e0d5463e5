"""Compare an epoch of gradmix with a hand-written loop, and gradmix+ with Mixup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import ratio_of_epochs
from gradmix.data import benchmark_from_tasks
from gradmix.randomness import RandomStreams
from gradmix.runs.config import config_for
from gradmix.runs.run import build_method
from gradmix.training.build import make_fabric
from gradmix.training.loop import StepDone, Training
from gradmix.types import Samples

PER_CLASS = 5000  # as MNIST has
TASKS = 5
FEW = 64  # samples of a past task: two classes of 32


def mnist_like() -> list[Samples]:
    """Return five tasks of random 28 × 28 images; speed does not depend on their content."""
    generator = torch.Generator().manual_seed(0)

    def samples(task: int) -> Samples:
        shape = (2 * PER_CLASS, 1, 28, 28)
        x = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return Samples(x, torch.arange(2 * PER_CLASS) % 2 + 2 * task)

    return [samples(task) for task in range(TASKS)]


def last_task(
    tasks: list[Samples], mix: str = "none", method: str = "er", few: int = FEW, **settings: Any
) -> Training:
    """Return a training before its last task, with 32 exemplars of each earlier class in memory."""
    past = [Samples(x[:few], y[:few]) for x, y in tasks[:-1]]
    benchmark = benchmark_from_tasks("mnist-like", [(t, t) for t in [*past, tasks[-1]]])
    config = config_for("mnist", mix=mix, method=method, **{"epochs": 10**6, **settings})
    fabric = make_fabric("cpu", "32-true")
    streams = RandomStreams(0)
    training = Training(benchmark, build_method(config, benchmark, streams), fabric)
    for samples in past:  # what a task of so few samples leaves is all of them
        training.method.memory.add(samples, torch.zeros(len(samples.y)))
        training.position.task += 1
    return training


def steps_of(training: Training) -> Iterator[object]:
    """Train and yield after every step; the first step of an epoch includes the criterion."""
    return (event for event in training.events() if isinstance(event, StepDone))


def _minimal_steps(tasks: list[Samples]) -> Iterator[object]:
    """Do the same arithmetic in a minimal loop: uint8 inputs, normalisation, ER step."""
    new = tasks[-1]
    memory = Samples(
        *(torch.cat([part[:64] for part in parts]) for parts in zip(*tasks[:-1], strict=True))
    )
    layers = (nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = nn.Sequential(nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean, std = 0.1307 * 255, 0.3081 * 255
    while True:
        order = torch.randperm(len(new.y))
        for start in range(0, len(order) - 63, 64):
            i, j = order[start : start + 64], torch.randperm(len(memory.y))[:64]
            x = torch.cat([new.x[i], memory.x[j]])
            y = torch.cat([new.y[i], memory.y[j]])
            loss = F.cross_entropy(model((x.float() - mean) / std), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss


STEPS = 2 * PER_CLASS // 64


def er_over_minimal() -> str:
    tasks = mnist_like()
    return "epoch of ER over a minimal PyTorch loop (at most 1.10): " + ratio_of_epochs(
        steps_of(last_task(tasks)), _minimal_steps(tasks), STEPS
    )


def gradmix_over_mixup() -> str:
    tasks = mnist_like()
    return (
        "epoch of gradmix+ over Mixup, last task (at most 1.05; the paper's 1.25): "
        + ratio_of_epochs(
            steps_of(last_task(tasks, "gradmix+")), steps_of(last_task(tasks, "mixup")), STEPS
        )
    )
