"""The result of a run: its fields, its file, and how the events of a run become a result.

docs/results.md describes the format.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmix.diagnostics import take
from gradmix.files.schema import validate
from gradmix.mixing.recipe import RECIPES
from gradmix.runs._schemas import (
    FORMAT,
    SCHEMA_VERSION,
    RecordState,
    ResultFile,
    check_record,
    read_versioned,
)
from gradmix.runs.config import RunConfig, recipe_of
from gradmix.settings import MixSettings, changed_settings
from gradmix.training.loop import EpochDone, Evaluation, Event, StepDone, TaskDone, Training
from gradmix.training.metrics import (
    all_metrics,
    anytime_accuracy,
    stream_accuracy,
    task_aware_metrics,
)

LONGEST_NAME = 160
"""Characters in the readable part of a file name; file systems allow 255 in all."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run; every list over tasks is in the order of learning."""

    config: dict[str, Any]  # a RunConfig in JSON form
    versions: dict[str, str]  # of Python, packages and platform, and the CPU capability
    class_names: list[str]  # by label, in order of arrival
    class_order: list[int]  # the data set's own number of each class
    tasks: list[dict[str, Any]]  # classes, train and test samples, memory after, replay batch
    accuracy: list[list[float]]  # [l][t]: on task t after task l
    initial_accuracy: list[float]  # on every task, before training
    class_accuracy: list[list[float]]  # [l][c]: on class c after task l
    metrics: dict[str, float]
    variants: dict[str, dict[str, Any]]  # accuracy and metrics of a method's other predictors
    epochs: list[dict[str, Any]]  # task, stage, and for each epoch loss and negative-pair rate
    pair_counts: list[list[list[int]]]  # [l][a][b]: how often a was mixed with b in task l
    seconds: dict[str, Any]  # train, criterion, evaluate, total, criterion_by_task
    analysis: dict[str, Any] = field(default_factory=dict)  # entries of each analysis, by name
    protocol_version: int = 1
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION
    # missing in files of earlier versions:
    task_aware_accuracy: list[list[float]] | None = None  # as accuracy; the task's outputs only
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # during training
    stream_accuracy: list[float] | None = None  # online, by task: correct before it was learned

    @property
    def cpu_capability(self) -> str | None:
        """The CPU's instruction set as PyTorch names it; None if the file does not say.

        Runs of the same seed differ between instruction sets.
        """
        return self.versions.get("cpu_capability")


def protocol_version(config: Mapping[str, Any]) -> int:
    """Return the version of the computation that a configuration stands for.

    A result is current if it has the version of its configuration. Version 2 marks the
    configurations whose results changed when it was introduced:

    - Gradient partners with the CutMix blend: the pair table now follows the λ that CutMix uses.
    - Vision transformers: their initialisation changed.
    - `class-balanced:linear:remix` without a given α or τ: they now are those of `balanced-remix`,
      1 and 0.75. They were 0.2 and 0.5. The mix `balanced-remix` itself has version 1.

    All other configurations keep version 1. Their results have the same bits as before, except for
    ResNets on CPUs with images above 32 pixels: these differ by rounding, as between two types of
    CPU, because they no longer use the channels-last format.

    >>> protocol_version({"mix": "gradmix+", "model": "mlp"})
    1
    >>> protocol_version({"mix": "gradient:cutmix:remix", "model": "mlp"})
    2
    """
    if str(config.get("model")).startswith("vit"):
        return 2
    recipe = recipe_of(config)
    if recipe is None:
        return 1
    spelled_out = config["mix"] not in RECIPES and recipe.axes == RECIPES["balanced-remix"].axes
    ours = vars(recipe)  # α and τ are its real numbers
    real = [name for name in MixSettings.model_fields if isinstance(ours.get(name), float)]
    other_defaults = spelled_out and any(config.get(name) is None for name in real)
    other_table = recipe.uses_gradients and recipe.blend == "cutmix"
    return 2 if other_defaults or other_table else 1


def result_name(config: Mapping[str, Any], protocol: int | None = None) -> str:
    """Return the file name of a run: readable, and unique for its configuration and protocol.

    Only settings that differ from their defaults count, so a setting that is added later does
    not change the names of older results. The default protocol is the one of the configuration.
    """
    protocol = protocol_version(config) if protocol is None else protocol
    identity = {"protocol_version": protocol, "config": changed_settings(config)}
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    parts = [str(config[key]) for key in ("data", "method", "mix")]
    readable = re.sub(r"[^A-Za-z0-9+.-]", "_", "-".join([*parts, f"seed{config['seed']}"]))
    return f"{readable[:LONGEST_NAME]}-{digest}.json"


def load_result(path: str | os.PathLike[str]) -> RunResult:
    """Return the result in a file.

    Raises:
        FileError: If the file cannot be read, has another format or version, or is damaged. The
            message names the file and the field.
    """
    content = read_versioned(path)
    validate(ResultFile, content, path)
    return RunResult(**content)


class RunRecord:
    """Collects the events of a run into its result, and takes the requested analyses."""

    def __init__(self, training: Training, config: RunConfig) -> None:
        self.training, self.config = training, config
        benchmark = training.benchmark
        classes = len(benchmark.class_names)
        counts = [task.test.y.bincount(minlength=classes) for task in benchmark.tasks]
        self.totals = torch.stack(counts)  # test samples by task and class, (T, C)
        self.initial: dict[str, list[float]] = {}
        self.accuracy: dict[str, list[list[float]]] = {}
        self.task_aware: dict[str, list[list[float]]] = {}
        self.evaluations: list[dict[str, Any]] = []  # during training, of the main predictor
        self.predicted: list[int] = []  # online, by task: samples that were predicted correctly
        self.class_accuracy: list[list[float]] = []
        self.pair_counts: list[Tensor] = []
        self.epochs: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.analysis: dict[str, list[dict[str, Any]]] = {name: [] for name in config.analyses}
        self.criterion_seconds: list[float] = []  # spent up to the end of each task

    def begin(self, initial: Evaluation) -> None:
        """Record the accuracy before any training."""
        self.initial = {name: self._by_task(count) for name, count in initial.correct.items()}
        self.accuracy = {name: [] for name in self.initial}
        self.task_aware = {name: [] for name in self.initial}

    def state_dict(self) -> dict[str, Any]:
        """Return the record so far, for a checkpoint."""
        return {name: getattr(self, name) for name in RecordState.model_fields}

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
            analyses=self.config.analyses,
        )
        vars(self).update(state)

    def _by_task(self, correct: Tensor) -> list[float]:
        """Return the accuracy on each task; `correct` counts by task and class, (T, C)."""
        shares: list[float] = (correct.sum(dim=1) / self.totals.sum(dim=1)).tolist()
        return shares

    def note(self, event: Event) -> None:
        """Record an event, and take the analyses that are due."""
        if not isinstance(event, TaskDone) and event.evaluation is not None:
            accuracy = self._by_task(event.evaluation.correct["main"])
            entry = {"task": event.task, "step": event.total_steps, "accuracy": accuracy}
            if entry not in self.evaluations[-1:]:  # both may be due after the last step
                self.evaluations.append(entry)
        if isinstance(event, StepDone) and event.predicted is not None:
            if event.task == len(self.predicted):
                self.predicted.append(0)
            self.predicted[event.task] += int(event.predicted)
        if isinstance(event, EpochDone):
            self._note_epoch(event)
        elif isinstance(event, TaskDone):
            self._note_task(event)

    def _note_epoch(self, event: EpochDone) -> None:
        if event.epoch == 1:
            stage = {"task": event.task, "stage": event.stage}
            self.epochs.append({**stage, "loss": [], "negative_rate": []})
        for name, value in (("loss", event.loss), ("negative_rate", event.negative_rate)):
            self.epochs[-1][name].append(None if value is None else float(f"{value:.6g}"))
        if self.config.analyses:
            at = {"task": event.task, "epoch": event.epoch}
            for name, values in take(self.config.analyses, self.training, event).items():
                self.analysis[name].append({**at, **values})

    def _note_task(self, event: TaskDone) -> None:
        task = self.training.benchmark.tasks[event.task]
        for name, correct in event.correct.items():
            self.accuracy[name].append(self._by_task(correct))
        for name, correct in (event.task_aware or {}).items():
            self.task_aware[name].append(self._by_task(correct))
        by_class = event.correct["main"].sum(dim=0) / self.totals.sum(dim=0)
        self.class_accuracy.append(by_class.tolist())
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

    def result(self, total_seconds: float) -> RunResult:
        """Return the result of the finished run."""
        benchmark, config = self.training.benchmark, self.config.to_json()
        predictors: dict[str, dict[str, Any]] = {}
        for name, matrix in self.accuracy.items():
            aware = self.task_aware[name]
            metrics = all_metrics(matrix, self.initial[name]) | task_aware_metrics(aware)
            predictors[name] = {
                "accuracy": matrix,
                "metrics": metrics,
                "task_aware_accuracy": aware,
            }
        main = predictors.pop("main")
        samples = [task["train"] for task in self.tasks]
        predicted = [right / number for right, number in zip(self.predicted, samples, strict=False)]
        if predicted:
            main["metrics"]["stream_accuracy"] = stream_accuracy(predicted, samples)
        if self.evaluations:
            main["metrics"]["anytime_accuracy"] = anytime_accuracy(self.evaluations)
        return RunResult(
            config=config,
            versions={
                "python": platform.python_version(),
                "platform": platform.platform(),
                **{name: version(name) for name in ("gradmix", "numpy", "lightning-fabric")},
                "torch": str(torch.__version__),  # with its build
                "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            },
            class_names=[  # folder names may have characters that are no text
                name.encode(errors="replace").decode() for name in benchmark.class_names
            ],
            class_order=list(benchmark.class_order),
            tasks=self.tasks,
            **main,
            initial_accuracy=self.initial["main"],
            class_accuracy=self.class_accuracy,
            variants=predictors,
            epochs=self.epochs,
            pair_counts=[counts.tolist() for counts in self.pair_counts],
            seconds={
                **vars(self.training.seconds),
                "total": total_seconds,
                "criterion_by_task": np.diff(self.criterion_seconds, prepend=0.0).tolist(),
            },
            analysis=self.analysis,
            protocol_version=protocol_version(config),
            evaluations=self.evaluations,
            stream_accuracy=predicted or None,
        )
