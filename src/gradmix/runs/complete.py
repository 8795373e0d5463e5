"""One run of a store: return its result, or compute it under a lock and store the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gradmix.data import DataSet, load_dataset
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunResult
from gradmix.runs.run import Observer, Say, load_benchmark, prepare, train
from gradmix.runs.running import RunLock, RunProgress
from gradmix.runs.store import FailedRun, ResultStore
from gradmix.training.loop import Event, StepDone, Training

REPORT_SECONDS = 0.5
"""How often a run writes its progress."""

WAIT_SECONDS = 1.0
"""How often to check again for runs that other processes compute."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    kept: the store had the result. done: computed now. failed: now or earlier. impossible: not
    allowed by its data, network, method or device. busy: another process is computing it.
    """

    config: RunConfig
    status: Literal["kept", "done", "failed", "impossible", "busy"]
    result: RunResult | None = None
    failure: FailedRun | None = None
    reason: str = ""  # why it is impossible
    remark: str = ""  # whether and where it resumed from a checkpoint


@lru_cache(maxsize=1)
def dataset(name: str) -> DataSet:
    """Return a data set; the last one stays in memory."""
    return load_dataset(name)


def prepare_run(config: RunConfig) -> Training:
    """Load the data of a run and build its network.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
    """
    return prepare(config, load_benchmark(config, dataset(config.data)))


def complete(
    config: RunConfig,
    store: ResultStore,
    *,
    prepared: Callable[[RunConfig], Training] = prepare_run,
    again: bool = False,
    checkpoint: bool = True,
    raising: bool = False,
    on_event: Observer | None = None,
    say: Say | None = None,
) -> Outcome:
    """Return the outcome of one run; compute it unless the store has the result.

    Args:
        config: The run.
        store: The store of its result.
        prepared: Returns the training, ready to start.
        again: Compute the run even if the store has its result or checkpoint.
        checkpoint: Save checkpoints, and resume from an earlier one.
        raising: Raise the error of a failed run. The failure is stored in any case.
        on_event: Called with the training and every event of the loop.
        say: Called with remarks, such as where the run resumes.
    """
    remarks: list[str] = []

    def remark(text: str) -> None:
        remarks.append(text)
        if say is not None:
            say(text)

    lock = store.lock(config)
    if lock is None:
        return Outcome(config, "busy")
    with lock:
        known = None if again else store.find(config)
        if known is not None:  # another process was faster
            return Outcome(config, "kept", known)
        if again:
            store.forget_checkpoint(config)
        try:
            path = store.checkpoint_of(config) if checkpoint else None
            result = train(config, prepared(config), _reporting(lock, on_event), path, remark)
        except Exception as error:
            failure = store.save_failure(config, error)
            if raising:
                raise
            return Outcome(config, "failed", failure=failure, remark="; ".join(remarks))
        store.save(result)
        return Outcome(config, "done", result, remark="; ".join(remarks))


def _reporting(lock: RunLock, on_event: Observer | None) -> Observer:
    """Return an observer that writes the progress from time to time and passes events on."""
    reported = 0.0

    def observe(training: Training, event: Event) -> None:
        nonlocal reported
        if isinstance(event, StepDone) and time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            lock.report(RunProgress.after(training, event))
        if on_event is not None:
            on_event(training, event)

    return observe
