"""Stores, and other processes that use them."""

import subprocess
import sys

import pytest

from gradmix.runs.store import ResultStore

OTHER = """
import sys
from gradmix.runs.store import try_to_lock
from pathlib import Path
lock = try_to_lock(Path(sys.argv[1]))
print("mine" if lock else "taken", flush=True)
sys.stdin.read()  # until the test ends
"""


@pytest.fixture
def store(tmp_path):
    """A store that exists."""
    return ResultStore(tmp_path / "runs").create()


@pytest.fixture
def other_process():
    """Return a function that starts a process which tries to lock a run and stays.

    It returns the process, and whether the run is "mine" or "taken".
    """

    def start(path):
        command = [sys.executable, "-c", OTHER, str(path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **pipes)
        return process, process.stdout.readline().strip()

    return start
