"""Images that stay in their files and are decoded when needed, ahead of time if possible."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.errors import InputError

if TYPE_CHECKING:
    from gradmix.data.image_folders.decode import ImageFiles

THREADS = min(8, os.cpu_count() or 1)
_AHEAD = 2  # results that wait for the caller, per thread
_AT_ONCE = 16  # most images that a thread decodes for one result
_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(work: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """Yield `work(item)` of each item in order, computed in advance by `THREADS` threads.

    Pillow and PyTorch release Python's lock, so decoding overlaps with the caller's computation.
    An error of `work` is raised when its item is due. When the caller stops, by an error, Ctrl-C or
    `close`, the items that no thread has begun are dropped.

    Args:
        work: A function that threads may call at the same time.
        items: The items; they are taken when a thread needs one.

    Example:
        >>> list(map_ahead(str.upper, "abc"))
        ['A', 'B', 'C']
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gradmix-ahead")
    waiting: deque[Future[_R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _AHEAD * THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class StreamedImages:
    """Images in files, in place of a uint8 tensor (N, C, H, W).

    `x[rows]` with a slice, a mask or indices selects images without decoding them. `index_select`,
    `split` and `batches` decode, in threads that work ahead of the caller.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        files: ImageFiles,
        rows: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.files = files
        self.device = torch.device(device)  # where decoded images go
        self._rows = torch.arange(len(files)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        return torch.Size((len(self), *self.files.shape))

    def __getitem__(self, rows: slice | Tensor) -> StreamedImages:
        chosen = self._rows[rows.cpu() if isinstance(rows, Tensor) else rows]
        return StreamedImages(self.files, chosen, device=self.device)

    def to(self, device: torch.device | str) -> StreamedImages:
        """Return the same images, decoded to another device."""
        return StreamedImages(self.files, self._rows, device=device)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Return the decoded images at `index`; CorruptFileError names an unreadable file."""
        if dim != 0:
            raise InputError(f"dim is {dim}; images can only be selected along dimension 0")
        return next(self.batches([index]))

    def split(self, size: int) -> Iterator[Tensor]:
        """Return an iterator over all images, `size` decoded images at a time."""
        return self.batches(torch.arange(len(self)).split(size))

    def batches(self, indices: Sequence[Tensor]) -> Iterator[Tensor]:
        """Return an iterator over decoded batches; the next ones are decoded meanwhile.

        Args:
            indices: The images of each batch.

        Raises:
            CorruptFileError: A file cannot be read.
        """
        groups = [self._groups(self._rows[index.cpu()]) for index in indices]
        decoded = map_ahead(self._decode, chain.from_iterable(groups))
        for batch in groups:  # joined by NumPy: threads of PyTorch would slow down the decoders
            yield self._send(np.concatenate([next(decoded) for _ in batch]))

    def _groups(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of a batch, a few at a time, so that every thread gets some."""
        groups: tuple[Tensor, ...] = rows.split(max(1, min(_AT_ONCE, -(-len(rows) // THREADS))))
        return groups

    def _decode(self, rows: Tensor) -> npt.NDArray[np.uint8]:
        """Return the pixels of a few files, (n, C, H, W)."""
        pixels = np.empty((len(rows), *self.files.shape), dtype=np.uint8)
        for row, into in zip(rows.tolist(), pixels, strict=True):
            self.files.decode(row, into)
        return pixels

    def _send(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """Return decoded images on the device; the caller alone keeps them."""
        decoded = torch.from_numpy(pixels)
        if self.device.type == "cuda":  # pinned, so that the copy does not wait
            decoded = decoded.pin_memory()
        return decoded.to(self.device, non_blocking=True)
