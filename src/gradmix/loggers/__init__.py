"""Loggers: the losses and accuracies of a training, written while it runs.

A logger receives numbers by name. `Log` turns the events of the training loop into such numbers:
for runs (`--log csv:logs`) and for classifiers (`callback=log_to("csv:logs", name="first")`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmix.errors import InputError, UnknownNameError
from gradmix.loggers.destinations import CsvLogger, MlflowLogger, TensorBoardLogger, WandbLogger
from gradmix.loggers.log import Log, Logger

__all__ = ["LOGGERS", "Log", "LogTo", "Logger", "log_to"]

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
