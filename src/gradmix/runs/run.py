"""One run: from a configuration to a result."""

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

from gradmix.data import Benchmark, DataSet, load_dataset, split_into_tasks
from gradmix.data.augment import TRANSFORMS
from gradmix.diagnostics import take
from gradmix.errors import InputError
from gradmix.files import locked
from gradmix.methods import Method
from gradmix.randomness import RandomStreams
from gradmix.runs._record_schema import check_record
from gradmix.runs.backbones import embed_benchmark, embed_dataset, network_of, statistics_of
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunResult, protocol_version
from gradmix.settings import CriterionSettings
from gradmix.training.build import Design, make_fabric, pick_device, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import EpochDone, Event, TaskDone, Training
from gradmix.training.metrics import all_metrics

LOCK_SECONDS = 10.0
"""How long to wait for a checkpoint in use: readers of streamed photos outlive a killed run."""


Observer = Callable[[Training, Event], object]
Say = Callable[[str], object]


def run(
    config: RunConfig,
    on_event: Observer | None = None,
    benchmark: Benchmark | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> RunResult:
    """Train and evaluate one configuration.

    Args:
        config: The run.
        on_event: Called with the training and every event of the loop.
        benchmark: The data in tasks; None loads the data set of the configuration.
        checkpoint: A file that stores the unfinished run. If it exists and belongs to this
            configuration, the run resumes from it, with identical results. Remove it when the
            result is safe.
        say: Called with remarks, such as where the run resumes.

    Returns:
        The result; `ResultStore.save` writes it to a file.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
        FileInUseError: If another process uses the checkpoint.

    >>> from gradmix import config_for
    >>> result = run(config_for("digits", mix="none", epochs=1))
    >>> len(result.accuracy)
    5
    """
    _check_checkpoint(checkpoint)
    if benchmark is None:
        benchmark = load_benchmark(config)
    else:
        _check_tasks(config, benchmark)
        benchmark = embed_benchmark(benchmark, config) if config.frozen else benchmark
    return train(config, prepare(config, benchmark), on_event, checkpoint, say)


def train(
    config: RunConfig,
    training: Training,
    on_event: Observer | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> RunResult:
    """Train and evaluate what `prepare` returned; see `run` for the other arguments."""
    started = time.perf_counter()
    _check_checkpoint(checkpoint)
    guard = nullcontext() if checkpoint is None else locked(checkpoint, timeout=LOCK_SECONDS)
    with guard, torch_threads(config.threads):
        record = _Record(training, config.analyses)
        settings = config.to_json()
        about = {"config": settings, "protocol_version": protocol_version(settings)}
        saved = None
        if checkpoint is not None:
            saved = Checkpoint(checkpoint, training, record, about, say=say)
        if saved is None or not saved.resume():
            record.begin(training.evaluate())
        for event in training.events():
            record.note(event)
            if saved is not None:
                saved.note(event)
            if on_event is not None:
                on_event(training, event)
    before = 0.0 if saved is None else saved.seconds_before
    return record.result(config, before + time.perf_counter() - started)


def _check_checkpoint(path: str | os.PathLike[str] | None) -> None:
    if path is not None and (os.path.isdir(path) or "\0" in os.fspath(path)):
        raise InputError(f"checkpoint is {os.fspath(path)!r}; name a file, not a folder")


def _check_tasks(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a benchmark whose tasks differ from the configuration."""
    sizes = tuple(len(task.classes) for task in benchmark.tasks)
    wanted = config.increments
    if sizes not in (wanted, wanted * len(sizes)):
        raise InputError(
            f"benchmark has tasks of {list(sizes)} classes, but increments in the configuration "
            f"is {list(wanted)}; make them equal"
        )


def prepare(config: RunConfig, benchmark: Benchmark) -> Training:
    """Return the training of a run, ready to start."""
    with torch_threads(config.threads):
        fabric = make_fabric(config.device, config.precision)
        method = build_method(config, benchmark, RandomStreams(config.seed, fabric.device))
        transforms = [TRANSFORMS[name] for name in config.transforms]
        return Training(benchmark, method, fabric, transforms)


def load_benchmark(config: RunConfig, data: DataSet | None = None) -> Benchmark:
    """Return the data set of a configuration, split into tasks.

    Args:
        config: The run.
        data: The data set; None loads it.

    Raises:
        InputError: If the memory or the tasks do not fit the data set.
    """
    data = load_dataset(config.data) if data is None else data
    if config.frozen:
        data = embed_dataset(data, config.model, config.weights, str(pick_device(config.device)))
    data = data.hold_out(config.validation)
    if config.memory_total is not None and config.memory_total < len(data.class_names):
        raise InputError(
            f"memory_total is {config.memory_total}; {config.data} has "
            f"{len(data.class_names)} classes, and each needs at least one exemplar"
        )
    increments = config.increments[0] if len(config.increments) == 1 else config.increments
    return split_into_tasks(data, increments, config.class_order, evaluate_on=config.evaluate_on)


def build_method(config: RunConfig, benchmark: Benchmark, streams: RandomStreams) -> Method:
    """Return the method of a configuration, with its network, memory and mixer."""
    design = Design(
        config.method,
        config.recipe,
        config.settings,
        config.options,
        config.exemplars_per_class,
        config.memory_total,
        config.part(CriterionSettings),
        config.exemplar_selection,
    )
    num_classes = len(benchmark.class_names)
    outputs = len(benchmark.tasks[0].classes) if design.grows else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    mean, std = statistics_of(config, benchmark.mean, benchmark.std)
    network = network_of(config, shape, outputs)
    return design.build(network, num_classes, shape, mean, std, streams)


class _Record:
    """Collects the events of a run into its result, and takes the requested analyses."""

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
        """Record the accuracy before any training."""
        self.initial = {name: self._by_task(correct) for name, correct in initial.items()}
        self.accuracy = {name: [] for name in initial}

    def state_dict(self) -> dict[str, Any]:
        """Return the record so far, for a checkpoint."""
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
        """Continue an earlier record.

        Raises:
            InputError: If the record does not fit this run.
        """
        check_record(
            state,
            done=self.training.position.task,
            tasks=len(self.training.benchmark.tasks),
            classes=len(self.training.benchmark.class_names),
            analyses=self.analyses,
        )
        self.initial, self.accuracy = state["initial"], state["accuracy"]
        self.class_accuracy, self.pair_counts = state["class_accuracy"], state["pair_counts"]
        self.epochs, self.tasks = state["epochs"], state["tasks"]
        self.analysis, self.criterion_seconds = state["analysis"], state["criterion_seconds"]

    def _by_task(self, correct: Tensor) -> list[float]:
        groups = [list(task.classes) for task in self.training.benchmark.tasks]
        return [float(correct[group].sum() / self.totals[group].sum()) for group in groups]

    def note(self, event: Event) -> None:
        """Record an event, and take the analyses that are due."""
        if isinstance(event, EpochDone):
            self._note_epoch(event)
            if self.analyses:
                for name, values in take(self.analyses, self.training, event).items():
                    entry = {"task": event.task, "epoch": event.epoch, **values}
                    self.analysis[name].append(entry)
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
        """Return the result of the finished run."""
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
            class_names=[_encodable(name) for name in benchmark.class_names],
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
            protocol_version=protocol_version(config.to_json()),
        )


def _short(value: float) -> float:
    """Return a value with six significant digits."""
    return float(f"{value:.6g}")


def _encodable(name: str) -> str:
    """Return a class name without the invalid characters that folder names may have."""
    return name.encode(errors="replace").decode()


def _versions() -> dict[str, str]:
    packages = ("gradmix", "numpy", "lightning-fabric")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in packages},
        "torch": str(torch.__version__),  # with its build
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
