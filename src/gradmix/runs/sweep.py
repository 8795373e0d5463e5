"""Many runs: those that the store lacks, in several processes, each kept as soon as it is there.

A sweep may be stopped at any moment, even by SIGKILL, and started again; several may share a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Literal

import torch

from gradmix.data import DataSet, load_dataset
from gradmix.errors import InputError, WorkerError
from gradmix.runs.claims import Claim, RunProgress
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunResult
from gradmix.runs.run import build_method, load_benchmark, run
from gradmix.runs.store import Failure, ResultStore
from gradmix.runs.workers import in_processes
from gradmix.randomness import RandomStreams
from gradmix.training.build import make_fabric
from gradmix.training.loop import Event, StepDone, Training

NOTE_SECONDS = 0.5
"""How often a run says how far it is."""

WAIT_SECONDS = 1.0
"""How often to look again for runs that other sweeps are at."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run: had before, done now, failed now or before, or not possible.

    Within a sweep also busy: at work elsewhere.
    """

    config: RunConfig
    status: Literal["kept", "done", "failed", "impossible", "busy"]
    result: RunResult | None = None
    failure: Failure | None = None
    reason: str = ""  # why it is not possible
    remark: str = ""  # whether it went on from a checkpoint, and where


@dataclass
class Sweep:
    """Where a sweep stands."""

    configs: Sequence[RunConfig]
    store: ResultStore
    outcomes: dict[RunConfig, Outcome] = field(default_factory=dict)
    settled: int = 0  # of the runs that were to be done …
    todo: int = 0  # … which are these
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._by_name = {self.store.path_of(config).stem: config for config in self.configs}

    def count(self, *statuses: str) -> int:
        """How many runs have one of these outcomes."""
        return sum(outcome.status in statuses for outcome in list(self.outcomes.values()))

    @property
    def results(self) -> list[RunResult]:
        """Of the runs that are there, in the order of the configurations."""
        found = [self.outcomes[config].result for config in self.configs if config in self.outcomes]
        return [result for result in found if result is not None]

    @property
    def failures(self) -> list[Failure]:
        """Of the runs that failed, in the order of the configurations."""
        found = [
            self.outcomes[config].failure for config in self.configs if config in self.outcomes
        ]
        return [failure for failure in found if failure is not None]

    def running(self) -> dict[RunConfig, RunProgress | None]:
        """The runs at work now, also in other sweeps on the store, and how far they are."""
        return {
            self._by_name[name]: progress
            for name, progress in self.store.progress().items()
            if name in self._by_name and self._by_name[name] not in self.outcomes
        }

    def seconds_left(self) -> float | None:
        """By what the runs took so far; None before there is anything to go by."""
        begun = sum(p.share for p in self.running().values() if p is not None)
        done = self.settled + begun
        elapsed = time.monotonic() - self.started
        return elapsed * (self.todo - done) / done if done else None


OnProgress = Callable[[Sweep, Outcome | None], object]


def run_sweep(
    configs: Iterable[RunConfig],
    store: ResultStore,
    *,
    jobs: int = 1,
    again: bool = False,
    retry_failed: bool = False,
    skip_impossible: bool = False,
    checkpoint: bool = True,
    on_progress: OnProgress | None = None,
) -> Sweep:
    """Complete the results of all configurations, `jobs` runs at a time, each in a process.

    What the store has is kept unless `again`; runs that failed before stay so unless
    `retry_failed`; unfinished ones go on where they were unless `again` or without `checkpoint`,
    which keeps them while they last. All others are checked before the first begins: InputError
    for one that its data, network or device does not allow, unless `skip_impossible`.
    `on_progress` is called before the first run and with the outcome of each.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; give 1 or more")
    sweep = Sweep(list(dict.fromkeys(configs)), store)

    def settle(outcome: Outcome) -> None:
        sweep.outcomes[outcome.config] = outcome
        if on_progress is not None:
            on_progress(sweep, outcome)

    known = {config: _known(config, store, again, retry_failed) for config in sweep.configs}
    todo = [config for config, outcome in known.items() if outcome is None]
    impossible = find_impossible(todo)
    if impossible and not skip_impossible:
        raise next(iter(impossible.values()))
    store.create()
    store.tidy()
    for config, outcome in known.items():
        if outcome is not None:
            settle(outcome)
        elif config in impossible:
            settle(Outcome(config, "impossible", reason=str(impossible[config])))
    todo = _by_data(config for config in todo if config not in impossible)
    if jobs > 1:
        dataset.cache_clear()  # the workers have their own
    sweep.todo, sweep.started = len(todo), time.monotonic()
    if on_progress is not None:
        on_progress(sweep, None)
    try:
        work = partial(complete, store=store, again=again, checkpoint=checkpoint)
        _complete_all(todo, sweep, work, jobs, settle)
    finally:
        store.tidy()  # after workers that were killed
    return sweep


def _by_data(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Runs on the same data one after another, so that a process loads it once."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(config.data, []).append(config)
    return [config for group in groups.values() for config in group]


def _known(
    config: RunConfig, store: ResultStore, again: bool, retry_failed: bool
) -> Outcome | None:
    result = None if again else store.find(config)
    if result is not None:
        return Outcome(config, "kept", result)
    failure = None if again or retry_failed else store.find_failure(config)
    return None if failure is None else Outcome(config, "failed", failure=failure)


def _complete_all(
    todo: Sequence[RunConfig],
    sweep: Sweep,
    work: Callable[[RunConfig], Outcome],
    jobs: int,
    settle: Callable[[Outcome], None],
) -> None:
    """Go through what is to be done until nothing is left, whatever happens to workers."""
    left = dict.fromkeys(todo)

    def take(outcome: Outcome) -> None:
        if outcome.status != "busy":
            del left[outcome.config]
            sweep.settled += 1
            settle(outcome)

    while left:
        before = len(left)
        try:
            for outcome in in_processes(work, list(left), jobs):
                take(outcome)
        except WorkerError as error:
            suspects = [config for config in left if sweep.store.free_if_abandoned(config)]
            if not suspects:
                raise WorkerError(f"{error} before any run began; try fewer jobs") from error
            for config in suspects:
                take(_complete_alone(config, sweep.store, work))
        if len(left) == before:  # other sweeps are at all of them
            time.sleep(WAIT_SECONDS)


def _complete_alone(
    config: RunConfig, store: ResultStore, work: Callable[[RunConfig], Outcome]
) -> Outcome:
    """A run that was at work when a worker died, by itself: it fails if it was the cause."""
    try:
        [outcome] = in_processes(work, [config], jobs=2)
        return outcome
    except WorkerError as error:
        store.free_if_abandoned(config)
        died = WorkerError(f"{error} while it computed this run, alone; is there enough memory?")
        return Outcome(config, "failed", failure=store.save_failure(config, died))


def complete(
    config: RunConfig,
    store: ResultStore,
    again: bool = False,
    on_event: Callable[[Training, Event], object] | None = None,
    raising: bool = False,
    checkpoint: bool = True,
    say: Callable[[str], object] | None = None,
) -> Outcome:
    """The result of one run, computed now unless it is there; its failure if it fails.

    A failure is recorded, and the error raised if `raising`. With `checkpoint` the run is kept
    while it lasts, and goes on where it was if it was stopped, unless `again`.
    """
    remarks: list[str] = []

    def remark(text: str) -> None:
        remarks.append(text)
        if say is not None:
            say(text)

    claim = store.claim(config)
    if claim is None:
        return Outcome(config, "busy")
    with claim:
        known = None if again else store.find(config)
        if known is not None:  # another sweep was faster
            return Outcome(config, "kept", known)
        if again:
            store.forget_checkpoint(config)
        try:
            benchmark = load_benchmark(config, dataset(config.data))
            kept = store.checkpoint_of(config) if checkpoint else None
            result = run(config, _noting(claim, on_event), benchmark, kept, remark)
        except Exception as error:
            failure = store.save_failure(config, error)
            if raising:
                raise
            return Outcome(config, "failed", failure=failure, remark="; ".join(remarks))
        store.save(result)
        return Outcome(config, "done", result, remark="; ".join(remarks))


@lru_cache(maxsize=1)
def dataset(name: str) -> DataSet:
    """A data set, loaded once as long as no other is asked for."""
    return load_dataset(name)


def _noting(
    claim: Claim, on_event: Callable[[Training, Event], object] | None
) -> Callable[[Training, Event], None]:
    """An observer that says now and then how far the run is, and passes the events on."""
    noted = 0.0

    def observe(training: Training, event: Event) -> None:
        nonlocal noted
        if isinstance(event, StepDone) and time.monotonic() - noted >= NOTE_SECONDS:
            noted = time.monotonic()
            claim.note(RunProgress.at(training, event))
        if on_event is not None:
            on_event(training, event)

    return observe


BUILT_FROM = (
    "model", "method", "head", "options", "memory_total", "increments", "class_order",
    "validation", "evaluate_on", "device", "precision",
)  # fmt: skip
"""What decides, with the data, whether a run can be set up."""


def find_impossible(configs: Iterable[RunConfig]) -> dict[RunConfig, InputError]:
    """Those that their data, network, method or device does not allow, and why.

    Each data set is loaded, and downloaded if need be, once.
    """
    answers: dict[tuple[object, ...], InputError | None] = {}
    impossible = {}
    for config in _by_data(configs):
        key = (config.data, *(getattr(config, name) for name in BUILT_FROM))
        if key not in answers:
            answers[key] = _why_impossible(config)
        error = answers[key]
        if error is not None:
            impossible[config] = error
    return impossible


def _why_impossible(config: RunConfig) -> InputError | None:
    try:
        make_fabric(config.device, config.precision)
        benchmark = load_benchmark(config, dataset(config.data))
        cpu = torch.device("cpu")
        build_method(config, benchmark, RandomStreams(config.seed, cpu))
    except InputError as error:
        names = f"data {config.data}, method {config.method}, model {config.model}"
        return InputError(f"{names}: {error}")
    return None
