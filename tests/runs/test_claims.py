"""Claims: one process at a time, freed however it ends."""

import signal
import subprocess
import sys

import pytest
from claim_cases import other_process

from gradmix import config_for
from gradmix.runs.claims import RunProgress, read_progress
from gradmix.runs.run import load_benchmark, prepare
from gradmix.runs.store import ResultStore
from gradmix.training.loop import StepDone


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path).create()


def test_one_process_at_a_time_and_the_next_when_it_is_killed(store):
    config = config_for("digits")
    path = store.path / "running" / store.path_of(config).stem
    first, answer = other_process(path)
    try:
        assert answer == "mine"
        assert store.claim(config) is None
        assert not store.free_if_abandoned(config)
        second, answer = other_process(path)
        second.kill()
        second.communicate()
        assert answer == "taken"
        assert store.claim(config) is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert path.exists()
    assert store.free_if_abandoned(config)
    assert not path.exists()
    with store.claim(config) as claim:
        assert claim is not None
        assert store.claim(config) is None


def test_a_claim_says_how_far_the_run_is(store):
    config, at = config_for("digits"), RunProgress(1, 5, 2, 20, 0.02)
    name = store.path_of(config).stem
    with store.claim(config) as claim:
        assert store.progress() == {name: None}
        claim.note(RunProgress(5, 5, 19, 20, 0.9999999))
        claim.note(at)
        assert store.progress() == {name: at}
    assert store.progress() == {}
    with store.claim(config):
        assert store.progress() == {name: None}


def test_a_claim_is_released_by_an_error_too(store):
    with pytest.raises(ValueError, match="oh"), store.claim(config_for("digits")):
        raise ValueError("oh")
    assert store.claim(config_for("digits")) is not None


def test_many_who_want_the_same_get_it_one_after_another(tmp_path):
    """Claim and release in a hurry: no two at a time."""
    code = """
import os, sys
from pathlib import Path
from gradmix.runs.claims import try_to_claim
path, guard, done = Path(sys.argv[1]), Path(sys.argv[2]), 0
while done < 50:
    claim = try_to_claim(path)
    if claim:
        with claim:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL))
            guard.unlink()
        done += 1
"""
    arguments = [sys.executable, "-c", code, tmp_path / "running" / "x", tmp_path / "guard"]
    processes = [subprocess.Popen(arguments) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1, "progress": {"task": 1}}'])
def test_what_is_just_being_written_says_nothing(tmp_path, text):
    (tmp_path / "claim").write_text(text)
    assert read_progress(tmp_path / "claim") is None


@pytest.mark.parametrize(("method", "epochs"), [("er", 2), ("foster", 2)])
def test_how_far_a_run_is_grows_to_the_whole_over_tasks_stages_and_epochs(method, epochs):
    config = config_for("digits", method=method, epochs=epochs, increments=(5, 5))
    training = prepare(config, load_benchmark(config))
    seen = [RunProgress.at(training, e) for e in training.events() if isinstance(e, StepDone)]
    shares = [at.share for at in seen]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    assert 0 < shares[0] < 0.1
    assert (seen[0].task, seen[0].tasks, seen[0].epoch) == (1, 2, 1)
    assert seen[-1].epoch == seen[-1].epochs
    assert {at.task for at in seen} == {1, 2}
