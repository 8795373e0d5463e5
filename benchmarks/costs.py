"""Measure the cost of GradMix over Mixup, growth with tasks and exemplars, and start-up time."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks.loop import FEW, PER_CLASS, STEPS, last_task, mnist_like, steps_of
from benchmarks.timing import ratio_of_epochs, seconds, spread
from gradmix.data import benchmark_from_tasks
from gradmix.randomness import RandomStreams
from gradmix.runs.config import config_for
from gradmix.runs.run import build_method, prepare
from gradmix.training.build import make_fabric
from gradmix.training.loop import Training
from gradmix.types import Samples

EPOCHS = 3


def whole_run() -> str:
    """Compare runs of five tasks, evaluations included; the runs take turns, step by step."""
    tasks = mnist_like()
    benchmark = benchmark_from_tasks(
        "mnist-like", [(t, Samples(t.x[:2000], t.y[:2000])) for t in tasks]
    )

    def events(mix: str) -> Iterator[object]:
        return prepare(config_for("mnist", mix=mix, epochs=EPOCHS), benchmark).events()

    ratios = []
    for _ in range(3):
        ours, theirs = events("gradmix+"), events("mixup")
        totals = [0.0, 0.0]
        for _ in range(TASKS_EVENTS):
            totals[0] += seconds(lambda ours=ours: next(ours))
            totals[1] += seconds(lambda theirs=theirs: next(theirs))
        ratios.append(totals[0] / totals[1])
    return f"whole run of gradmix+ over Mixup (at most 1.02; the paper's 1.25): {spread(ratios)}"


TASKS_EVENTS = 5 * (EPOCHS * (STEPS + 1) + 1)


def photos_like(classes: int, tasks: int, each: int, seen: int) -> list[Samples]:
    """Return tasks of random 32 × 32 photos; all except the last have `seen` samples per class."""
    generator = torch.Generator().manual_seed(0)
    per_task, result = classes // tasks, []
    for task in range(tasks):
        number = per_task * (each if task == tasks - 1 else seen)
        x = torch.randint(256, (number, 3, 32, 32), generator=generator, dtype=torch.uint8)
        result.append(Samples(x, torch.arange(number) % per_task + per_task * task))
    return result


def standing(tasks: list[Samples], **settings: object) -> Training:
    """Return a training before its last task, with all samples of earlier tasks in memory."""
    benchmark = benchmark_from_tasks("photos-like", [(t, t) for t in tasks])
    config = config_for("cifar-100", epochs=10**6, **settings)
    fabric = make_fabric("cpu", "32-true")
    method = build_method(config, benchmark, RandomStreams(0, fabric.device))
    training = Training(benchmark, method, fabric)
    for samples in tasks[:-1]:
        method.memory.add(samples, torch.zeros(len(samples.y)))
        training.position.task += 1
    return training


def resnet() -> str:
    """Compare an epoch of the last of ten tasks: 10 classes with 500 images each, 78 steps.

    The time of an epoch is the time of its start (the criterion on 3,200 exemplars, and planning)
    plus 78 times the median time of a step. Steps of the two mixes take turns.
    """
    tasks = photos_like(100, 10, 500, 32)
    common = {"model": "resnet18-narrow", "transforms": ()}
    runs = {
        "mixup": standing(tasks, mix="mixup", **common),
        "gradmix+": standing(tasks, mix="gradmix+", **common),
    }
    steps = {name: steps_of(run) for name, run in runs.items()}
    for each in steps.values():
        next(each)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(15):
        for name, each in steps.items():
            times[name].append(seconds(lambda each=each: next(each)))
    begin = {name: _begin(run) for name, run in runs.items()}
    number = 5000 // 64
    epoch = {name: number * statistics.median(times[name]) + begin[name] for name in runs}
    part = {name: begin[name] / epoch["mixup"] for name in runs}
    return "epoch of narrow ResNet-18 over Mixup, 100 classes of 32 × 32: " + ", ".join(
        f"{name} {epoch[name] / epoch['mixup']:.3f} (of which what begins it {part[name]:.3f}; "
        f"steps {spread([a / b for a, b in zip(times[name], times['mixup'], strict=True)])})"
        for name in ("gradmix+",)
    )


def _begin(training: Training) -> float:
    """Return the seconds of the start of an epoch: pair tables and plan."""
    method = training.method
    new = method.new
    assert new is not None
    return statistics.median(seconds(lambda: method.begin_epoch(1, new)) for _ in range(3))


def tasks_over_tasks() -> str:
    """Compare an epoch of ER with 98 past classes in memory and with 2; tasks have equal sizes."""
    generator = torch.Generator().manual_seed(0)

    def task(number: int) -> Samples:
        many = PER_CLASS if number in (1, 49) else FEW // 2
        x = torch.randint(256, (2 * many, 1, 28, 28), generator=generator, dtype=torch.uint8)
        return Samples(x, torch.arange(2 * many) % 2 + 2 * number)

    tasks = [task(number) for number in range(50)]
    tasks[1], second = Samples(tasks[1].x[:FEW], tasks[1].y[:FEW]), tasks[1]
    wide = 100  # outputs, for both
    late, early = (steps_of(_with_outputs(past, wide)) for past in (tasks, [tasks[0], second]))
    return "epoch of ER at task 50 over task 2 (at most 1.05): " + ratio_of_epochs(
        late, early, STEPS, repeats=5
    )


def _with_outputs(tasks: list[Samples], outputs: int) -> Training:
    """Return the same as `last_task`, with a given number of outputs."""
    training = last_task(tasks)
    model = training.method.model
    model.head = torch.nn.Linear(model.head.in_features, outputs)  # type: ignore[union-attr,arg-type]
    return training


def start_up() -> str:
    """Return the processor seconds of whole processes, the lowest of three."""

    def lowest(*arguments: str) -> float:
        def once() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return min(once() for _ in range(3))

    program = "from gradmix.cli import main; main()"
    parts: dict[str, Callable[[], float]] = {
        "python": lambda: lowest("-c", "pass"),
        "import gradmix": lambda: lowest("-c", "import gradmix"),
        "gradmix --help": lambda: lowest("-c", program, "--help"),
        "import torch": lambda: lowest("-c", "import torch"),
        "what gradmix predict imports": lambda: lowest("-c", "import gradmix.classifier"),
        "what gradmix run imports": lambda: lowest(
            "-c", "import gradmix.runs.run, lightning_fabric"
        ),
    }
    return "seconds to start: " + ", ".join(f"{name} {part():.2f}" for name, part in parts.items())


def exemplars_memory() -> str:
    """Return the MB beyond training with 1,000 exemplars, for 10,000 and 100,000 of 28 × 28."""

    def peak(number: int) -> float:
        program = (
            "import resource; from benchmarks.costs import train_beside; "
            f"train_beside({number}); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
        )
        command = [sys.executable, "-c", program]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    least = peak(1000)
    return "memory over exemplars, MB over that with 1,000 (pixels alone): " + ", ".join(
        f"{number:,}: {peak(number) - least:.0f} ({(number - 1000) * 784 / 2**20:.0f})"
        for number in (10_000, 100_000)
    )


def train_beside(number: int) -> None:
    """Train a few steps of a last task with this many exemplars and gradmix+."""
    each = number // 8
    tasks = mnist_like()
    past = [
        Samples(*(part.repeat_interleave(each // PER_CLASS + 1, 0) for part in t)) for t in tasks
    ]
    training = last_task(
        [*past[:-1], tasks[-1]], "gradmix+", few=2 * each, criterion_exemplars=each
    )
    steps = steps_of(training)
    for _ in range(5):
        next(steps)


COSTS = {
    "exemplars": exemplars_memory,
    "whole": whole_run,
    "resnet": resnet,
    "tasks": tasks_over_tasks,
    "start": start_up,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or COSTS:
        print(COSTS[name](), flush=True)
