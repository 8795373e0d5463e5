"""Runs of a store on several devices: what the ranks other than 0 do.

Rank 0 decides which runs are computed and writes all files. It tells the others with two numbers
per run: whether the run is prepared, and whether it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradmix.errors import InputError
from gradmix.plugins import Plugin, restore
from gradmix.runs.config import RunConfig
from gradmix.runs.run import prepare_run, train
from gradmix.runs.store import ResultStore
from gradmix.training.launch import Job


def one_device(configs: Sequence[RunConfig]) -> tuple[str, str]:
    """Return device and precision of all runs.

    Raises:
        InputError: If they differ: the processes that compute together keep theirs.
    """
    found = sorted({(config.device, config.precision) for config in configs})
    if len(found) != 1:
        raise InputError(
            f"device and precision are {found}; runs on several devices need one of each"
        )
    return found[0]


def follow_runs(
    plugins: Sequence[Plugin],
    configs: Sequence[RunConfig],
    store: ResultStore | None,
    job: Job,
) -> None:
    """Do what a rank other than 0 does while rank 0 computes some of the runs.

    Args:
        plugins: The plugins of rank 0.
        configs: The runs.
        store: The store with their checkpoints; None: without checkpoints.
        job: The ranks.
    """
    restore(plugins)
    for config in configs:
        if not job.ranks.from_first(0):
            continue
        training = prepare_run(config, job=job)
        if job.ranks.from_first(0):
            path = None if store is None else store.checkpoint_of(config)
            train(config, training, checkpoint=path)
