"""What the methods cost beside ER."""

from __future__ import annotations

import statistics

from benchmarks.loop import epochs, last_task, mnist_like
from benchmarks.timing import ratio, seconds


def mir_over_er() -> str:
    tasks = mnist_like()
    return "a step of MIR over one of ER, last task (at most 3.5): " + ratio(
        epochs(last_task(tasks, method="mir")), epochs(last_task(tasks)), repeats=5
    )


def gss_selection() -> str:
    """The choice at the end of a task of two classes with 5,000 samples each."""
    training = last_task(mnist_like(), method="gss")
    epochs(training)()
    new = training._tasks[-1].train
    memory = training.method.memory.state_dict()

    def select() -> None:
        training.method.memory.load_state_dict(memory)
        training.method.end_task(new)

    times = [seconds(select) for _ in range(5)]
    return (
        f"GSS, end of a task of 2 × 5,000 samples (at most 10 s): {statistics.median(times):.2f} s"
    )
