"""Measure the cost of methods relative to ER."""

from __future__ import annotations

import statistics

from benchmarks.loop import STEPS, last_task, mnist_like, steps_of
from benchmarks.timing import ratio_of_epochs, seconds


def mir_over_er() -> str:
    tasks = mnist_like()
    return "a step of MIR over one of ER, last task (at most 3.5): " + ratio_of_epochs(
        steps_of(last_task(tasks, method="mir")), steps_of(last_task(tasks)), STEPS, repeats=5
    )


def gss_selection() -> str:
    """Return the time of the selection after a task of two classes with 5,000 samples each."""
    training = last_task(mnist_like(), method="gss")
    next(steps_of(training))
    new = training._tasks[-1].train
    memory = training.method.memory.state_dict()

    def select() -> None:
        training.method.memory.load_state_dict(memory)
        training.method.end_task(new)

    times = [seconds(select) for _ in range(5)]
    return (
        f"GSS, end of a task of 2 × 5,000 samples (at most 10 s): {statistics.median(times):.2f} s"
    )
