"""One run: from a configuration to a result, alone or in a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import nn

from gradmix.data import Benchmark, DataSet, load_dataset, make_benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, RankError
from gradmix.files import locked
from gradmix.loggers import LogTo
from gradmix.methods import Method
from gradmix.models import build_model, load_backbone
from gradmix.plugins import Plugin, registered, restore
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.runs.backbones import OnPhoto, embed_benchmark, embed_dataset, fine_tuned_network
from gradmix.runs.config import RunConfig
from gradmix.runs.results import RunRecord, RunResult, protocol_version, result_name
from gradmix.runs.store import FailedRun, ResultStore, RunProgress
from gradmix.settings import StreamSettings
from gradmix.training.build import make_fabric, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.checks import check_resumed, check_sharding
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

FilePath = str | os.PathLike[str]
Observer = Callable[[Training, Event], object]
Say = Callable[[str], object]


def run(
    config: RunConfig,
    on_event: Observer | None = None,
    benchmark: Benchmark | None = None,
    checkpoint: FilePath | None = None,
    say: Say | None = None,
    log: LogTo | None = None,
    *,
    devices: int = 1,
    nodes: int = 1,
    sync_batchnorm: bool = False,
    shard_weights: bool = False,
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
        shard_weights: Let each device hold only a part of the weights, for networks that do not
            fit on one device. Some methods allow it.

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
    if checkpoint is not None and (os.path.isdir(checkpoint) or "\0" in os.fspath(checkpoint)):
        raise InputError(f"checkpoint is {os.fspath(checkpoint)!r}; name a file, not a folder")
    wanted = Devices(devices, nodes, sync_batchnorm, shard_weights)
    device, precision = one_device([config], wanted)
    follow = partial(_follow, registered(), config, benchmark, checkpoint)
    with open_job(device, precision, wanted, follow) as job:
        training = prepare(config, benchmark, job, keep=False)
        log = log if job.ranks.first else None
        return train(config, training, on_event, checkpoint, say, log)


def _follow(
    plugins: Sequence[Plugin],
    config: RunConfig,
    benchmark: Benchmark | None,
    checkpoint: FilePath | None,
    job: Job,
) -> None:
    """Compute a run with rank 0, which shows and writes everything."""
    restore(plugins)
    train(config, prepare(config, benchmark, job, keep=False), checkpoint=checkpoint)


def train(
    config: RunConfig,
    training: Training,
    on_event: Observer | None = None,
    checkpoint: FilePath | None = None,
    say: Say | None = None,
    log: LogTo | None = None,
) -> RunResult:
    """Train and evaluate what `prepare` returned; see `run` for the other arguments."""
    started = time.perf_counter()
    ranks, settings = training.method.ranks, config.to_json()
    record = RunRecord(training, config)
    saved = None
    observers: list[Callable[[Event], object]] = [record.note]
    with ExitStack() as opened:
        if checkpoint is not None:
            if ranks.first:
                opened.enter_context(locked(checkpoint, timeout=LOCK_SECONDS))
            about = {"config": settings, "protocol_version": protocol_version(settings)}
            saved = Checkpoint(checkpoint, training, record, about, say=say)
        opened.enter_context(torch_threads(config.threads))
        if log is not None:
            name = os.path.splitext(result_name(settings))[0]
            observers.append(opened.enter_context(log.open(name, settings, say)))
        if saved is not None:  # after the log: a resumed run repeats what follows its checkpoint
            observers.append(saved.note)
        if on_event is not None:
            observers.append(partial(on_event, training))
        resumed = saved is not None and saved.resume()
        if not ranks.alone:
            check_resumed(training, resumed)
        if not resumed:
            record.begin(training.evaluate())
        for event in training.events():
            for observe in observers:
                observe(event)
            starts = isinstance(event, StepDone) and (event.epoch, event.step) == (0, 1)
            starts = starts and training.position.stage == 0
            if say is not None and starts and (remark := training.method.remark()):
                say(f"task {training.position.task + 1}: {remark}")
    before = 0.0 if saved is None else saved.seconds_before
    return record.result(before + time.perf_counter() - started)


def prepare(
    config: RunConfig,
    benchmark: Benchmark | None = None,
    job: Job | None = None,
    *,
    on_photo: OnPhoto | None = None,
    keep: bool = True,
) -> Training:
    """Return the training of a run, ready to start.

    `benchmark` has samples as stored; None loads the data set, see `load_benchmark`. `job` is one
    of several ranks, if given.

    Raises:
        InputError: If the data, network, method or device does not allow the run.
    """
    ranks = ALONE if job is None else job.ranks
    if benchmark is None:
        benchmark = load_benchmark(config, on_photo=on_photo, keep=keep, ranks=ranks)
    else:
        config.check_tasks(benchmark)
        if config.frozen:
            benchmark = embed_benchmark(benchmark, config, ranks)
    with torch_threads(config.threads):
        job = Job(make_fabric(config.device, config.precision)) if job is None else job
        streams = RandomStreams(config.seed, job.fabric.device)
        return (OnlineTraining if config.online else Training)(
            benchmark,
            build_method(config, benchmark, streams, job.ranks),
            job.fabric,
            [TRANSFORMS[name] for name in config.transforms],
            config.evaluate_every_steps,
            config.evaluate_every_epochs,
        )


@lru_cache(maxsize=1)
def kept_dataset(name: str, version: str, skip_unreadable: bool) -> DataSet:
    """Return a data set; `version` tells an image folder from its earlier content."""
    return load_dataset(name, skip_unreadable=skip_unreadable)


def load_benchmark(
    config: RunConfig,
    *,
    on_photo: OnPhoto | None = None,
    keep: bool = False,
    ranks: Ranks = ALONE,
) -> Benchmark:
    """Return the data set of a configuration, split into tasks.

    The ranks embed photos together if the backbone is frozen, and call `on_photo`. `keep` keeps
    the data set in memory until another one is loaded.

    Raises:
        InputError: If the memory or the tasks do not fit the data set.
    """
    load = kept_dataset if keep else kept_dataset.__wrapped__
    data = load(config.data, config.data_version, config.skip_unreadable == "yes")
    if config.frozen:
        data = embed_dataset(data, config, on_photo, ranks)
    if config.validation:
        data = data.hold_out(config.validation)
    config.check_memory(len(data.class_names))
    return make_benchmark(data, config.part(StreamSettings))


def build_method(
    config: RunConfig, benchmark: Benchmark, streams: RandomStreams, ranks: Ranks = ALONE
) -> Method:
    """Return the method of a configuration, with its network, memory and mixer."""
    design, num_classes = config.design, len(benchmark.class_names)
    outputs = max(benchmark.tasks[0].classes) + 1 if design.grows else num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]
    mean, std = benchmark.mean, benchmark.std
    if config.finetune != "none":  # the network has its own statistics
        mean, std = (0.0,) * len(mean), (BYTES,) * len(std)
    network = partial(new_network, config, shape, outputs)
    return design.build(network, num_classes, shape, mean, std, streams, ranks)


def new_network(
    config: RunConfig, shape: Sequence[int], outputs: int, generator: torch.Generator
) -> nn.Module:
    """Return a network for samples of a shape; embeddings of a frozen backbone need one layer."""
    if config.finetune != "none":
        return fine_tuned_network(config, shape, outputs, generator)
    if config.frozen:
        return build_model("linear", shape, outputs, generator=generator)
    network = build_model(config.model, shape, outputs, generator=generator)
    if config.weights is not None:
        load_backbone(network, config.weights)
    return network


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

    `training` is ready to start; None prepares it. `again` ignores an earlier result and
    checkpoint. `wait` waits while another process computes the run, instead of returning "busy".
    `raising` raises the error of a failed run, which is stored in any case. `run` explains
    `on_event`, `say` and `log`.
    """
    remarks: list[str] = []

    def remark(text: str) -> None:
        remarks.append(text)
        if say is not None:
            say(text)

    if (lock := store.lock(config)) is None and wait:
        remark("waiting for another process that computes it")
        again = False
        while (lock := store.lock(config)) is None:
            time.sleep(WAIT_SECONDS)
    ranks = ALONE if training is None else training.method.ranks
    if lock is None:
        ranks.from_first(0)  # they skip it, too
        return Outcome(config, "busy")
    with lock:
        known = None if again else store.find(config)
        ranks.from_first(int(known is None))
        if known is not None:  # another process was faster
            return Outcome(config, "kept", known)
        if again:
            store.forget_checkpoint(config)
        reported = 0.0

        def observe(training: Training, event: Event) -> None:
            nonlocal reported
            if isinstance(event, StepDone) and time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                lock.report(RunProgress.after(training, event))
            if on_event is not None:
                on_event(training, event)

        try:
            training = prepare(config) if training is None else training
            path = store.checkpoint_of(config) if checkpoint else None
            result = train(config, training, observe, path, remark, log)
        except RankError:  # nothing is wrong with the run
            raise
        except Exception as error:
            failure = store.save_failure(config, error)
            if raising:
                raise
            return Outcome(config, "failed", failure=failure, remark="; ".join(remarks))
        store.save(result)
        return Outcome(config, "done", result, remark="; ".join(remarks))


# --- runs of a store on several devices -----------------------------------------------------------

# Rank 0 decides which runs are computed and writes all files. It tells the others with two numbers
# per run: whether the run is prepared, and whether it is trained.


def one_device(configs: Sequence[RunConfig], wanted: Devices) -> tuple[str, str]:
    """Return device and precision of all runs.

    Raises:
        InputError: If they differ: the processes that compute together keep theirs. Also if
            weights shall be split over the devices, and a run does not allow it.
    """
    for config in configs if wanted.size > 1 else ():
        if wanted.size > config.batch_size:
            raise InputError(
                f"devices times nodes is {wanted.size}, and batch_size is {config.batch_size}; "
                "give fewer devices or a larger batch_size: each device needs a row of the batch"
            )
        if wanted.shard_weights:
            check_sharding(config.method, config.head, config.precision, config.analyses)
    found = sorted({(config.device, config.precision) for config in configs})
    if len(found) != 1:
        raise InputError(
            f"device and precision are {found}; runs on several devices need one of each"
        )
    return found[0]


def follow_runs(
    plugins: Sequence[Plugin], configs: Sequence[RunConfig], store: ResultStore | None, job: Job
) -> None:
    """Do what a rank other than 0 does while rank 0 computes some of the runs.

    `plugins` are those of rank 0. Without a store there are no checkpoints.
    """
    restore(plugins)
    for config in configs:
        if not job.ranks.from_first(0):
            continue
        training = prepare(config, job=job)
        if job.ranks.from_first(0):
            path = None if store is None else store.checkpoint_of(config)
            train(config, training, checkpoint=path)
