"""Engines for sweeps: processes of this machine, a dask cluster, or an executor of the user.

An engine opens a `concurrent.futures.Executor`. loky is the default: unlike the standard library's
processes, it notices workers that are killed, and it does not import the user's script again. dask
also repeats the runs of a killed worker by itself, and reaches other machines.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from gradmix.errors import FileInUseError, InputError, MissingPackageError, WorkerError
from gradmix.files import locked
from gradmix.training.processes import ctrl_c_waiting

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WATCH_SECONDS = 0.5
"""How often a worker checks that its parent is alive."""


@dataclass(frozen=True)
class Engine:
    """Where runs are computed."""

    open: Callable[[], AbstractContextManager[Executor]]
    restarts: bool = True  # whether it can be opened again after a worker died


def loky_engine(jobs: int, devices_per_run: int | None = None) -> Engine:
    """Return an engine of `jobs` processes on this machine; each sees some GPUs, or all.

    Raises:
        InputError: If there are too few GPUs.
    """
    if devices_per_run is not None:
        import torch

        needed, found = jobs * devices_per_run, torch.cuda.device_count()
        if needed > found:
            raise InputError(
                f"jobs times devices_per_run is {needed}, and this machine has {found} GPUs; give "
                "fewer of either"
            )
    # Imported here because it takes a while.
    from loky.backend import resource_tracker as loky_tracker

    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # their start would unblock Ctrl-C later
    return Engine(partial(_loky, jobs, devices_per_run))


def dask_engine(address: str | None, jobs: int) -> Engine:
    """Return an engine on a dask cluster.

    Args:
        address: The scheduler, such as tcp://host:8786; None starts a cluster on this machine.
        jobs: Workers of a cluster on this machine, one thread each.
    """
    return Engine(partial(_dask, address, jobs))


def engine_of(executor: Executor) -> Engine:
    """Return an engine that uses an executor of the user, and leaves it open."""
    return Engine(lambda: nullcontext(executor), restarts=False)


def compute(
    work: Callable[[Item], Answer], items: Sequence[Item], engine: Engine | None
) -> Iterator[Answer]:
    """Yield `work(item)` for all items as they finish; without an engine, in this process.

    Raises:
        WorkerError: If a worker dies. The other workers of the engine then end, too.
    """
    if engine is None:
        yield from map(work, items)
        return
    with ExitStack() as opened:
        with ctrl_c_waiting():
            executor = opened.enter_context(engine.open())
            futures = [executor.submit(work, item) for item in items]
        if not engine.restarts:  # others cancel when they close
            for future in futures:
                opened.callback(future.cancel)
        lost: tuple[type[BaseException], ...] = (BrokenExecutor,)  # the worker of a run died
        if "distributed" in sys.modules:
            from distributed.scheduler import KilledWorker

            lost = (BrokenExecutor, KilledWorker)
        try:
            for future in as_completed(futures):
                yield future.result()
        except lost as error:
            codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
            died = f" ({codes[1]})" if codes else ""
            raise WorkerError(f"a worker process died{died}") from error


@contextmanager
def _loky(jobs: int, devices_per_run: int | None) -> Iterator[Executor]:
    from loky import ProcessPoolExecutor

    with tempfile.TemporaryDirectory(prefix="gradmix-") as folder:
        arguments = (os.getpid(), jobs, devices_per_run, folder)
        executor = ProcessPoolExecutor(jobs, initializer=_begin_worker, initargs=arguments)
        try:
            yield executor
        finally:
            executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def _dask(address: str | None, jobs: int) -> Iterator[Executor]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise MissingPackageError(
            "the engine dask needs distributed; install it with: pip install 'gradmix[cluster]'"
        ) from error

    with ExitStack() as opened:
        cluster: Any = address
        if address is None:
            quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
            cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, **quiet)
            opened.enter_context(cluster)
        try:
            client = opened.enter_context(Client(cluster))
        except OSError as error:
            raise InputError(f"address is {address!r}: no scheduler answers there") from error
        yield client.get_executor(pure=False)


# --- in a worker ------------------------------------------------------------------------------


def _begin_worker(parent: int, jobs: int, devices_per_run: int | None, folder: str) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)  # at any point: files are written whole or not at all

    # This process ends soon after its parent, even if the parent is killed.
    threading.Thread(target=watch, daemon=True, name="watch-parent").start()
    if devices_per_run is not None:
        first = _take_slot(folder, jobs) * devices_per_run
        visible = map(str, range(first, first + devices_per_run))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)


_held = ExitStack()  # locks that this worker keeps until it ends


def _take_slot(folder: str, slots: int) -> int:
    """Return a number that no other living worker has."""
    for slot in range(slots):
        with suppress(FileInUseError):
            _held.enter_context(locked(os.path.join(folder, f"slot-{slot}")))
            return slot
    raise WorkerError(f"all {slots} worker slots are in use")
