"""Runs that are being computed: a lock for each, and a file with its progress.

The locks come from the package filelock, because the operating system releases them when a process
ends, even if it is killed. After a crash nothing has to be cleaned up before the run can resume.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gradmix.errors import FileError, FileInUseError

if TYPE_CHECKING:
    from gradmix.training.loop import StepDone, Training


@dataclass(frozen=True)
class RunProgress:
    """How far a run is; tasks and epochs count from 1."""

    task: int
    tasks: int
    epoch: int
    epochs: int
    share: float  # of the whole run that is done

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


class RunLock:
    """The right to compute a run, until it is released or the process ends."""

    def __init__(self, path: Path, lock: ExitStack) -> None:
        self.path, self._lock = path, lock
        self.report(None)

    def report(self, progress: RunProgress | None) -> None:
        """Write how far the run is.

        The file is small and rewritten twice a second, so it is not written atomically:
        `read_progress` tolerates a file that is being written.
        """
        content = {"pid": os.getpid(), "progress": progress and asdict(progress)}
        try:
            self.path.write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            error.filename = error.filename or str(self.path)  # a full disk names no file
            raise

    def release(self) -> None:
        """Let other processes compute the run."""
        self.path.unlink(missing_ok=True)
        self._lock.close()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def try_to_lock(path: Path) -> RunLock | None:
    """Return the lock of the run with this progress file; None while another process has it."""
    from gradmix.files import locked  # imports PyTorch, which reading progress does not need

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = ExitStack()
    try:
        lock.enter_context(locked(path))
    except FileInUseError:
        return None
    return RunLock(path, lock)


def remove_stale_lock(path: Path) -> None:
    """Remove the lock file of a process that died while it wrote the file at `path`."""
    from gradmix.files import locked

    with suppress(FileInUseError), locked(path):
        pass


def locked_in(folder: Path) -> list[Path]:
    """Return the progress files of runs that a process locks, or locked when it died."""
    return [path.with_name(path.name[1:-5]) for path in folder.glob(".*.lock")]


def read_progress(path: Path) -> RunProgress | None:
    """Return the progress in a file; None without any, or while it is being written."""
    from gradmix.files.json_file import read_json
    from gradmix.files.schema import validate
    from gradmix.runs._schemas import ProgressFile

    try:
        entry = validate(ProgressFile, read_json(path, 10_000), path).progress
    except FileError:
        return None
    return None if entry is None else RunProgress(**entry.model_dump())
