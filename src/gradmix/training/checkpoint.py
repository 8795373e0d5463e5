"""Training that can be stopped at any moment, by SIGKILL too, and goes on to the same bits.

A `Checkpoint` is told of every event of the loop and now and then writes all that the rest of the
training depends on to one file (`gradmix.files`). A new process that resumes from it repeats the
steps that were lost, with the same batches and the same random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version as version_of
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from gradmix.errors import FileError
from gradmix.files import read_archive, read_manifest, write_archive
from gradmix.files.atomic_write import remove_leftovers
from gradmix.training.loop import Event, TaskDone, Training

KIND = "checkpoint"
CONTENTS = 4  # changes whenever a state of training comes to mean something else
EVERY_SECONDS = 30.0
SHARE = 0.01  # of the run's time that saving may take
ZIP = b"PK"  # what an archive begins with
FIRST_GUESS = (0.01, 200e6)  # what the first save is taken to cost: seconds, and bytes a second


class Stateful(Protocol):
    """What is kept beside the training: results so far."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with these."""


class Checkpoint:
    """Keeps a training and a record of it on file, at task ends and about every half minute.

    It is left out while it would make all saving cost more than a hundredth of the run's time:
    what the last save took decides. `about` says which run this is; a file of another one is not
    continued. `say` is told, in a sentence, what was done or not done. `largest` is how many
    outputs or parts a network can have; the number of classes by default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        training: Training,
        record: Stateful,
        about: Mapping[str, Any],
        *,
        say: Callable[[str], object] | None = None,
        largest: int | None = None,
        every_seconds: float | None = None,
        share: float | None = None,
    ) -> None:
        self.path = Path(path)
        self.seconds_before = 0.0  # that the run had taken when it was saved
        self._training, self._record = training, record
        self._largest = training.benchmark.num_classes if largest is None else largest
        device = training.fabric.device.type
        self._about = {**about, **_data_of(training), "device": device, "contents": CONTENTS}
        self._say = say if say is not None else lambda _: None
        self._every = EVERY_SECONDS if every_seconds is None else every_seconds
        self._share = SHARE if share is None else share
        self._started = self._last = perf_counter()
        self._spent = 0.0
        self._cost: float | None = None  # of the last save
        self._failed = False
        self._versions = {"gradmix": version_of("gradmix"), "torch": torch.__version__}
        self._random = _global_random_state(training.fabric.device)

    # --- saving -----------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Save if it is time to; the training stands at this event."""
        now = perf_counter()
        wanted = isinstance(event, TaskDone) or now - self._last >= self._every
        if not wanted or not self._affordable(now):
            return
        try:
            self.save()
        except FileError as error:
            if not self._failed:
                self._say(f"no checkpoint: {error}; training goes on")
            self._failed = True

    def _affordable(self, now: float) -> bool:
        if self._cost is None:
            seconds, rate = FIRST_GUESS
            self._cost = seconds + _bytes_in(self._training.state_dict()) / rate
        return self._spent + self._cost <= self._share * self._seconds(now)

    def save(self) -> None:
        """Write the file now."""
        started = perf_counter()
        try:
            write_archive(self.path, KIND, self._state(started))
        finally:
            self._last = perf_counter()
            self._cost = self._last - started
            self._spent += self._cost

    def remove(self) -> None:
        """Forget the file: the run is finished, or starts anew."""
        self.path.unlink(missing_ok=True)
        remove_leftovers(self.path)

    def _seconds(self, now: float) -> float:
        return self.seconds_before + now - self._started

    def _state(self, now: float) -> dict[str, Any]:
        training = self._training
        return {
            "about": self._about,
            "versions": self._versions,
            "training": training.state_dict(),
            "precision": training.fabric.strategy.precision.state_dict(),
            "random": self._drawn_from(),
            "record": self._record.state_dict(),
            "seconds": dict(vars(training.seconds)),
            "total_seconds": self._seconds(now),
            "saving_seconds": self._spent + (self._cost or 0.0),  # and about as much for this
        }

    def _drawn_from(self) -> dict[str, Any]:
        """The state of PyTorch's own generators, where a network of the user's drew from them.

        Nothing in gradmix does, but dropout does.
        """
        now = _global_random_state(self._training.fabric.device)
        before = self._random
        return {name: now[name] for name in now if not torch.equal(now[name], before[name])}

    # --- resuming ---------------------------------------------------------------------------

    def resume(self) -> bool:
        """Go on where the file stands; False if there is none that could be continued.

        FileError if it is one of this run that does not fit it: then the training is spoilt.
        """
        remove_leftovers(self.path)
        if not self.path.exists():
            return False
        self._refuse_others()
        try:
            state = read_archive(self.path, KIND)
        except FileError as error:
            self._say(f"starting anew: {error}")
            return False
        try:
            other = _difference(state.get("about"), self._about)
            if other:
                self._say(f"starting anew: {self.path} is of another run ({other})")
                return False
            changed = self._version_note(state["versions"])
            self._load(state)
        except Exception as error:
            raise FileError(
                f"{self.path} does not fit this run ({type(error).__name__}: {error}); remove it"
            ) from error
        self._say(f"resuming {self._where()}{changed}")
        return True

    def _refuse_others(self) -> None:
        """FileError if the file is something else: a checkpoint must not take its place."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                if file.read(len(ZIP)) not in (b"", ZIP, bytes(len(ZIP))):  # zeros: after a crash
                    raise FileError(f"{self.path} is no checkpoint; give another path")
        try:
            kind = read_manifest(self.path).kind
        except FileError:  # damaged, as far as anybody can tell
            return
        if kind != KIND:
            raise FileError(f"{self.path} is a {kind}, not a checkpoint; give another path")

    def _load(self, state: dict[str, Any]) -> None:
        training, device = self._training, self._training.fabric.device
        saved = state["training"]
        check_structure(saved["method"]["structure"], self._largest)
        for name in ("losses", "method"):  # generators take their state from the CPU
            saved[name] = _to_device(saved[name], device)
        training.load_state_dict(saved)
        training.fabric.strategy.precision.load_state_dict(state["precision"])
        self._record.load_state_dict(state["record"])
        for name, seconds in state["seconds"].items():
            setattr(training.seconds, name, float(seconds))
        self.seconds_before = float(state["total_seconds"])
        self._spent = float(state["saving_seconds"])
        _set_global_random_state(state["random"], device)

    def _version_note(self, saved: Mapping[str, str]) -> str:
        changed = [
            f"{name} was {saved[name]} and is {here}"
            for name, here in self._versions.items()
            if saved[name] != here
        ]
        return f"; {', '.join(changed)}: the bits may not be the same" if changed else ""

    def _where(self) -> str:
        at = self._training.position
        if at.task == len(self._training.benchmark.tasks):
            return "after the last task"
        return f"at task {at.task + 1}, epoch {at.epoch + 1}"


def seed_on_file(path: str | os.PathLike[str]) -> int | None:
    """The seed of the training that a checkpoint is of; None if there is none that says."""
    try:
        seed = read_archive(path, KIND)["about"].get("seed")
    except (FileError, KeyError, AttributeError):
        return None
    return seed if type(seed) is int and seed >= 0 else None


def _data_of(training: Training) -> dict[str, Any]:
    """Enough of the data to notice that it is not what it was."""
    benchmark = training.benchmark
    sizes = [[len(task.train.y), len(task.test.y)] for task in benchmark.tasks]
    return {"class_names": list(benchmark.class_names), "task_sizes": sizes}


def _difference(saved: object, here: Mapping[str, Any]) -> str:
    """What differs, in a few words; nothing if all is the same."""
    if not isinstance(saved, dict):
        return "it does not say which"
    for name in [*here, *saved]:
        if name not in saved or name not in here:
            return f"{name} is not in both"
        if isinstance(here[name], dict) and saved[name] != here[name]:
            return _difference(saved[name], here[name])
        if saved[name] != here[name]:
            return f"{name} was {str(saved[name])[:60]} and is {str(here[name])[:60]}"
    return ""


def check_structure(structure: Mapping[str, Any], most: int) -> None:
    """Networks have no more outputs or parts than `most`: checked before they grow."""
    for name, value in structure.items():
        if type(value) not in (int, bool) or not 0 <= value <= most:
            raise ValueError(f"{name} is {value!r}, and {most} is the most there can be")


def _bytes_in(value: Any) -> int:
    """Of the tensors in a state."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_bytes_in, parts))


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_device(item, device) for item in value]
    return value


def _global_random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_global_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
