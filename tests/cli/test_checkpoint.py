"""`gradmix run` and `sweep`, killed and started again."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from gradmix.training import checkpoint

DIES = """
import os, signal
from gradmix.training import checkpoint

note, events_left = checkpoint.Checkpoint.note, 3

def die_later(saved, event):
    global events_left
    note(saved, event)
    events_left -= saved.path.exists()
    if not events_left:
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint.Checkpoint.note = die_later
checkpoint.EVERY_SECONDS, checkpoint.SHARE = 0.02, 0.5
checkpoint.FIRST_GUESS = (0.0, 1e99)
from gradmix.cli import main
main()
"""
WHAT = ["--data", "digits", "--mix", "gradmix+", "--epochs", "3", "--batch-size", "64"]


def content(folder):
    (path,) = folder.glob("digits*")
    return {**json.loads(path.read_text()), "seconds": None}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder of results with the checkpoint of a run that was killed three events later."""
    out = tmp_path_factory.mktemp("killed") / "out"
    command = [sys.executable, "-c", DIES, "run", *WHAT, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(out.glob("*.checkpoint"))
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory, gradmix):
    """The result of the same run, never stopped."""
    out = tmp_path_factory.mktemp("whole")
    gradmix("run", *WHAT, "--out", out)
    return content(out)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_killed_and_started_again(invoke, tmp_path, command, killed, whole):
    out = shutil.copytree(killed, tmp_path / "out")
    done = invoke(command, *WHAT, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert "resuming at task" in done.stderr
    assert content(out) == whole
    assert not list(out.glob(".*"))


def test_again_starts_anew(invoke, tmp_path, killed, whole):
    out = shutil.copytree(killed, tmp_path / "out")
    done = invoke("run", *WHAT, "--out", out, "--again")
    assert done.exit_code == 0, done.stderr
    assert "resuming" not in done.stderr
    assert "task 1/5" in done.stderr
    assert content(out) == whole


def test_no_checkpoint_writes_none(gradmix, monkeypatch, tmp_path, whole):
    def refuse(*_):
        raise AssertionError("a checkpoint is written")

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    monkeypatch.setattr(checkpoint, "FIRST_GUESS", (0.0, 1e99))
    monkeypatch.setattr(checkpoint.Checkpoint, "save", refuse)
    with pytest.raises(AssertionError, match="a checkpoint is written"):
        gradmix("run", *WHAT, "--out", tmp_path / "some")
    gradmix("run", *WHAT, "--out", tmp_path / "none", "--no-checkpoint")
    assert content(tmp_path / "none") == whole
