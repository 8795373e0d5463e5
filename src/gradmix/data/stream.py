"""Images that stay in their files and are decoded when needed, ahead of time if possible."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.errors import InputError

if TYPE_CHECKING:
    from gradmix.data.image_folders.decode import ImageFiles

THREADS = min(8, os.cpu_count() or 1)
_AHEAD = 64  # results in advance
_AT_ONCE = 16  # most images that a thread decodes for one result
_T = TypeVar("_T")
_R = TypeVar("_R")
_Group = tuple[npt.NDArray[np.uint8], list[int], range]


def map_ahead(work: Callable[[_T], _R], items: Iterable[_T], ahead: int = _AHEAD) -> Iterator[_R]:
    """Yield `work(item)` of each item in order, computed in advance by `THREADS` threads.

    Pillow and PyTorch release Python's lock, so decoding overlaps with the caller's computation.
    An error of `work` is raised when its item is due. When the caller stops, by an error, Ctrl-C or
    `close`, the items that no thread has begun are dropped.

    Args:
        work: A function that threads may call at the same time.
        items: The items; they are taken when a thread needs one.
        ahead: Number of results that are computed before the caller needs them.

    Example:
        >>> list(map_ahead(str.upper, "abc"))
        ['A', 'B', 'C']
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gradmix-ahead")
    waiting: deque[Future[_R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= ahead:
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
        rows = [self._rows[index.cpu()].tolist() for index in indices]
        ready = map_ahead(self._decode, self._groups(rows), ahead=2 * THREADS)
        whole = filter(lambda pixels: pixels is not None, ready)
        # `map` and `filter` keep no batch: its memory is free for the next one
        yield from map(self._send, cast(Iterator[npt.NDArray[np.uint8]], whole))

    def _send(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """Return decoded images on the device."""
        decoded = torch.from_numpy(pixels)
        if self.device.type == "cuda":  # pinned, so that the copy does not wait
            decoded = decoded.pin_memory()
        return decoded.to(self.device, non_blocking=True)

    def _groups(self, batches: Sequence[list[int]]) -> Iterator[_Group]:
        """Yield the images of all batches, a few at a time; at least one group per batch.

        A group is the pixels of its batch, (B, C, H, W), the rows of the batch, and some places.
        """
        for batch in batches:
            pixels = np.empty((len(batch), *self.files.shape), dtype=np.uint8)
            count = max(1, min(_AT_ONCE, -(-len(batch) // THREADS)))  # every thread gets some
            for start in range(0, max(len(batch), 1), count):
                yield pixels, batch, range(start, min(start + count, len(batch)))

    def _decode(self, group: _Group) -> npt.NDArray[np.uint8] | None:
        """Decode the images of a group; return the pixels of the batch after its last group."""
        pixels, batch, places = group
        for place in places:
            self.files.decode(batch[place], pixels[place])
        return pixels if places.stop == len(batch) else None
