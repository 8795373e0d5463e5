"""Schemas of the files in a result store: results, failed runs, progress, checkpoints' records.

Every file is read within limits of size and nesting and checked against its schema. A result must
also be consistent: its lists match each other, and its metrics follow from its accuracies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, JsonValue, ValidationError, create_model, model_validator
from torch import Tensor

from gradmix.errors import FileError, InputError
from gradmix.files.schema import Schema, TensorOf, first_violation, read_json
from gradmix.settings import REMOVED, RunSettings, plain_value, task_scenario
from gradmix.training.metrics import (
    METRICS,
    OWN_METRICS,
    anytime_accuracy,
    stream_accuracy,
    task_aware_metrics,
)

Path = str | os.PathLike[str]
Count = Annotated[int, Field(ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Real = Annotated[float, Field(ge=-1e30, le=1e30)]
Text = Annotated[str, Field(max_length=10_000)]
Metrics = dict[Text, Real]
Matrix = list[list[Share]]

FORMAT = "gradmix-result"
SCHEMA_VERSION = 2
"""The version of the files: which fields they have."""

TOLERANCE = 1e-9
"""Between a metric in a file and the one computed from its accuracies."""

MAIN_METRICS = frozenset({"anytime_accuracy", "stream_accuracy"})
"""Metrics that only the main predictor of a method has."""


class TaskEntry(Schema):
    """A task: its classes, samples, the memory after it and the samples replayed per step."""

    classes: Annotated[list[Count], Field(min_length=1)]
    train: Count
    test: Count
    memory: Count
    replay_batch: Count


class StageEntry(Schema):
    """The epochs of one stage of a task."""

    task: Count
    stage: Text
    loss: list[Real]
    negative_rate: list[Share | None]


class Variant(Schema):
    """Accuracy and metrics of another predictor of the method."""

    accuracy: Matrix
    metrics: Metrics
    task_aware_accuracy: Matrix | None = None


class EvaluationEntry(Schema):
    """An evaluation during training: the accuracy on every task, after a number of steps."""

    task: Count
    step: Count
    accuracy: list[Share]


class Times(Schema):
    """Seconds that the parts of a run took."""

    train: Seconds
    criterion: Seconds
    evaluate: Seconds
    total: Annotated[float, Field(gt=0, le=1e12)]
    criterion_by_task: list[Seconds] | None = None  # missing in files of the first versions


class Measurement(Schema):
    """An entry of an analysis; those of unknown analyses have any further numbers."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Real | list[Real | None] | None] = Field(init=False)

    task: Count
    epoch: Count


def _measurement(**numbers: Any) -> type[Measurement]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in numbers.items()}
    return create_model("Measurement", __base__=Measurement, **fields)


MEASUREMENTS: dict[str, type[Measurement]] = {
    "detrimental-rate": _measurement(whole_network=Share, last_layer=Share),
    "approximation-error": _measurement(
        lambdas=list[Share],
        of_samples=list[Real],
        of_classes=list[Real],
        mean_of_samples=Real,
        mean_of_classes=Real,
    ),
    "precision-recall": _measurement(precision=Share, recall=Share, optimal=Share, negative=Share),
    "class-distance": _measurement(within=Real, between=Real),
}
"""The numbers of each analysis."""


class ResultFile(Schema):
    """A result file; `RunResult` explains the fields."""

    format: Literal["gradmix-result"]
    schema_version: int
    protocol_version: Count
    config: dict[Text, JsonValue]
    versions: dict[Text, Text]
    class_names: Annotated[list[Text], Field(min_length=1)]
    class_order: list[Count]
    tasks: Annotated[list[TaskEntry], Field(min_length=1)]
    accuracy: Matrix
    initial_accuracy: list[Share]
    class_accuracy: Matrix
    metrics: Metrics
    variants: dict[Text, Variant]
    epochs: list[StageEntry]
    pair_counts: list[list[list[Count]]]
    seconds: Times
    analysis: dict[Text, list[dict[Text, JsonValue]]]
    task_aware_accuracy: Matrix | None = None  # this and the rest: missing in older files
    evaluations: list[EvaluationEntry] = Field(default_factory=list)
    stream_accuracy: list[Share] | None = None

    @model_validator(mode="after")
    def _check(self) -> ResultFile:
        check_config(self.config)
        self._check_shapes()
        tasks = len(self.tasks)
        derived = _derived_metrics(self.accuracy, self.task_aware_accuracy, self.initial_accuracy)
        if self.evaluations:
            entries = [entry.model_dump() for entry in self.evaluations]
            derived["anytime_accuracy"] = anytime_accuracy(entries)
        if self.stream_accuracy is not None:
            samples = [task.train for task in self.tasks]
            derived["stream_accuracy"] = stream_accuracy(self.stream_accuracy, samples)
        _check_derived("metrics", self.metrics, derived)
        for name, variant in self.variants.items():
            field, aware = f"variants.{name}", variant.task_aware_accuracy
            _check_shape(f"{field}.accuracy", variant.accuracy, tasks, tasks)
            _check_shape(f"{field}.task_aware_accuracy", aware, tasks, tasks)
            derived = _derived_metrics(variant.accuracy, aware)
            _check_derived(f"{field}.metrics", variant.metrics, derived)
            if variant.metrics.keys() != self.metrics.keys() - MAIN_METRICS:
                raise ValueError(f"{field}.metrics: names differ from those of metrics")
        for name, entries in self.analysis.items():
            for entry in entries:
                self._check_measurement(name, entry)
        return self

    def _check_shapes(self) -> None:
        tasks, classes = len(self.tasks), len(self.class_names)
        _check_evaluations(self.evaluations, tasks)
        for name, shape in {
            "accuracy": (tasks, tasks),
            "task_aware_accuracy": (tasks, tasks),
            "stream_accuracy": (tasks,),
            "initial_accuracy": (tasks,),
            "class_order": (classes,),
            "class_accuracy": (tasks, classes),
            "pair_counts": (tasks, classes, classes),
        }.items():
            _check_shape(name, getattr(self, name), *shape)
        labels = [label for task in self.tasks for label in task.classes]
        if task_scenario(str(self.config.get("scenario", ""))) != "class-incremental":
            labels = list(set(labels))  # tasks may share classes
        if sorted(labels) != list(range(classes)):
            raise ValueError(f"tasks: the classes are not those of the {classes} class_names")
        for stage in self.epochs:
            _check_shape("epochs.negative_rate", stage.negative_rate, len(stage.loss))
            _check_task("epochs.task", stage.task, tasks)
        _check_shape("seconds.criterion_by_task", self.seconds.criterion_by_task, tasks)

    def _check_measurement(self, analysis: str, entry: Mapping[str, JsonValue]) -> None:
        name = f"analysis.{analysis}"
        try:
            measured = MEASUREMENTS.get(analysis, Measurement).model_validate(entry).model_dump()
        except ValidationError as error:
            raise ValueError(f"{name}.{first_violation(error)}") from None
        _check_task(f"{name}.task", measured["task"], len(self.tasks))
        for curve in ("of_samples", "of_classes") if analysis == "approximation-error" else ():
            _check_shape(f"{name}.{curve}", measured[curve], len(measured["lambdas"]))


def _check_shape(name: str, values: Any, *shape: int) -> None:
    """Raise ValueError unless nested lists have these sizes. Older files have None for some."""
    if isinstance(values, dict):  # lists by predictor
        for key, value in values.items():
            _check_shape(f"{name}.{key}", value, *shape)
    elif values is not None:
        size, *inner = shape
        if len(values) != size:
            raise ValueError(f"{name}: has {len(values)} entries, not {size}")
        for value in values if inner else ():
            _check_shape(name, value, *inner)


def _check_evaluations(entries: Sequence[EvaluationEntry], tasks: int) -> None:
    for entry in entries:
        _check_shape("evaluations.accuracy", entry.accuracy, tasks)
        _check_task("evaluations.task", entry.task, tasks)


def _check_task(name: str, task: int, tasks: int) -> None:
    if task >= tasks:
        raise ValueError(f"{name}: is {task}, but there are {tasks} tasks")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError unless the settings of a stored configuration are valid.

    Settings of other versions may have any plain value. Names of methods, mixes and data sets are
    not looked up, because a result may come from another version.
    """
    for name in ("data", "method", "mix", "seed"):
        if name not in config:
            raise ValueError(f"config.{name}: is missing")
    for name, value in config.items():
        if name in RunSettings.model_fields:
            try:
                plain = plain_value(name, value)
            except InputError as error:
                raise ValueError(f"config.{error}") from None
            if plain != value:
                raise ValueError(f"config.{name}: is {value!r}, not {plain!r}")
        elif isinstance(value, dict) or type(value) is not type(REMOVED.get(name, value)):
            raise ValueError(f"config.{name}: is not a plain value")


def _derived_metrics(
    accuracy: Matrix, task_aware: Matrix | None, initial: Sequence[float] = ()
) -> dict[str, float]:
    """Return gradmix's own metrics; the forward transfer needs the accuracies before training."""
    keys = [key for key in OWN_METRICS if key != "forward_transfer" or initial]
    metrics = {key: METRICS[key](accuracy, initial) for key in keys}
    return metrics if task_aware is None else metrics | task_aware_metrics(task_aware)


def _check_derived(name: str, metrics: Mapping[str, float], derived: Mapping[str, float]) -> None:
    """Raise ValueError unless metrics in a file equal those derived from its other fields."""
    for key, value in derived.items():
        if key not in metrics:
            raise ValueError(f"{name}: {key} is missing")
        if abs(metrics[key] - value) > TOLERANCE:
            raise ValueError(f"{name}.{key}: is {metrics[key]}, but the accuracies give {value}")


class RecordState(Schema):
    """What an unfinished run has recorded, in its checkpoint; `RunRecord` explains the fields."""

    initial: dict[str, list[Share]]
    accuracy: dict[str, Matrix]
    task_aware: dict[str, Matrix]
    evaluations: list[EvaluationEntry]
    predicted: list[Count]
    class_accuracy: Matrix
    pair_counts: list[Annotated[Tensor, TensorOf(torch.int64, ndim=2)]]
    epochs: list[StageEntry]
    tasks: list[TaskEntry]
    analysis: dict[str, list[dict[str, Any]]]
    criterion_seconds: list[Seconds]


def check_record(
    state: dict[str, Any], *, done: int, tasks: int, classes: int, analyses: Sequence[str]
) -> None:
    """Check a saved record against the tasks, classes and analyses of the run that resumes.

    Raises:
        InputError: If the record is invalid; the message names the field.
    """
    try:
        record = RecordState.model_validate(state)
        for name, shape in {
            "initial": (tasks,),
            "accuracy": (done, tasks),
            "task_aware": (done, tasks),
            "class_accuracy": (done, classes),
            "pair_counts": (done,),
            "tasks": (done,),
            "criterion_seconds": (done,),
        }.items():
            _check_shape(name, getattr(record, name), *shape)
        for predictors in (record.accuracy, record.task_aware):
            if "main" not in predictors or predictors.keys() != record.initial.keys():
                raise ValueError("accuracy: the predictors are not those of initial, with main")
        _check_evaluations(record.evaluations, tasks)
        if len(record.predicted) > tasks:
            raise ValueError(f"predicted: has {len(record.predicted)} entries, of {tasks} tasks")
        if record.analysis.keys() != set(analyses):
            raise ValueError(f"analysis: has {sorted(record.analysis)}, not {list(analyses)}")
    except ValueError as error:
        told = first_violation(error) if isinstance(error, ValidationError) else error
        raise InputError(f"record.{told}") from None


def read_versioned(path: Path) -> dict[str, Any]:
    """Return the content of a file with a format and version that this gradmix reads."""
    content = read_json(path)
    name = os.fspath(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileError(f"{name} does not have the format {FORMAT!r}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise FileError(
            f"{name} has version {content.get('schema_version')!r} of the result format; this "
            f"gradmix reads and writes version {SCHEMA_VERSION}; use another folder"
        )
    return content
