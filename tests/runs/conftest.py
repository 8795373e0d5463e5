"""Stores, and other processes that use them."""

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
