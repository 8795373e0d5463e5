"""Loggers: the losses and accuracies of a training, written while it runs.

A logger receives numbers by name. `Log` turns the events of the training loop into such numbers:
for runs (`--log csv:logs`) and for classifiers (`callback=log_to("csv:logs", name="first")`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gradmix.errors import InputError, UnknownNameError
from gradmix.loggers.destinations import CsvLogger, MlflowLogger, TensorBoardLogger, WandbLogger
from gradmix.training.loop import EpochDone, Event, StepDone, TaskDone

__all__ = ["LOGGERS", "NAME", "Log", "LogTo", "Logger", "log_to"]


class Logger(Protocol):
    """Receives numbers by name, at increasing steps."""

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start a log, which replaces an earlier one of the same name, or continue the earlier one.

        Args:
            config: The settings of the training.
            resumed: Whether the training resumes, and the earlier log is continued.

        Returns:
            The last step that the earlier log has of each name; empty for a new log.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers; they survive the sudden end of the process."""

    def close(self) -> None:
        """End the log."""


LOGGERS: dict[str, Callable[[str, str], Logger]] = {
    "csv": CsvLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}
"""Every logger by name: a function of the place, such as a folder, and the name of the log.

A new logger writes nothing before `begin`.
"""

NAME = re.compile(r"[\w+.-]+")  # of a log or a plugin


@dataclass(frozen=True)
class LogTo:
    """Where a run is logged.

    Args:
        destinations: Each of the form `csv:FOLDER`, `tensorboard:FOLDER`, `wandb:PROJECT` or
            `mlflow:EXPERIMENT`.
        every_steps: Steps between logged losses; None logs the means of epochs only.

    Raises:
        InputError: If a destination has another form, or `every_steps` is below 1.
        MissingPackageError: If a logger needs a package that is not installed.
    """

    destinations: Sequence[str] = ()
    every_steps: int | None = None

    def __post_init__(self) -> None:
        self.open("name")  # raises if that is not possible
        if self.every_steps is not None and self.every_steps < 1:
            raise InputError(f"every_steps is {self.every_steps}; give 1 or more")

    def open(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        say: Callable[[str], object] | None = None,
    ) -> Log:
        """Return the log of one training.

        Args:
            name: Name of the training: letters, digits and + . _ -
            config: Its settings, which services show beside it.
            say: Called with a sentence if a logger fails. Training then continues without it.

        Raises:
            InputError: If the name has other characters.
        """
        if not NAME.fullmatch(name):
            raise InputError(f"name is {name!r}; use letters, digits and + . _ -")
        loggers = {}
        for destination in self.destinations:
            kind, _, place = str(destination).partition(":")
            if kind not in LOGGERS:
                raise UnknownNameError("logger", kind, LOGGERS)
            if not place:
                raise InputError(f"log is {destination!r}; give a place, such as {kind}:logs")
            loggers[destination] = LOGGERS[kind](place, name)
        return Log(loggers, config, self.every_steps, say)


def log_to(*destinations: str, name: str, every_steps: int | None = None) -> Log:
    """Return a log for the `callback` of a classifier's `fit` and `partial_fit`.

    Several calls may use the same log: it counts their steps together. A new log of the same name
    replaces an earlier one, unless its first call resumes from a checkpoint.

    Args:
        destinations: Such as `csv:FOLDER`; see `LogTo`.
        name: Name of the log, such as the name of the file.
        every_steps: Steps between logged losses; None logs the means of epochs only.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from gradmix.training.loop import EpochDone
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with log_to(f"csv:{folder}", name="first") as log:
    ...         log(EpochDone(0, "train", 1, 1, loss=0.5, negative_rate=None, total_steps=7))
    ...     Path(folder, "first.csv").read_text().split()
    ['step,name,value', '7,epoch/loss,0.5']
    """
    return LogTo(destinations, every_steps).open(name)


class Log(AbstractContextManager["Log"]):
    """Logs the events of one training: call it with every event. `LogTo.open` makes it.

    A resumed training repeats the steps after its last checkpoint. Numbers that are logged already
    are not logged again.
    """

    def __init__(
        self,
        loggers: Mapping[str, Logger],
        config: Mapping[str, Any] | None = None,
        every_steps: int | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._loggers, self._config = dict(loggers), dict(config or {})
        self._every, self._say = every_steps, say or warnings.warn
        self._last: dict[str, dict[str, int]] | None = None  # step of each name, by destination
        self._before = self._step = 0  # steps of earlier trainings, and of all so far

    def __call__(self, event: object) -> None:
        """Log an event of the training loop; other objects are ignored."""
        if not isinstance(event, Event):
            return
        if self._last is None:
            resumed = not _begins(event)
            self._last = {
                destination: dict(logger.begin(self._config, resumed))
                for destination, logger in self._loggers.items()
            }
        elif _begins(event):  # the next call of a classifier
            self._before = self._step
        # A method without steps counts tasks.
        self._step = self._before + (event.total_steps or event.task + 1)
        values = values_of(event, self._every)
        for destination in list(self._loggers):
            self._write(destination, values, self._last[destination])

    def _write(self, destination: str, values: Mapping[str, float], last: dict[str, int]) -> None:
        new = {name: value for name, value in values.items() if self._step > last.get(name, -1)}
        if new:
            self._attempt(destination, lambda logger: logger.log(self._step, new))
        last |= dict.fromkeys(new, self._step)

    def _attempt(self, destination: str, act: Callable[[Logger], object]) -> None:
        try:
            act(self._loggers[destination])
        except Exception as error:  # of a service or a disk: no reason to lose the training
            self._say(f"logging to {destination} failed: {error}; training continues without it")
            del self._loggers[destination]

    def close(self) -> None:
        """End the log."""
        for destination in list(self._loggers) if self._last is not None else ():
            self._attempt(destination, lambda logger: logger.close())

    def __exit__(self, *error: object) -> None:
        self.close()


def _begins(event: Event) -> bool:
    """Return whether an event is the first one of a training."""
    if isinstance(event, StepDone):
        return event.total_steps == 1
    return isinstance(event, TaskDone) and event.total_steps == 0 and event.task == 0


def values_of(event: Event, every_steps: int | None) -> dict[str, float]:
    """Return the numbers of an event by name."""
    if isinstance(event, TaskDone):
        values = {"task_end/memory": float(event.memory_size)}
        seen = {"accuracy": event.correct, "task_aware_accuracy": event.task_aware or {}}
        for name, correct in seen.items():
            values |= _accuracies(f"task_end/{name}", event.task, correct.get("main"), event.tested)
        return values
    values = {}
    if isinstance(event, EpochDone):
        values["epoch/loss"] = event.loss
        if event.negative_rate is not None:
            values["epoch/negative_rate"] = event.negative_rate
    elif every_steps is not None and event.total_steps % every_steps == 0:
        values["loss"] = float(event.loss)
    if event.evaluation is not None:
        correct, _, tested = event.evaluation
        values |= _accuracies("accuracy", event.task, correct["main"], tested)
    return values


def _accuracies(
    name: str, task: int, correct: Tensor | None, tested: Tensor | None
) -> dict[str, float]:
    """Return the accuracy on each task seen, and their mean under the name itself.

    `correct` and `tested` count test samples by task and class, (T, C).
    """
    if correct is None or tested is None or not int(tested[: task + 1].sum(dim=1).min()):
        return {}
    shares = (correct.sum(dim=1) / tested.sum(dim=1))[: task + 1].tolist()
    by_task = {f"{name}/task_{number}": share for number, share in enumerate(shares, start=1)}
    return {name: sum(shares) / len(shares), **by_task}
