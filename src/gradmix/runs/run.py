"""One run: from a configuration to a result, alone or in a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import nn

from gradmix.data import Benchmark, DataSet, load_dataset, make_benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, RankError
from gradmix.files import locked
from gradmix.loggers import Log, LogTo
from gradmix.methods import Method
from gradmix.models import build_model, load_backbone
from gradmix.plugins import Plugin, registered, restore
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.runs.backbones import OnPhoto, embed_benchmark, embed_dataset, fine_tuned_network
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunRecord, RunResult, protocol_version, result_name
from gradmix.runs.store import FailedRun, ResultStore, RunLock, RunProgress
from gradmix.settings import CriterionSettings, StreamSettings, TrainingSettings, task_scenario
from gradmix.training.build import Design, NetworkFactory, make_fabric, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.checks import check_resumed
from gradmix.training.launch import Devices, Job, open_job
from gradmix.training.loop import Event, StepDone, Training
from gradmix.training.online import OnlineTraining

LOCK_SECONDS = 10.0
"""How long to wait for a checkpoint in use: an earlier run may still be ending."""

REPORT_SECONDS = 0.5
"""How often a run writes its progress."""

WAIT_SECONDS = 1.0
"""How often to check again for runs that other processes compute."""

BYTES = 255.0
"""A fine-tuned network takes values from 0 to 1, and samples have values from 0 to 255."""

Observer = Callable[[Training, Event], object]
Say = Callable[[str], object]


def run(
    config: RunConfig,
    on_event: Observer | None = None,
    benchmark: Benchmark | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
    log: LogTo | None = None,
    *,
    devices: int = 1,
    nodes: int = 1,
    sync_batchnorm: bool = False,
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
        log: Where losses and accuracies are written during the run.
        devices: Devices of each machine that compute the run together; see docs/scaling.md.
        nodes: Machines; more than one need torchrun or srun.
        sync_batchnorm: Let BatchNorm use the statistics of the whole batch on all devices.

    Returns:
        The result; `ResultStore.save` writes it to a file.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
        FileInUseError: If another process uses the checkpoint.
        RankError: If one of several processes ends early.

    >>> from gradmix import config_for
    >>> result = run(config_for("digits", mix="none", epochs=1))
    >>> len(result.accuracy)
    5
    """
    _check_checkpoint(checkpoint)
    wanted = Devices(devices, nodes, sync_batchnorm)
    follow = partial(_follow, registered(), config, benchmark, checkpoint)
    with open_job(config.device, config.precision, wanted, follow) as job:
        log = log if job.ranks.first else None
        return train(config, _prepared(config, benchmark, job), on_event, checkpoint, say, log)


def _prepared(config: RunConfig, benchmark: Benchmark | None, job: Job) -> Training:
    """Return the training of a run on the tasks of the caller, or on its data set."""
    if benchmark is None:
        benchmark = load_benchmark(config, ranks=job.ranks)
    else:
        _check_tasks(config, benchmark)
        if config.frozen:
            benchmark = embed_benchmark(benchmark, config, job.ranks)
    return prepare(config, benchmark, job)


def _follow(
    plugins: Sequence[Plugin],
    config: RunConfig,
    benchmark: Benchmark | None,
    checkpoint: str | os.PathLike[str] | None,
    job: Job,
) -> None:
    """Compute a run with rank 0, which shows and writes everything."""
    restore(plugins)
    train(config, _prepared(config, benchmark, job), checkpoint=checkpoint)


def train(
    config: RunConfig,
    training: Training,
    on_event: Observer | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    say: Say | None = None,
    log: LogTo | None = None,
) -> RunResult:
    """Train and evaluate what `prepare` returned; see `run` for the other arguments."""
    started = time.perf_counter()
    ranks = training.method.ranks
    guard: AbstractContextManager[None] = nullcontext()
    if checkpoint is not None and ranks.first:
        guard = locked(checkpoint, timeout=LOCK_SECONDS)
    settings = config.to_json()
    opened: AbstractContextManager[Log | None] = nullcontext()
    if log is not None:
        opened = log.open(os.path.splitext(result_name(settings))[0], settings, say)
    with guard, torch_threads(config.threads), opened as logged:
        record = RunRecord(training, config.analyses)
        about = {"config": settings, "protocol_version": protocol_version(settings)}
        saved = None
        if checkpoint is not None:
            saved = Checkpoint(checkpoint, training, record, about, say=say)
        resumed = saved is not None and saved.resume()
        if not ranks.alone:
            check_resumed(training, resumed)
        if not resumed:
            record.begin(training.evaluate())
        for event in training.events():
            record.note(event)
            if logged is not None:  # before the checkpoint: a resumed run repeats what follows it
                logged(event)
            if saved is not None:
                saved.note(event)
            if on_event is not None:
                on_event(training, event)
            if say is not None and _begins_task(training, event):
                _say_remark(say, training)
    before = 0.0 if saved is None else saved.seconds_before
    return record.result(config, before + time.perf_counter() - started)


def _begins_task(training: Training, event: Event) -> bool:
    """Whether the event is the first step of a task."""
    first = isinstance(event, StepDone) and (event.epoch, event.step) == (0, 1)
    return first and training.position.stage == 0


def _say_remark(say: Say, training: Training) -> None:
    remark = training.method.remark()
    if remark is not None:
        say(f"task {training.position.task + 1}: {remark}")


def _check_checkpoint(path: str | os.PathLike[str] | None) -> None:
    if path is not None and (os.path.isdir(path) or "\0" in os.fspath(path)):
        raise InputError(f"checkpoint is {os.fspath(path)!r}; name a file, not a folder")


def _check_tasks(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a benchmark whose tasks differ from the configuration."""
    scenario = task_scenario(config.scenario)
    if scenario != benchmark.scenario:
        raise InputError(
            f"benchmark is {benchmark.scenario}, but scenario in the configuration is "
            f"{config.scenario!r}; make them equal"
        )
    sizes = tuple(len(task.classes) for task in benchmark.tasks)
    wanted = config.increments
    if scenario == "class-incremental" and sizes not in (wanted, wanted * len(sizes)):
        raise InputError(
            f"benchmark has tasks of {list(sizes)} classes, but increments in the configuration "
            f"is {list(wanted)}; make them equal"
        )


def prepare(config: RunConfig, benchmark: Benchmark, job: Job | None = None) -> Training:
    """Return the training of a run, ready to start; `job` is one of several ranks, if given."""
    with torch_threads(config.threads):
        job = Job(make_fabric(config.device, config.precision)) if job is None else job
        fabric = job.fabric
        streams = RandomStreams(config.seed, fabric.device)
        method = build_method(config, benchmark, streams, job.ranks)
        transforms = [TRANSFORMS[name] for name in config.transforms]
        kind = OnlineTraining if config.online else Training
        return kind(
            benchmark,
            method,
            fabric,
            transforms,
            config.evaluate_every_steps,
            config.evaluate_every_epochs,
        )


def _load(name: str, version: str, skip_unreadable: bool) -> DataSet:
    """Return a data set; `version` tells an image folder from its earlier content."""
    return load_dataset(name, skip_unreadable=skip_unreadable)


kept_dataset = lru_cache(maxsize=1)(_load)
"""`_load`, with the last data set kept in memory."""


def load_benchmark(
    config: RunConfig,
    *,
    on_photo: OnPhoto | None = None,
    load: Callable[[str, str, bool], DataSet] = _load,
    ranks: Ranks = ALONE,
) -> Benchmark:
    """Return the data set of a configuration, split into tasks.

    Args:
        config: The run.
        on_photo: Called with the number of photos that a frozen backbone has embedded, and of all.
        load: Loads the data set; `kept_dataset` keeps it in memory.
        ranks: The processes that embed photos together.

    Raises:
        InputError: If the memory or the tasks do not fit the data set.
    """
    data = load(config.data, config.data_version, config.skip_unreadable == "yes")
    if config.frozen:
        data = embed_dataset(data, config, on_photo, ranks)
    data = data.hold_out(config.validation)
    total, balanced = config.memory_total, config.reservoir == "class-balanced"
    if total is not None and balanced and total < len(data.class_names):
        raise InputError(
            f"memory_total is {total}; {config.data} has "
            f"{len(data.class_names)} classes, and each needs at least one exemplar"
        )
    return make_benchmark(data, config.part(StreamSettings))


def build_method(
    config: RunConfig, benchmark: Benchmark, streams: RandomStreams, ranks: Ranks = ALONE
) -> Method:
    """Return the method of a configuration, with its network, memory and mixer."""
    design = Design(
        config.method,
        config.recipe,
        config.part(TrainingSettings),
        config.options,
        config.exemplars_per_class,
        config.memory_total,
        config.part(CriterionSettings),
        config.exemplar_selection,
        config.reservoir == "class-balanced",
    )
    num_classes = len(benchmark.class_names)
    outputs = max(benchmark.tasks[0].classes) + 1 if design.grows else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    mean, std = benchmark.mean, benchmark.std
    if config.finetune == "none":
        network: NetworkFactory = partial(new_network, config, shape, outputs)
    else:
        network = fine_tuned_network(config, shape, outputs)
        mean, std = (0.0,) * len(mean), (BYTES,) * len(std)  # it has its own statistics
    return design.build(network, num_classes, shape, mean, std, streams, ranks)


def new_network(
    config: RunConfig, shape: Sequence[int], outputs: int, generator: torch.Generator
) -> nn.Module:
    """Return a network for samples of a shape; embeddings of a frozen backbone need one layer."""
    if config.frozen:
        return build_model("linear", shape, outputs, generator=generator)
    network = build_model(config.model, shape, outputs, generator=generator)
    if config.weights is not None:
        load_backbone(network, config.weights)
    return network


def prepare_run(
    config: RunConfig, on_photo: OnPhoto | None = None, job: Job | None = None
) -> Training:
    """Load the data of a run and build its network.

    Args:
        config: The run.
        on_photo: See `load_benchmark`.
        job: The ranks that compute the run together; None: this process alone.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
    """
    ranks = ALONE if job is None else job.ranks
    benchmark = load_benchmark(config, on_photo=on_photo, load=kept_dataset, ranks=ranks)
    return prepare(config, benchmark, job)


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
    log: LogTo | None = None,
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
        log: Where losses and accuracies are written during the run.
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
    ranks = ALONE if training is None else training.method.ranks
    if lock is None:
        if not ranks.alone:
            ranks.from_first(0)  # they skip it, too
        return Outcome(config, "busy")
    with lock:
        known = None if again else store.find(config)
        if not ranks.alone:
            ranks.from_first(int(known is None))
        if known is not None:  # another process was faster
            return Outcome(config, "kept", known)
        if again:
            store.forget_checkpoint(config)
        try:
            training = prepare_run(config) if training is None else training
            path = store.checkpoint_of(config) if checkpoint else None
            result = train(config, training, _reporting(lock, on_event), path, remark, log)
        except RankError:  # nothing is wrong with the run
            raise
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
