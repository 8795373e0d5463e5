"""Who is computing what: a lock for every running run, and a file that says how far it is.

The system frees the lock when the process ends, in whatever way, so that nothing has to be cleaned
up after a crash before the run can be taken up again.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gradmix.errors import FileInUseError

if TYPE_CHECKING:
    from gradmix.training.loop import StepDone, Training


@dataclass(frozen=True)
class RunProgress:
    """How far a run is; tasks and epochs count from 1, as people do."""

    task: int
    tasks: int
    epoch: int
    epochs: int
    share: float  # of the whole run that is done

    @classmethod
    def at(cls, training: Training, event: StepDone) -> RunProgress:
        """How far a training is after a step."""
        tasks, stages = training.benchmark.tasks, training.method.stages()
        epochs = sum(stage.epochs for stage in stages)
        passed = sum(stage.epochs for stage in stages[: training.position.stage]) + event.epoch
        weights = [len(task.train.y) for task in tasks]
        within = (passed + event.step / event.steps) / epochs
        done = sum(weights[: event.task]) + weights[event.task] * within
        return cls(event.task + 1, len(tasks), passed + 1, epochs, done / sum(weights))


class Claim:
    """The right to compute a run, until released or the process ends."""

    def __init__(self, path: Path, lock: ExitStack) -> None:
        self.path, self._lock = path, lock
        self.note(None)

    def note(self, progress: RunProgress | None) -> None:
        """Say how far the run is, for whoever shows progress."""
        content = {"pid": os.getpid(), "progress": progress and asdict(progress)}
        self.path.write_text(json.dumps(content), encoding="utf-8")

    def release(self) -> None:
        """Leave the run to others."""
        self.path.unlink(missing_ok=True)
        self._lock.close()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def try_to_claim(path: Path) -> Claim | None:
    """Claim the run of this file; None while another process has it."""
    from gradmix.files import locked  # imports torch, which to read progress is not needed

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = ExitStack()
    try:
        lock.enter_context(locked(path))
    except FileInUseError:
        return None
    return Claim(path, lock)


def free(path: Path) -> None:
    """Remove the lock that a process left behind which died while it wrote this file."""
    from gradmix.files import locked

    with suppress(FileInUseError), locked(path):
        pass


def claimed_in(folder: Path) -> list[Path]:
    """The runs that a process has claimed, or had when it died."""
    return [path.with_name(path.name[1:-5]) for path in folder.glob(".*.lock")]


def read_progress(path: Path) -> RunProgress | None:
    """What the claim at this path last noted; None if nothing, or just being written."""
    try:
        progress = json.loads(path.read_text(encoding="utf-8"))["progress"]
        return RunProgress(**progress) if progress else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
