"""One run: from a configuration to a result, alone or in a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import nn

from gradmix.data import Benchmark, DataSet, load_dataset, make_benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError
from gradmix.files import locked
from gradmix.methods import Method
from gradmix.models import build_model, load_backbone
from gradmix.randomness import RandomStreams
from gradmix.runs.backbones import embed_benchmark, embed_dataset, network_of, statistics_of
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunRecord, RunResult, protocol_version
from gradmix.runs.store import FailedRun, ResultStore, RunLock, RunProgress
from gradmix.settings import CriterionSettings, StreamSettings
from gradmix.training.build import Design, NetworkFactory, make_fabric, pick_device, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import Event, StepDone, Training

LOCK_SECONDS = 10.0
"""How long to wait for a checkpoint in use: an earlier run may still be ending."""

REPORT_SECONDS = 0.5
"""How often a run writes its progress."""

WAIT_SECONDS = 1.0
"""How often to check again for runs that other processes compute."""

Observer = Callable[[Training, Event], object]
Say = Callable[[str], object]


def run(
    config: RunConfig,
    on_event: Observer | None = None,
    benchmark: Benchmark | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> RunResult:
    """Train and evaluate one configuration.

    Args:
        config: The run.
        on_event: Called with the training and every event of the loop.
        benchmark: The data in tasks; None loads the data set of the configuration.
        checkpoint: A file that stores the unfinished run. If it exists and belongs to this
            configuration, the run resumes from it, with identical results. Remove it when the
            result is safe.
        say: Called with remarks, such as where the run resumes.

    Returns:
        The result; `ResultStore.save` writes it to a file.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
        FileInUseError: If another process uses the checkpoint.

    >>> from gradmix import config_for
    >>> result = run(config_for("digits", mix="none", epochs=1))
    >>> len(result.accuracy)
    5
    """
    _check_checkpoint(checkpoint)
    if benchmark is None:
        benchmark = load_benchmark(config)
    else:
        _check_tasks(config, benchmark)
        benchmark = embed_benchmark(benchmark, config) if config.frozen else benchmark
    return train(config, prepare(config, benchmark), on_event, checkpoint, say)


def train(
    config: RunConfig,
    training: Training,
    on_event: Observer | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> RunResult:
    """Train and evaluate what `prepare` returned; see `run` for the other arguments."""
    started = time.perf_counter()
    _check_checkpoint(checkpoint)
    guard = nullcontext() if checkpoint is None else locked(checkpoint, timeout=LOCK_SECONDS)
    with guard, torch_threads(config.threads):
        record = RunRecord(training, config.analyses)
        settings = config.to_json()
        about = {"config": settings, "protocol_version": protocol_version(settings)}
        saved = None
        if checkpoint is not None:
            saved = Checkpoint(checkpoint, training, record, about, say=say)
        if saved is None or not saved.resume():
            record.begin(training.evaluate())
        for event in training.events():
            record.note(event)
            if saved is not None:
                saved.note(event)
            if on_event is not None:
                on_event(training, event)
    before = 0.0 if saved is None else saved.seconds_before
    return record.result(config, before + time.perf_counter() - started)


def _check_checkpoint(path: str | os.PathLike[str] | None) -> None:
    if path is not None and (os.path.isdir(path) or "\0" in os.fspath(path)):
        raise InputError(f"checkpoint is {os.fspath(path)!r}; name a file, not a folder")


def _check_tasks(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a benchmark whose tasks differ from the configuration."""
    if config.scenario != benchmark.scenario:
        raise InputError(
            f"benchmark is {benchmark.scenario}, but scenario in the configuration is "
            f"{config.scenario!r}; make them equal"
        )
    sizes = tuple(len(task.classes) for task in benchmark.tasks)
    wanted = config.increments
    if config.scenario == "class-incremental" and sizes not in (wanted, wanted * len(sizes)):
        raise InputError(
            f"benchmark has tasks of {list(sizes)} classes, but increments in the configuration "
            f"is {list(wanted)}; make them equal"
        )


def prepare(config: RunConfig, benchmark: Benchmark) -> Training:
    """Return the training of a run, ready to start."""
    with torch_threads(config.threads):
        fabric = make_fabric(config.device, config.precision)
        method = build_method(config, benchmark, RandomStreams(config.seed, fabric.device))
        transforms = [TRANSFORMS[name] for name in config.transforms]
        return Training(benchmark, method, fabric, transforms)


def load_benchmark(config: RunConfig, data: DataSet | None = None) -> Benchmark:
    """Return the data set of a configuration, split into tasks.

    Args:
        config: The run.
        data: The data set; None loads it.

    Raises:
        InputError: If the memory or the tasks do not fit the data set.
    """
    data = load_dataset(config.data) if data is None else data
    if config.frozen:
        data = embed_dataset(data, config.model, config.weights, str(pick_device(config.device)))
    data = data.hold_out(config.validation)
    if config.memory_total is not None and config.memory_total < len(data.class_names):
        raise InputError(
            f"memory_total is {config.memory_total}; {config.data} has "
            f"{len(data.class_names)} classes, and each needs at least one exemplar"
        )
    return make_benchmark(data, config.part(StreamSettings))


def build_method(config: RunConfig, benchmark: Benchmark, streams: RandomStreams) -> Method:
    """Return the method of a configuration, with its network, memory and mixer."""
    design = Design(
        config.method,
        config.recipe,
        config.settings,
        config.options,
        config.exemplars_per_class,
        config.memory_total,
        config.part(CriterionSettings),
        config.exemplar_selection,
    )
    num_classes = len(benchmark.class_names)
    outputs = max(benchmark.tasks[0].classes) + 1 if design.grows else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    if config.pretrained:
        mean, std = statistics_of(config, benchmark.mean, benchmark.std)
        network = network_of(config, shape, outputs)
    else:
        mean, std = benchmark.mean, benchmark.std
        network = _from_scratch(config, shape, outputs)
    return design.build(network, num_classes, shape, mean, std, streams)


def _from_scratch(config: RunConfig, shape: Sequence[int], outputs: int) -> NetworkFactory:
    """Return a function that makes the network of a run, perhaps with weights from a file."""

    def build(generator: torch.Generator) -> nn.Module:
        network = build_model(config.model, shape, outputs, generator=generator)
        if config.weights is not None:
            load_backbone(network, config.weights)
        return network

    return build


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


# --- a run of a store ---------------------------------------------------------------------------


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


def complete(
    config: RunConfig,
    store: ResultStore,
    *,
    training: Training | None = None,
    again: bool = False,
    checkpoint: bool = True,
    wait: bool = False,
    raising: bool = False,
    on_event: Observer | None = None,
    say: Say | None = None,
) -> Outcome:
    """Return the outcome of one run; compute it unless the store has the result.

    Args:
        config: The run.
        store: The store of its result.
        training: The training, ready to start; None prepares it.
        again: Compute the run even if the store has its result or checkpoint.
        checkpoint: Save checkpoints, and resume from an earlier one.
        wait: Wait while another process computes the run, instead of returning "busy".
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
    if lock is None and wait:
        remark("waiting for another process that computes it")
        again = False
        while lock is None:
            time.sleep(WAIT_SECONDS)
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
            training = prepare_run(config) if training is None else training
            path = store.checkpoint_of(config) if checkpoint else None
            result = train(config, training, _reporting(lock, on_event), path, remark)
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
