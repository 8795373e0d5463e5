"""Work in other processes."""

import ast
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from gradmix.errors import WorkerError
from gradmix.runs.workers import compute, loky_engine


def in_processes(work, items, jobs):
    return compute(work, items, None if jobs == 1 else loky_engine(jobs))


def test_every_answer_once_in_this_process():
    assert sorted(in_processes(math.sqrt, [9.0, 1.0, 4.0], 1)) == [1.0, 2.0, 3.0]


def test_every_answer_once_when_it_is_there(tmp_path):
    def work(number):  # pickled by value, as the workers cannot import a test
        while number == 0 and not (tmp_path / "go").exists():
            time.sleep(0.02)
        return number

    answers = in_processes(work, [0, 1, 2], 2)
    assert {next(answers), next(answers)} == {1, 2}
    (tmp_path / "go").touch()
    assert list(answers) == [0]


def test_a_worker_that_dies_is_an_error_and_the_errors_of_the_next_are_raised_here():
    def die(_):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"a worker process died \(SIGKILL\(-9\)\)"):
        list(compute(die, [None], loky_engine(1)))
    answers = compute(math.sqrt, [1.0, -1.0], loky_engine(1))
    assert next(answers) == 1.0
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        next(answers)


def test_leaving_early_ends_the_workers():
    def pid_after(seconds):
        time.sleep(seconds)
        return os.getpid()

    answers = in_processes(pid_after, [0.0, 3600.0, 3600.0], 2)
    first = next(answers)
    answers.close()  # or it would take an hour
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no signal masks")
def test_ctrl_c_reaches_no_worker(tmp_path):
    # In a process of its own, which has not started workers before.
    script = """
import os, signal, sys, time
from pathlib import Path
from gradmix.runs.workers import compute, loky_engine

folder = Path(sys.argv[1])

def blocks_ctrl_c(_):
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:  # so that one worker does not do it all
        time.sleep(0.02)
    return os.getpid(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

if __name__ == "__main__":
    print(dict(compute(blocks_ctrl_c, range(2), loky_engine(2))))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    blocked = ast.literal_eval(answer.stdout)
    assert list(blocked.values()) == [True, True]
