"""A folder of results that several processes may use at once.

    gradmix.json      the version of the format
    NAME.json         a finished run
    NAME.checkpoint   an unfinished run, to resume
    failed/NAME.json  a run that ended in an error, and the error
    running/NAME      the progress of a run that a process is computing

Files are written to a temporary name, flushed and renamed: a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import JsonValue, model_validator

from gradmix.errors import FileError, FileInUseError
from gradmix.files import locked
from gradmix.files.atomic_write import remove_leftovers, write_text
from gradmix.files.schema import Schema, read_json, validate
from gradmix.runs._schemas import (
    FORMAT,
    SCHEMA_VERSION,
    Count,
    Share,
    Text,
    check_config,
    read_versioned,
)
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunResult, load_result, protocol_version, result_name
from gradmix.training.loop import StepDone, Training

MARKER = "gradmix.json"
CHECKPOINT = ".checkpoint"
MOST_TEXT = 100_000  # characters of a message or traceback

T = TypeVar("T")
Problems = dict[Path, str]
"""Files that cannot be used, and why."""


class FailedRun(Schema):
    """A run that ended in an error."""

    config: dict[Text, JsonValue]  # a RunConfig in JSON form
    error: Text  # the type of the error
    message: str
    traceback: str  # paths are relative to the folders that Python imports from
    protocol_version: Count

    @model_validator(mode="after")
    def _check(self) -> FailedRun:
        check_config(self.config)
        return self


class RunProgress(NamedTuple):
    """How far a run is; tasks and epochs count from 1."""

    task: Count
    tasks: Count
    epoch: Count
    epochs: Count
    share: Share  # of the whole run that is done

    @classmethod
    def after(cls, training: Training, event: StepDone) -> RunProgress:
        """Return how far a training is after a step."""
        tasks, stages = training.benchmark.tasks, training.method.stages()
        epochs = sum(stage.epochs for stage in stages)
        passed = sum(stage.epochs for stage in stages[: training.position.stage]) + event.epoch
        weights = [len(task.train.y) for task in tasks]
        within = (passed + event.step / event.steps) / epochs
        done = sum(weights[: event.task]) + weights[event.task] * within
        return cls(event.task + 1, len(tasks), passed + 1, epochs, done / sum(weights))


class ProgressFile(Schema):
    """The progress file of a run that is being computed."""

    pid: Count
    progress: RunProgress | None


class RunLock(ExitStack):
    """The right to compute a run, until it is closed or the process ends.

    The operating system releases the lock when a process ends, even if it is killed. After a crash
    nothing has to be cleaned up before the run can resume.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.enter_context(locked(path))
        self.callback(path.unlink, missing_ok=True)
        try:
            self.report(None)
        except BaseException:  # such as Ctrl-C
            self.close()
            raise

    def report(self, progress: RunProgress | None) -> None:
        """Write how far the run is.

        The file is rewritten twice a second, so it is not written atomically: `read_progress`
        tolerates a file that is being written.
        """
        content = {"pid": os.getpid(), "progress": progress and progress._asdict()}
        try:
            self.path.write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            error.filename = error.filename or str(self.path)  # a full disk names no file
            raise


class ResultStore:
    """The results in a folder.

    A folder that does not exist has no results; `create` makes it.

    Args:
        path: The folder.

    Raises:
        FileError: If the folder holds results of another version of the format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise FileError(f"out is {os.fspath(path)!r}; name a folder, such as runs")
        self.path = Path(path)
        marker = self.path / MARKER
        if os.path.lexists(marker):
            read_versioned(marker)

    def create(self) -> ResultStore:
        """Make the folder and return the store.

        Raises:
            FileError: If the folder is not writable.
        """
        marker = self.path / MARKER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                text = json.dumps({"format": FORMAT, "schema_version": SCHEMA_VERSION})
                write_text(marker, text + "\n")
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise FileError(
                f"out is {os.fspath(self.path)!r}, which cannot hold results ({error}); "
                "give a folder that is writable"
            ) from error
        return self

    # --- finished runs ----------------------------------------------------------------------

    def path_of(self, config: RunConfig) -> Path:
        """Return the path that the result of a configuration has or would have."""
        return self.path / result_name(config.to_json())

    def find(self, config: RunConfig) -> RunResult | None:
        """Return the result of a configuration; None if there is none.

        Raises:
            FileError: If the file is damaged.
        """
        path = self.path_of(config)
        if not os.path.lexists(path):
            return None
        try:
            return load_result(path)
        except FileError as error:
            raise FileError(f"{error}; remove the file to run it again") from None

    def save(self, result: RunResult) -> Path:
        """Write a result and return its path; it replaces the checkpoint and an earlier failure."""
        path = self.path / result_name(result.config, result.protocol_version)
        write_text(path, json.dumps(asdict(result), allow_nan=False) + "\n")
        self._failed(path.name).unlink(missing_ok=True)
        _forget(path.with_suffix(CHECKPOINT))
        return path

    def read_all(self) -> tuple[list[RunResult], Problems]:
        """Return the valid results in the order of their names, and the invalid files."""
        paths = (p for p in self.path.glob("[!.]*.json") if p.name != MARKER)
        return _read_each(paths, load_result)

    def results(self) -> list[RunResult]:
        """Return the valid results in the order of their names."""
        return self.read_all()[0]

    # --- unfinished runs --------------------------------------------------------------------

    def checkpoint_of(self, config: RunConfig) -> Path:
        """Return the path of the checkpoint of a configuration."""
        return self.path_of(config).with_suffix(CHECKPOINT)

    def forget_checkpoint(self, config: RunConfig) -> None:
        """Remove the checkpoint, so that the run starts anew."""
        _forget(self.checkpoint_of(config))

    # --- failed runs ------------------------------------------------------------------------

    def _failed(self, name: str) -> Path:
        return self.path / "failed" / name

    def save_failure(self, config: RunConfig, error: BaseException) -> FailedRun:
        """Record the error in which a run ended, and return the record."""
        settings = config.to_json()
        trace = "".join(traceback.format_exception(error))
        for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
            trace = trace.replace(os.path.join(folder, ""), "")
        # File names may have characters that UTF-8 cannot encode.
        message, trace = (
            text.encode(errors="backslashreplace").decode() for text in (str(error), trace)
        )
        failure = FailedRun(
            config=settings,
            error=type(error).__name__,
            message=message[:MOST_TEXT],
            traceback=trace[-MOST_TEXT:],
            protocol_version=protocol_version(settings),
        )
        path = self._failed(self.path_of(config).name)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(failure.model_dump(), indent=1) + "\n")
        return failure

    def find_failure(self, config: RunConfig) -> FailedRun | None:
        """Return how the run of a configuration failed; None unless it failed last time."""
        path = self._failed(self.path_of(config).name)
        return _load_failure(path) if os.path.lexists(path) else None

    def read_failures(self) -> tuple[list[FailedRun], Problems]:
        """Return the failed runs in the order of their names, and the invalid files."""
        return _read_each(self._failed("").glob("[!.]*.json"), _load_failure)

    # --- runs in progress -------------------------------------------------------------------

    def _running(self, config: RunConfig) -> Path:
        return self.path / "running" / self.path_of(config).stem

    def lock(self, config: RunConfig) -> RunLock | None:
        """Return the right to compute a run; None while another process has it."""
        return try_to_lock(self._running(config))

    def progress(self) -> dict[str, RunProgress | None]:
        """Return how far each running run is, by the stem of its file's name."""
        return {path.name: read_progress(path) for path in locked_in(self.path / "running")}

    def free_if_abandoned(self, config: RunConfig) -> bool:
        """Return whether the process that computed this run died, and clean up after it."""
        path = self._running(config)
        return path in locked_in(path.parent) and self._tidy(path)

    def tidy(self) -> None:
        """Remove the files of processes that died while they computed a run."""
        for path in locked_in(self.path / "running"):
            self._tidy(path)

    def _tidy(self, path: Path) -> bool:
        lock = try_to_lock(path)
        if lock is None:
            return False
        with lock:
            name = f"{path.name}.json"
            for file in (path, self.path / name, self._failed(name)):
                remove_leftovers(file)
            checkpoint = self.path / f"{path.name}{CHECKPOINT}"
            with suppress(FileInUseError), locked(checkpoint):
                pass  # this removes the lock file of a process that died
            if (self.path / name).exists():  # the process died just before it removed this
                _forget(checkpoint)
            remove_leftovers(checkpoint)
        return True


def _read_each(paths: Iterable[Path], load: Callable[[Path], T]) -> tuple[list[T], Problems]:
    found: list[T] = []
    problems: Problems = {}
    for path in sorted(paths):
        try:
            found.append(load(path))
        except FileError as error:  # noqa: PERF203 - one file after another
            problems[path] = str(error)
    return found, problems


def _forget(checkpoint: Path) -> None:
    checkpoint.unlink(missing_ok=True)
    remove_leftovers(checkpoint)


def _load_failure(path: Path) -> FailedRun:
    try:
        return validate(FailedRun, read_json(path), path)
    except FileError as error:
        raise FileError(f"{error}; remove the file to run it again") from None


def try_to_lock(path: Path) -> RunLock | None:
    """Return the lock of the run with this progress file; None while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return RunLock(path)
    except FileInUseError:
        return None


def locked_in(folder: Path) -> list[Path]:
    """Return the progress files of runs that a process locks, or locked when it died."""
    return [path.with_name(path.name[1:-5]) for path in folder.glob(".*.lock")]


def read_progress(path: Path) -> RunProgress | None:
    """Return the progress in a file; None without any, or while it is being written."""
    try:
        return validate(ProgressFile, read_json(path, 10_000), path).progress
    except FileError:
        return None
