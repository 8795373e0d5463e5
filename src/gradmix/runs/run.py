"""One run: a configuration in, a result out."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gradmix.diagnostics import take
from gradmix.files import locked
from gradmix.data import Benchmark, DataSet, load_dataset, split_into_tasks
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError
from gradmix.runs.config import RunConfig
from gradmix.runs.results import PROTOCOL_VERSION, RunResult
from gradmix.criterion.selector import Judging
from gradmix.methods import Method
from gradmix.training.metrics import all_metrics
from gradmix.models import build_model
from gradmix.randomness import RandomStreams
from gradmix.training.build import Design, make_fabric, pick_device, torch_threads
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
    if benchmark is not None:
        _check_tasks(config, benchmark)
    if checkpoint is not None and os.path.isdir(checkpoint):
        raise InputError(f"checkpoint is {os.fspath(checkpoint)!r}, a folder; name a file")
    guard = nullcontext() if checkpoint is None else locked(checkpoint, timeout=LOCK_SECONDS)
    dropout = RandomStreams(config.seed, pick_device(config.device)).as_global("run")
    with guard, torch_threads(config.threads), dropout:
        training = prepare(config, load_benchmark(config) if benchmark is None else benchmark)
        record = _Record(training, config.analyses)
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


def _check_tasks(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a benchmark of other tasks than the result would say."""
    sizes = tuple(len(task.classes) for task in benchmark.tasks)
    wanted = config.increments
    if sizes not in (wanted, wanted * len(sizes)):
        raise InputError(
            f"benchmark has tasks of {list(sizes)} classes, and the configuration says increments "
            f"{list(wanted)}; give the same"
        )


def prepare(config: RunConfig, benchmark: Benchmark) -> Training:
    """Everything a run needs, ready to train."""
    fabric = make_fabric(config.device, config.precision)
    streams = RandomStreams(config.seed, fabric.device)
    method = build_method(config, benchmark, streams)
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


def build_method(config: RunConfig, benchmark: Benchmark, streams: RandomStreams) -> Method:
    """Network, memory, mixer and method of a configuration."""
    design = Design(
        config.method,
        config.recipe,
        config.settings,
        config.options,
        config.exemplars_per_class,
        config.memory_total,
        Judging(
            config.criterion_exemplars,
            config.pairing,
            config.average,
            config.criterion,
            config.rolling,
            config.criterion_block,
        ),
    )
    num_classes = len(benchmark.class_names)
    outputs = len(benchmark.tasks[0].classes) if design.grows else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    return design.build(
        lambda: build_model(config.model, shape, outputs),
        num_classes,
        benchmark.mean,
        benchmark.std,
        streams,
    )


class _Record:
    """Collects the events of a run into its result, and takes the analyses asked for."""

    def __init__(self, training: Training, analyses: Sequence[str] = ()) -> None:
        self.training, self.analyses = training, analyses
        benchmark = training.benchmark
        labels = torch.cat([task.test.y for task in benchmark.tasks])
        self.totals = labels.bincount(minlength=len(benchmark.class_names))
        self.initial: dict[str, list[float]] = {}
        self.accuracy: dict[str, list[list[float]]] = {}
        self.class_accuracy: list[list[float]] = []
        self.pair_counts: list[Tensor] = []
        self.epochs: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.analysis: dict[str, list[dict[str, Any]]] = {name: [] for name in analyses}
        self.criterion_seconds: list[float] = []  # spent up to the end of each task

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
            "analysis": self.analysis,
            "criterion_seconds": self.criterion_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was noted."""
        self.initial, self.accuracy = state["initial"], state["accuracy"]
        self.class_accuracy, self.pair_counts = state["class_accuracy"], state["pair_counts"]
        self.epochs, self.tasks = state["epochs"], state["tasks"]
        self.analysis, self.criterion_seconds = state["analysis"], state["criterion_seconds"]

    def _by_task(self, correct: Tensor) -> list[float]:
        groups = [list(task.classes) for task in self.training.benchmark.tasks]
        return [float(correct[group].sum() / self.totals[group].sum()) for group in groups]

    def note(self, event: Event) -> None:
        for name, values in take(self.analyses, self.training, event).items():
            assert isinstance(event, EpochDone)  # when analyses are due
            self.analysis[name].append({"task": event.task, "epoch": event.epoch, **values})
        if isinstance(event, EpochDone):
            self._note_epoch(event)
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
            self.criterion_seconds.append(self.training.seconds.criterion)

    def _note_epoch(self, event: EpochDone) -> None:
        stage = {"task": event.task, "stage": event.stage}
        if event.epoch == 1:
            self.epochs.append({**stage, "loss": [], "negative_rate": []})
        rate = event.negative_rate
        self.epochs[-1]["loss"].append(_short(event.loss))
        self.epochs[-1]["negative_rate"].append(None if rate is None else _short(rate))

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
            seconds={
                **vars(self.training.seconds),
                "total": total_seconds,
                "criterion_by_task": [
                    after - before for before, after in pairwise([0.0, *self.criterion_seconds])
                ],
            },
            analysis=self.analysis,
        )


def _short(value: float) -> float:
    """As exact as a loss needs to be."""
    return float(f"{value:.6g}")


def _versions() -> dict[str, str]:
    packages = ("gradmix", "numpy", "lightning-fabric")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in packages},
        "torch": str(torch.__version__),  # with its build
    }
