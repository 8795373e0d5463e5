"""Checkpoints: a stopped training, even one killed, resumes with identical results.

A `Checkpoint` receives every event of the loop and writes, from time to time, everything that the
rest of the training depends on to one file. A new process that resumes from it repeats the lost
steps with the same batches and the same random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version as version_of
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from gradmix.errors import FileError, GradMixError, InputError
from gradmix.files import read_manifest, read_state_file, write_state_file
from gradmix.files.atomic_write import remove_leftovers
from gradmix.files.schema import validate
from gradmix.models.parallel import whole_state
from gradmix.training.events import Event, Seconds, TaskDone
from gradmix.training.loop import Training
from gradmix.training.state_schema import CheckpointState

KIND = "checkpoint"
CONTENTS = 6  # raised when the state of a training changes its meaning
EVERY_SECONDS = 30.0
SHARE = 0.01  # largest share of the run's time that saving may take
ZIP = b"PK"  # first bytes of a state file
# These parts stay on the CPU until they are loaded; "method" and "stage" have such parts.
LOADED_FROM_CPU = {"method", "stage", "networks", "optimizer", "streams"}
FIRST_GUESS = (0.01, 200e6)  # assumed cost of the first save: seconds, and bytes per second


class Record(Protocol):
    """What is saved beside the training, such as the results so far."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them; InputError if they are invalid."""


class Checkpoint:
    """Saves a training and its record to a file, after tasks and about every half minute.

    A save is postponed while all saves together would take more than a hundredth of the run's
    time.

    Args:
        path: The file.
        training: The training.
        record: Saved beside it.
        about: Identifies the run; a file of another run is not resumed.
        say: Receives a sentence about what was done or not done.
        largest: Largest number of outputs or parts that a network can have; by default the number
            of classes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        training: Training,
        record: Record,
        about: Mapping[str, Any],
        *,
        say: Callable[[str], object] | None = None,
        largest: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.seconds_before = 0.0  # time that the run had taken when it was saved
        self._training, self._record = training, record
        self._largest = training.benchmark.num_classes if largest is None else largest
        tasks = training.benchmark.tasks
        self._about = {
            **about,
            "class_names": list(training.benchmark.class_names),
            "task_sizes": [[len(task.train.y), len(task.test.y)] for task in tasks],
            "device": training.fabric.device.type,
            "contents": CONTENTS,
        }
        self._say = say if say is not None else lambda _: None
        self._started = self._last = perf_counter()
        self._spent = 0.0
        self._cost: float | None = None  # of the last save
        self._failed = False
        self._versions = {"gradmix": version_of("gradmix"), "torch": torch.__version__}

    # --- saving -----------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Save if it is time to; call it at every event. Rank 0 decides."""
        ranks = self._training.method.ranks
        due = ranks.first and self._due(event)
        if ranks.shard_weights:
            due = bool(ranks.from_first(int(due)))
        if not due:
            return
        try:
            self.save()
        except FileError as error:
            if not self._failed:
                self._say(f"no checkpoint: {error}; training continues")
            self._failed = True

    def _due(self, event: Event) -> bool:
        """Return whether it is time to save."""
        now = perf_counter()
        if not isinstance(event, TaskDone) and now - self._last < EVERY_SECONDS:
            return False
        if self._cost is None:
            seconds, rate = FIRST_GUESS
            self._cost = seconds + _bytes_in(self._training.state_dict()) / rate
        return self._spent + self._cost <= SHARE * (self.seconds_before + now - self._started)

    def save(self) -> None:
        """Write the file now; rank 0 does. All ranks call this if weights are split over them."""
        training, ranks = self._training, self._training.method.ranks
        if not ranks.first and not ranks.shard_weights:
            return
        started = perf_counter()
        try:
            state = {
                "about": self._about,
                "versions": self._versions,
                "training": training.state_dict(),
                "precision": training.fabric.strategy.precision.state_dict(),
                "record": self._record.state_dict(),
                "seconds": dict(vars(training.seconds)),
                "total_seconds": self.seconds_before + started - self._started,
                "saving_seconds": self._spent + (self._cost or 0.0),  # about as much for this one
            }
            if ranks.shard_weights:
                state = whole_state(state, keep=ranks.first)
            if ranks.first:
                write_state_file(self.path, KIND, state)
        finally:
            self._last = perf_counter()
            self._cost = self._last - started
            self._spent += self._cost

    def remove(self) -> None:
        """Delete the file, because the run is finished or starts again."""
        self.path.unlink(missing_ok=True)
        remove_leftovers(self.path)

    # --- resuming ---------------------------------------------------------------------------

    def resume(self) -> bool:
        """Resume from the file.

        Returns:
            False if there is no file, or one of another run or version.

        Raises:
            FileError: If the file belongs to this run and is invalid, or is not a checkpoint.
        """
        ranks = self._training.method.ranks
        if ranks.first:
            remove_leftovers(self.path)
        ranks.barrier()  # rank 0 holds the lock now
        if not self.path.exists():
            return False
        self._refuse_other_files()
        try:
            state = read_state_file(self.path, KIND)
        except FileError as error:
            self._say(f"starting again: {error}")
            return False
        other = _difference(state.get("about"), self._about)
        if other:
            self._say(f"starting again: {self.path} belongs to another run ({other})")
            return False
        checked = validate(CheckpointState, state, self.path)
        self._load(checked, state)
        at, where = self._training.position, "after the last task"
        if at.task < len(self._training.benchmark.tasks):
            where = f"at task {at.task + 1}, epoch {at.epoch + 1}"
        changed = [
            f"{name} was {checked.versions.get(name)} and is {here}"
            for name, here in self._versions.items()
            if checked.versions.get(name) != here
        ]
        note = f"; {', '.join(changed)}: results may differ in the last bits" if changed else ""
        self._say(f"resuming {where}{note}")
        return True

    def _refuse_other_files(self) -> None:
        """Raise FileError if a checkpoint would overwrite a file of another kind."""
        if not self.path.is_file():
            raise FileError(f"{self.path} is not a regular file; give another path")
        with self.path.open("rb") as file:
            if file.read(len(ZIP)) not in (b"", ZIP, bytes(len(ZIP))):  # zeros: after a crash
                raise FileError(f"{self.path} is not a checkpoint; give another path")
        try:
            kind = read_manifest(self.path).kind
        except FileError:  # damaged
            return
        if kind != KIND:
            raise FileError(f"{self.path} is a {kind}, not a checkpoint; give another path")

    def _load(self, checked: CheckpointState, state: dict[str, Any]) -> None:
        training, saved = self._training, state["training"]
        try:
            for name, value in saved["method"]["structure"].items():
                if value > self._largest:
                    raise InputError(
                        f"structure.{name} is {value!r}; the largest possible is {self._largest}"
                    )
            for part in (saved, saved["method"], saved["stage"] or {}):
                for name in part.keys() - LOADED_FROM_CPU:
                    part[name] = training.fabric.to_device(part[name])
            training.load_state_dict(saved)
            training.fabric.strategy.precision.load_state_dict(state["precision"])
            training.seconds = Seconds(**state["seconds"])
            self._record.load_state_dict(state["record"])
        except (GradMixError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            reason = f"{type(error).__name__}: " if not isinstance(error, GradMixError) else ""
            raise FileError(
                f"{self.path} does not fit this run: {reason}{error}; remove it"
            ) from error
        self.seconds_before, self._spent = checked.total_seconds, checked.saving_seconds


def seed_on_file(path: str | os.PathLike[str]) -> int | None:
    """Return the seed of the training in a checkpoint; None if there is none."""
    try:
        about = read_state_file(path, KIND).get("about")
    except FileError:
        return None
    seed = about.get("seed") if isinstance(about, dict) else None
    return seed if type(seed) is int and seed >= 0 else None


def _difference(saved: object, here: Mapping[str, Any]) -> str:
    """Return in a few words what differs; nothing if all is the same."""
    if not isinstance(saved, dict):
        return "it does not say which"
    for name in [*here, *saved]:
        if name not in saved or name not in here:
            return f"only one of them has {name}"
        with suppress(RuntimeError):  # a tensor with several values differs from everything
            if saved[name] == here[name]:
                continue
        if isinstance(here[name], dict):
            return _difference(saved[name], here[name])
        return f"{name} was {str(saved[name])[:60]} and is {str(here[name])[:60]}"
    return ""


def _bytes_in(value: Any) -> int:
    """Return the size of the tensors in a state."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_bytes_in, parts))
