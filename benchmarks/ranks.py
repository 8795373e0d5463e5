"""Compare a step on two ranks of this machine with the same step in one process."""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import islice

import torch

from benchmarks.loop import steps_of
from gradmix.data import benchmark_from_tasks
from gradmix.runs.config import config_for
from gradmix.runs.run import prepare
from gradmix.training.launch import Devices, Job, open_job
from gradmix.types import Samples

STEPS = {"mlp": 100, "resnet18-tiny": 10}
SHAPES = {"mlp": (1, 28, 28), "resnet18-tiny": (3, 32, 32)}


def two_ranks_over_one() -> str:
    """Return, for an MLP and a ResNet, milliseconds per step and of the exchange in it."""
    return "; ".join(_compare(model) for model in STEPS)


def _compare(model: str) -> str:
    with open_job("cpu", "32-true", Devices()) as job:
        alone, _ = _measure(model, job)
    with open_job("cpu", "32-true", Devices(2), partial(_measure, model)) as job:
        both, exchange = _measure(model, job)
    return (
        f"{model}: {both:.2f} ms on two ranks, {alone:.2f} ms alone, ratio {both / alone:.2f}, "
        f"exchange {exchange:.2f} ms"
    )


def _measure(model: str, job: Job) -> tuple[float, float]:
    """Return the median milliseconds of a step, and of a sum as large as its gradients."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (6400, *SHAPES[model]), generator=generator, dtype=torch.uint8)
    samples = Samples(x, torch.arange(len(x)) % 2)
    few = Samples(x[:4], samples.y[:4])
    benchmark = benchmark_from_tasks("images", [(samples, few)])
    config = config_for("mnist", model=model, mix="mixup", increments=(2,), device="cpu", epochs=99)
    training = prepare(config, benchmark, job)
    steps = _medians(steps_of(training), STEPS[model])
    weights = [torch.zeros_like(p) for p in training.method.parameters()]
    sums = _medians((job.ranks.all_sum(weights) for _ in range(10**6)), STEPS[model])
    return steps, sums


def _medians(work: object, number: int) -> float:
    times = []
    for _ in islice(work, 3):  # type: ignore[call-overload]
        pass
    for _ in range(number):
        started = time.perf_counter()
        next(work)  # type: ignore[call-overload]
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)
