"""A run stopped at any moment goes on to the same weights, memory and metrics, bit by bit."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import asdict

import pytest

from gradmix import config_for, run
from gradmix.errors import FileInUseError
from gradmix.files import locked, write_state_file
from gradmix.runs import run as runs
from gradmix.training import checkpoint as checkpoints

METHODS = ("er", "der", "mir", "foster", "memo")
SETTINGS = {"exemplars_per_class": 4, "increments": (4, 3, 3), "threads": 1}
KILLS = 50
EPOCHS = 12  # of a run that is killed so often


def config(method, **changes):
    return config_for("digits", **{"method": method, "mix": "gradmix+", **SETTINGS, **changes})


# --- in a process of its own ---------------------------------------------------------------------


def whole_run(method, out, checkpoint, epochs, dies=False):
    """Run to the end, from a checkpoint if there is one; half of the time goes into saving it.

    A run that dies kills itself three events after it has written a checkpoint.
    """
    checkpoints.EVERY_SECONDS, checkpoints.SHARE = 0.02, 0.5
    checkpoints.FIRST_GUESS = (0.0, 1e99)
    trainings, events_left = [], 3

    def prepare(*given, **how):
        trainings.append(prepared(*given, **how))
        return trainings[0]

    def die(*_):
        nonlocal events_left
        if checkpoint.exists():
            events_left -= 1
        if not events_left:
            os.kill(os.getpid(), signal.SIGKILL)

    prepared, runs.prepare = runs.prepare, prepare  # this process makes one run
    on_event = die if dies else None
    result = runs.run(config(method, epochs=epochs), on_event, checkpoint=checkpoint)
    write_state_file(out, "ending", ending(result, trainings[0]))
    if checkpoint is not None:
        os.unlink(checkpoint)


def ending(result, training):
    """Weights, memory, random state, metrics: everything except the times."""
    state = {"result": {**asdict(result), "seconds": None}, "training": training.state_dict()}
    return in_order(state)


def in_order(value):
    """Dicts by their keys, whatever was first in them."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return value


# --- the tests -----------------------------------------------------------------------------------


@pytest.fixture
def start(forked):
    """Return a function that runs this file in a new process, to its last lines."""
    code = "import runpy; runpy.run_path(file, {'GIVEN': given}, 'killable')"
    return lambda *given: forked(code, file=__file__, given=given)


@pytest.fixture
def undisturbed(tmp_path, start):
    """All bits of a run that is never stopped and writes no checkpoint, and its seconds."""

    def of(method, epochs):
        started = time.monotonic()
        finish(start(method, tmp_path / "whole", None, epochs))
        seconds = time.monotonic() - started
        return (tmp_path / "whole").read_bytes(), seconds

    return of


def finish(process):
    process.join()
    assert process.exitcode == 0


def killed_after(process, seconds):
    """Kill a process after a while, None: never; whether it was killed, perhaps by itself."""
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9)
    return process.exitcode == -9


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "method",
    ["er", "foster", *(pytest.param(m, marks=pytest.mark.slow) for m in ("der", "mir", "memo"))],
)  # the others stop without a kill, in `test_faults_at_random_events`
def test_killed_once(tmp_path, method, start, undisturbed):
    expected, _ = undisturbed(method, 3)
    saved, out = tmp_path / "saved", tmp_path / "ending"
    assert killed_after(start(method, out, saved, 3, True), seconds=None)
    assert saved.exists()
    assert not out.exists()
    finish(start(method, out, saved, 3))
    assert out.read_bytes() == expected
    assert names(tmp_path) == ["ending", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments(tmp_path, method, start, undisturbed):
    """Again and again, at any time from the first moment on, until it was killed 50 times."""
    expected, seconds = undisturbed(method, EPOCHS)
    chance = random.Random(method)
    saved, out = tmp_path / "saved", tmp_path / "ending"
    kills = resumed = runs = 0
    while kills < KILLS or saved.exists():
        resumed += saved.exists()
        limit = chance.uniform(0, seconds / 2) if kills < KILLS else None
        kills += killed_after(start(method, out, saved, EPOCHS), limit)
        if out.exists():  # saved may still be there, if it was killed between the two
            assert out.read_bytes() == expected
            runs += 1
            if not saved.exists():
                assert names(tmp_path) == ["ending", "whole"]
            out.unlink()
    assert runs >= 1
    assert resumed >= KILLS // 2


class StoppedError(Exception):
    """In place of a crash."""


@pytest.mark.parametrize("method", METHODS)
def test_faults_at_random_events(tmp_path, monkeypatch, method):
    """The same in this process, with a checkpoint at about every second event."""
    chance = random.Random(method)
    tiny = config(method, epochs=1, increments=(5, 5), batch_size=128)
    note, said = checkpoints.Checkpoint.note, []
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(
        checkpoints.Checkpoint, "note", lambda *given: chance.random() < 0.5 and note(*given)
    )

    def stop_after(events):
        def observe(*_):
            nonlocal events
            events -= 1
            if events == 0:
                raise StoppedError

        return observe

    result, stops = None, -1
    while result is None:
        stops += 1
        with suppress(StoppedError):
            observe = stop_after(chance.randint(2, 6))
            result = run(tiny, observe, checkpoint=tmp_path / "f", say=said.append)
    assert stops >= 2
    assert len(said) >= 2
    assert all(message.startswith("resuming") for message in said)
    assert {**asdict(result), "seconds": None} == {**asdict(run(tiny)), "seconds": None}


def test_two_runs_at_once_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("gradmix.runs.run.LOCK_SECONDS", 0.1)
    path = tmp_path / "f"
    with locked(path), pytest.raises(FileInUseError, match="in use"):
        run(config("er", epochs=1), checkpoint=path)


if __name__ == "killable":
    whole_run(*GIVEN)  # noqa: F821 (given by `start`)
