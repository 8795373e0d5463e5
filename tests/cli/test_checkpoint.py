"""`gradmix run` and `sweep`, killed and started again."""

import json
import subprocess
import sys
import time

import pytest

OFTEN = """
from gradmix.training import checkpoint
checkpoint.EVERY_SECONDS, checkpoint.SHARE = 0.02, 0.5
checkpoint.FIRST_GUESS = (0.0, 1e99)
from gradmix.cli import main
main()
"""
WHAT = ["--data", "digits", "--mix", "gradmix+", "--epochs", "3", "--batch-size", "64"]


def program(*args):
    """The real program, that saves often."""
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_once_saved(process, folder):
    while not list(folder.glob("*.checkpoint")):
        time.sleep(0.002)
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert process.returncode == -9


def content(folder):
    (path,) = folder.glob("digits*")
    return {**json.loads(path.read_text()), "seconds": None}


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_killed_and_started_again(gradmix, shell, tmp_path, command):
    gradmix("run", *WHAT, "--out", tmp_path / "whole")
    out = tmp_path / "out"
    kill_once_saved(program(command, *WHAT, "--out", out), out)
    done = shell(command, *WHAT, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "resuming at task" in done.stderr
    assert content(out) == content(tmp_path / "whole")
    assert not list(out.glob(".*"))


def test_again_starts_anew_and_no_checkpoint_keeps_none(shell, tmp_path):
    out = tmp_path / "out"
    kill_once_saved(program("run", *WHAT, "--out", out), out)
    done = shell("run", *WHAT, "--out", out, "--again")
    assert done.returncode == 0, done.stderr
    assert "resuming" not in done.stderr
    assert "task 1/5" in done.stderr
    process = program("run", *WHAT, "--out", tmp_path / "none", "--no-checkpoint")
    while process.poll() is None:
        assert not list((tmp_path / "none").glob("*.checkpoint"))
        time.sleep(0.01)
    process.communicate()
    assert process.returncode == 0
    assert content(out) == content(tmp_path / "none")
