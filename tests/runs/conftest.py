"""Stores, other processes that use them, and results of a few seeds."""

import subprocess
import sys

import pytest

from gradmix.runs.store import ResultStore

OTHER = """
import sys, time
from gradmix.runs.store import try_to_lock
from pathlib import Path
lock = try_to_lock(Path(sys.argv[1]))
print("mine" if lock else "taken", flush=True)
time.sleep(60)
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
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return process, process.stdout.readline().strip()

    return start


NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05, 0.07 and 0.03 more


@pytest.fixture(scope="session")
def runs(example):
    def runs(values, **config):
        """Return results with these accuracies by seed."""
        return [example(value, seed=seed, **config) for seed, value in values.items()]

    return runs


@pytest.fixture(scope="session")
def two_mixes(runs):
    def two_mixes(**config):
        """Return results without mixing and with Mixup."""
        return runs(NONE, mix="none", **config) + runs(MIXUP, mix="mixup", **config)

    return two_mixes
