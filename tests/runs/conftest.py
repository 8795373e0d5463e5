"""Stores, other processes that use them, and results of a few seeds."""

from multiprocessing import Pipe

import pytest

from gradmix.runs.store import ResultStore

OTHER = """
from gradmix.runs.store import try_to_lock
lock = try_to_lock(path)
answer.send("mine" if lock else "taken")
answer.recv()  # never: it is killed
"""


@pytest.fixture
def store(tmp_path):
    """A store that exists."""
    return ResultStore(tmp_path / "runs").create()


@pytest.fixture
def other_process(forked):
    """Return a function that starts a process which tries to lock a run and stays.

    It returns the process, and whether the run is "mine" or "taken".
    """

    pipes, processes = [], []

    def start(path):
        pipes.append(Pipe())
        processes.append(forked(OTHER, path=path, answer=pipes[-1][1]))
        return processes[-1], pipes[-1][0].recv()

    yield start
    for process in processes:
        process.kill()
        process.join()
    for ends in pipes:
        for end in ends:
            end.close()


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
