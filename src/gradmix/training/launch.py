"""Start the processes of a run on several devices, and end them together.

On one machine, this process is rank 0 and starts the others, which call a function that follows it.
Under torchrun or srun all processes exist already, and each runs the same program. In both cases
Lightning Fabric chooses the device of a process and connects the ranks.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from gradmix.errors import InputError, RankError
from gradmix.ranks import ALONE, Ranks
from gradmix.training.build import make_fabric, new_fabric, processes_outside, torch_threads
from gradmix.training.processes import RESUME, OtherRanks

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Devices:
    """How many devices compute a run.

    Args:
        devices: Devices of each machine.
        nodes: Machines; more than one need torchrun or srun.
        sync_batchnorm: Let BatchNorm use the statistics of the whole batch, not of a rank's rows.
        shard_weights: Let each device hold only a part of the network's weights.
    """

    devices: int = 1
    nodes: int = 1
    sync_batchnorm: bool = False
    shard_weights: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "nodes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**5:
                raise InputError(f"{name} is {value!r}; give a whole number of 1 or more")
        if self.shard_weights and self.size == 1:
            raise InputError(
                "shard_weights (--shard-weights) is on, but devices is 1; give 2 or more devices"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class Job:
    """The device of this process, and the ranks that it computes with."""

    fabric: Fabric
    ranks: Ranks = ALONE


Follow = Callable[[Job], object]
Connect = Callable[[], "Fabric"]


@contextmanager
def open_job(
    device: str, precision: str, wanted: Devices, follow: Follow | None = None
) -> Iterator[Job]:
    """Yield the job of this process; other ranks run beside it until the context ends.

    Args:
        device: Type of device: auto, cpu, cuda or mps.
        precision: Precision of Fabric.
        wanted: Number of devices.
        follow: What the other ranks do, if this process starts them. It must make the same sums
            and gathers as rank 0, and it is pickled.

    Raises:
        InputError: If the devices cannot be used.
        RankError: If a rank ends early. The message names the rank and the reason.
    """
    if wanted.size == 1:
        yield Job(make_fabric(device, precision))
        return
    if dist.is_initialized():
        raise InputError(
            f"devices is {wanted.devices}, but this process belongs to a process group already; "
            "destroy it first, or give devices=1"
        )
    connect = partial(_connect, device, precision, wanted)
    if processes_outside() > 1:
        with _connected(connect, wanted) as job:
            yield job
        return
    if wanted.nodes > 1:
        raise InputError(
            f"nodes is {wanted.nodes}; start the command on every node with torchrun or srun"
        )
    if follow is None:
        raise InputError(f"devices is {wanted.devices}; start this program with torchrun or srun")
    with _started(connect, wanted, follow) as job:
        yield job


# --- connecting ---------------------------------------------------------------------------------


@contextmanager
def _connected(
    connect: Connect,
    wanted: Devices,
    variables: Mapping[str, str] | None = None,
    others: OtherRanks | None = None,
) -> Iterator[Job]:
    """Join the process group; leave it at the end, after all ranks are done.

    `variables` of the environment tell Fabric the rank, unless torchrun or srun set them. `others`
    are the ranks that this process started.
    """
    before = dict(os.environ)
    os.environ.update(variables or {})
    try:
        with torch_threads(torch.get_num_threads()):  # Fabric changes them
            fabric = connect() if others is None else others.watched_during(connect)
            try:
                ranks = Ranks(
                    fabric.global_rank,
                    fabric.world_size,
                    fabric.device,
                    wanted.sync_batchnorm,
                    wanted.shard_weights,
                )
                yield Job(fabric, ranks)
                ranks.barrier()
            finally:
                gc.collect()  # sharded networks refer to the group, which must not outlive this
                if dist.is_initialized():
                    dist.destroy_process_group()
    finally:
        for name in os.environ.keys() - before.keys():  # Fabric sets variables of its own
            del os.environ[name]
        os.environ.update(before)


def _connect(device: str, precision: str, wanted: Devices) -> Fabric:
    """Return the device of this process when all ranks are connected."""
    import lightning_fabric  # noqa: F401 - sets the level of its messages
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    if ":" in device:
        raise InputError(f"device is {device!r} and devices is {wanted.devices}; give cuda or cpu")
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        fabric = new_fabric(
            f"devices is {wanted.devices}, nodes is {wanted.nodes} and device is {device!r}",
            accelerator=device,
            strategy="ddp",
            devices=wanted.devices,
            num_nodes=wanted.nodes,
            precision=precision,
            plugins=None if processes_outside() > 1 else [LightningEnvironment()],
        )
        fabric.launch()
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the ranks cannot be connected: {error}") from error
    finally:
        logger.setLevel(level)
    return fabric


# --- starting -----------------------------------------------------------------------------------


@contextmanager
def _started(connect: Connect, wanted: Devices, follow: Follow) -> Iterator[Job]:
    """Start the other ranks of this machine and become rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])  # a free one
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
    own, *rest = ({**variables, "LOCAL_RANK": str(rank)} for rank in range(wanted.devices))
    others = OtherRanks([partial(_follow, connect, wanted, each, follow) for each in rest])
    try:
        with others.noticed(), _connected(connect, wanted, own, others) as job:
            yield job
        others.join()
    except RankError as error:
        reason = others.reason()
        if reason is None:
            raise
        raise RankError(f"{reason}; {RESUME}") from error
    finally:
        others.end()


def _follow(
    connect: Connect, wanted: Devices, variables: Mapping[str, str], follow: Follow
) -> None:
    """Be one of the other ranks."""
    with _connected(connect, wanted, variables) as job:
        follow(job)
