"""Ranks: the processes that compute one run together.

All ranks hold the same network, memory and random streams. They draw for the whole batch; then
each computes its own rows. Sums and gathers join the parts, so that a run on many ranks is the run
of one process, apart from the order of floating-point sums. `Ranks()` is a process alone: its sums
and gathers do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch import distributed as dist

from gradmix.errors import RankError


@dataclass(frozen=True)
class Ranks:
    """The number of this process, and how many processes compute the run.

    Args:
        rank: Number of this process, from 0; rank 0 writes files and shows progress.
        size: Number of processes.
        device: Device of this process; some backends exchange only tensors on devices.
        sync_batchnorm: Whether BatchNorm uses the statistics of the whole batch.
        shard_weights: Whether each rank holds only a part of the network's weights.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    sync_batchnorm: bool = False
    shard_weights: bool = False
    alone: bool = field(init=False)  # whether one process computes the run
    first: bool = field(init=False)  # whether this process writes files and shows progress

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.size == 1)
        object.__setattr__(self, "first", self.rank == 0)

    def rows(self, count: int, rank: int | None = None) -> slice:
        """Return the rows of `count` that belong to a rank, by default to this one.

        >>> [Ranks(rank, 3).rows(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        rank = self.rank if rank is None else rank
        return slice(count * rank // self.size, count * (rank + 1) // self.size)

    def equal_rows(self, count: int) -> slice:
        """Return this rank's rows of `count`, and one of the next rank where those have more.

        All ranks then have equally many rows, and make equally many forward passes.

        >>> [Ranks(rank, 3).equal_rows(8) for rank in range(3)]
        [slice(0, 3, None), slice(2, 5, None), slice(5, 8, None)]
        """
        start = self.rows(count).start
        return slice(start, start - (-count // self.size))

    def share(self, count: int) -> float:
        """Return which share of `count` rows belongs to this rank."""
        rows = self.rows(count)
        return float((rows.stop - rows.start) / count)

    # --- collectives: every rank must call them in the same order ------------------------------

    def all_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the ranks, in one exchange."""
        if self.alone or not tensors:
            return
        flat = torch.cat([tensor.flatten().to(tensors[0].dtype) for tensor in tensors])
        flat = flat.to(self.device)
        with _naming_lost_ranks():
            dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def gather(self, part: Tensor, count: int) -> Tensor:
        """Return all `count` rows, in order; `part` has the rows of this rank first.

        Ranks may have different numbers of rows. All send the same number, padded with zeros,
        because a gather of different sizes aborts the process.
        """
        if self.alone:
            return part
        most = -(-count // self.size)
        padded = part.new_zeros((most, *part.shape[1:]), device=self.device)
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with _naming_lost_ranks():
            dist.all_gather(parts, padded)
        rows = [self.rows(count, rank) for rank in range(self.size)]
        joined = [part[: own.stop - own.start] for part, own in zip(parts, rows, strict=True)]
        return torch.cat(joined).to(part.device)

    def from_first(self, number: int) -> int:
        """Return the number that rank 0 passes."""
        if self.alone:
            return number
        told = torch.tensor([number], dtype=torch.int64, device=self.device)
        with _naming_lost_ranks():
            dist.broadcast(told, src=0)
        return int(told)

    def all_equal(self, number: int) -> bool:
        """Return whether all ranks pass the same number of 63 bits."""
        own = torch.tensor([number], dtype=torch.int64, device=self.device)
        return bool((self.gather(own, self.size) == number).all())

    def all_true(self, here: bool) -> bool:
        """Return whether something is true on all ranks."""
        return self.all_equal(int(here)) and here

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.from_first(0)


ALONE = Ranks()
"""One process computes the run."""


@contextmanager
def _naming_lost_ranks() -> Iterator[None]:
    """Turn an error of the connection between ranks into a RankError."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"another process of this job has ended or cannot be reached ({error!s:.200})"
        ) from error
