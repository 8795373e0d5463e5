"""One run: a configuration in, a result out."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from gradmix.archive import locked
from gradmix.data import Benchmark, DataSet, load_dataset, split_into_tasks
from gradmix.data.augment import TRANSFORMS
from gradmix.data.pool import Normalise
from gradmix.errors import InputError
from gradmix.experiments.config import RunConfig
from gradmix.experiments.results import PROTOCOL_VERSION, RunResult
from gradmix.memory import ReplayMemory
from gradmix.methods import Method, find_method
from gradmix.methods.base import read_options
from gradmix.metrics import all_metrics
from gradmix.mixer import Mixer
from gradmix.models import build_model
from gradmix.randomness import RandomStreams
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import EpochDone, Event, TaskDone, Training

LOCK_SECONDS = 10.0
"""How long to wait for a checkpoint in use: readers of streamed images outlive a killed run."""


def run(
    config: RunConfig,
    on_event: Callable[[Training, Event], object] | None = None,
    benchmark: Benchmark | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Callable[[str], object] | None = None,
) -> RunResult:
    """Train and evaluate; `on_event` sees every event of the loop as it happens.

    `benchmark` is what `load_benchmark(config)` gives, for those who have it already.

    `checkpoint` is a file where the run is kept while it lasts. If it is there already, and of
    this configuration, the run goes on from it to the same result, bit by bit, as if it had never
    been stopped; `say` is told so in a sentence. Remove it when the result is safe. Two processes
    at once are refused (FileInUseError).
    """
    started = time.perf_counter()
    guard = nullcontext() if checkpoint is None else locked(checkpoint, timeout=LOCK_SECONDS)
    with guard, _threads(config.threads):
        training = prepare(config, load_benchmark(config) if benchmark is None else benchmark)
        record = _Record(training)
        about = {"config": config.to_json(), "protocol_version": PROTOCOL_VERSION}
        kept = (
            None if checkpoint is None else Checkpoint(checkpoint, training, record, about, say=say)
        )
        if kept is None or not kept.resume():
            record.begin(training.evaluate())
        for event in training.events():
            record.note(event)
            if kept is not None:
                kept.note(event)
            if on_event is not None:
                on_event(training, event)
    before = 0.0 if kept is None else kept.seconds_before
    return record.result(config, before + time.perf_counter() - started)


def prepare(config: RunConfig, benchmark: Benchmark) -> Training:
    """Everything a run needs, ready to train."""
    fabric = make_fabric(config.device, config.precision)
    streams = RandomStreams(config.seed, fabric.device)
    method = build_method(config, benchmark, streams, fabric.device)
    transforms = [TRANSFORMS[name] for name in config.transforms]
    return Training(benchmark, method, fabric, transforms)


def load_benchmark(config: RunConfig, data: DataSet | None = None) -> Benchmark:
    """The data set of a configuration, cut into tasks; `data` is for those who have it already."""
    data = (load_dataset(config.data) if data is None else data).hold_out(config.validation)
    if config.memory_total is not None and config.memory_total < len(data.class_names):
        raise InputError(
            f"memory_total is {config.memory_total}; {config.data} has "
            f"{len(data.class_names)} classes, and each needs at least one exemplar"
        )
    increments = config.increments[0] if len(config.increments) == 1 else config.increments
    return split_into_tasks(data, increments, config.class_order, evaluate_on=config.evaluate_on)


def make_fabric(device: str, precision: str) -> Fabric:
    """Lightning Fabric on one device, which gives device and precision and wraps nothing."""
    accelerator, _, number = device.partition(":")
    if number and not number.isdigit():
        raise InputError(f"device is {device!r}; give auto, cpu, cuda, mps or, say, cuda:1")
    try:
        return Fabric(
            accelerator=accelerator,
            devices=[int(number)] if number else 1,
            precision=precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"device is {device!r}, which cannot be used here: {error}") from error


def build_method(
    config: RunConfig, benchmark: Benchmark, streams: RandomStreams, device: torch.device
) -> Method:
    """Network, memory, mixer and method of a configuration."""
    kind = find_method(config.method)
    growing = kind.grows or config.head == "growing"
    num_classes = len(benchmark.class_names)
    outputs = len(benchmark.tasks[0].classes) if growing else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    with streams.for_construction("weights"):
        model = build_model(config.model, shape, outputs).to(device)
        if device.type == "cpu":  # where convolutions are faster so; see benchmarks
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    memory = ReplayMemory(exemplars_per_class=config.exemplars_per_class, total=config.memory_total)
    mixer = Mixer(
        config.recipe,
        num_classes,
        host=streams.host("mixing"),
        generator=streams.device("mixing"),
        mix_points=int(getattr(model, "mix_points", 1)),
        exemplars_per_class=config.criterion_exemplars,
        pairing=config.pairing,
        average=config.average,
        criterion=config.criterion,
        rolling=config.rolling,
    )
    normalise = Normalise(benchmark.mean, benchmark.std, device)
    options = read_options(kind.options_type, dict(config.options))
    return kind(model, memory, mixer, config.settings, streams, normalise, options)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """PyTorch's thread count within; what it was afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Record:
    """Collects the events of a run into its result."""

    def __init__(self, training: Training) -> None:
        self.training = training
        benchmark = training.benchmark
        labels = torch.cat([task.test.y for task in benchmark.tasks])
        self.totals = labels.bincount(minlength=len(benchmark.class_names))
        self.initial: dict[str, list[float]] = {}
        self.accuracy: dict[str, list[list[float]]] = {}
        self.class_accuracy: list[list[float]] = []
        self.pair_counts: list[Tensor] = []
        self.epochs: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []

    def begin(self, initial: dict[str, Tensor]) -> None:
        """Note what is right before any training."""
        self.initial = {name: self._by_task(correct) for name, correct in initial.items()}
        self.accuracy = {name: [] for name in initial}

    def state_dict(self) -> dict[str, Any]:
        """What was noted so far, for a checkpoint."""
        return {
            "initial": self.initial,
            "accuracy": self.accuracy,
            "class_accuracy": self.class_accuracy,
            "pair_counts": list(self.pair_counts),
            "epochs": self.epochs,
            "tasks": self.tasks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was noted."""
        self.initial, self.accuracy = state["initial"], state["accuracy"]
        self.class_accuracy, self.pair_counts = state["class_accuracy"], state["pair_counts"]
        self.epochs, self.tasks = state["epochs"], state["tasks"]

    def _by_task(self, correct: Tensor) -> list[float]:
        groups = [list(task.classes) for task in self.training.benchmark.tasks]
        return [float(correct[group].sum() / self.totals[group].sum()) for group in groups]

    def note(self, event: Event) -> None:
        if isinstance(event, EpochDone):
            self.epochs.append(
                {
                    "task": event.task,
                    "stage": event.stage,
                    "epoch": event.epoch,
                    "loss": event.loss,
                    "negative_rate": event.negative_rate,
                }
            )
        elif isinstance(event, TaskDone):
            task = self.training.benchmark.tasks[event.task]
            for name, correct in event.correct.items():
                self.accuracy[name].append(self._by_task(correct))
            self.class_accuracy.append((event.correct["main"] / self.totals).tolist())
            self.pair_counts.append(event.pair_counts.clone())
            self.tasks.append(
                {
                    "classes": list(task.classes),
                    "train": len(task.train.y),
                    "test": len(task.test.y),
                    "memory": event.memory_size,
                    "replay_batch": event.replay_batch,
                }
            )

    def result(self, config: RunConfig, total_seconds: float) -> RunResult:
        benchmark = self.training.benchmark
        metrics = {
            name: all_metrics(matrix, self.initial[name]) for name, matrix in self.accuracy.items()
        }
        variants = {
            name: {"accuracy": matrix, "metrics": metrics[name]}
            for name, matrix in self.accuracy.items()
            if name != "main"
        }
        return RunResult(
            config=config.to_json(),
            versions=_versions(),
            class_names=list(benchmark.class_names),
            class_order=list(benchmark.class_order),
            tasks=self.tasks,
            accuracy=self.accuracy["main"],
            initial_accuracy=self.initial["main"],
            class_accuracy=self.class_accuracy,
            metrics=metrics["main"],
            variants=variants,
            epochs=self.epochs,
            pair_counts=[counts.tolist() for counts in self.pair_counts],
            seconds={**vars(self.training.seconds), "total": total_seconds},
        )


def _versions() -> dict[str, str]:
    packages = ("gradmix", "torch", "numpy", "lightning-fabric")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in packages},
    }
