"""Images that stay in their files and are decoded when needed, ahead of time if possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from gradmix.data.image_folders.decode import THREADS, ImageFiles, UnreadableImage
from gradmix.errors import CorruptFileError, InputError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_T = TypeVar("_T")


class _Plan:
    """The batch sampler of a DataLoader: the batches to make next."""

    def __init__(self) -> None:
        self.batches: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _WholeBatches:
    """The dataset of a DataLoader; its workers return an error instead of raising it."""

    def __init__(self, files: ImageFiles) -> None:
        self._files = files

    def __getitems__(self, rows: list[int]) -> Tensor | UnreadableImage:
        pixels, failures = self._files.decode_rows(rows)
        return failures[0] if failures else pixels


class _Workers:
    """DataLoaders whose workers keep running for the next use; one for each concurrent use."""

    def __init__(self, files: ImageFiles) -> None:
        self._files = files
        self._idle: dict[int, list[DataLoader[Any]]] = {}

    def batches(self, rows: Sequence[Tensor], workers: int) -> Iterator[Tensor | UnreadableImage]:
        idle = self._idle.setdefault(workers, [])
        loader = idle.pop() if idle else self._start(workers)
        cast(_Plan, loader.batch_sampler).batches = rows
        try:
            yield from loader
        except (
            GeneratorExit
        ):  # the caller stopped early; the next use discards the batches made ahead
            idle.append(loader)
            raise
        idle.append(loader)  # not after an error: then its workers end

    def close(self) -> None:
        self._idle.clear()  # a DataLoader ends its workers when nothing refers to it

    def _start(self, workers: int) -> DataLoader[Any]:
        from torch.utils.data import DataLoader

        return DataLoader(
            cast(Any, _WholeBatches(self._files)),
            batch_sampler=cast(Any, _Plan()),
            num_workers=workers,
            collate_fn=_as_it_is,
            persistent_workers=True,
            pin_memory=torch.cuda.is_available(),  # so that `_finished` does not wait for the copy
            generator=torch.Generator(),  # draws a seed; else from the global one
        )


def _as_it_is(batch: _T) -> _T:
    return batch


class StreamedImages:
    """Images in files, in place of a uint8 tensor (N, C, H, W).

    `x[rows]` with a slice, a mask or indices selects images without decoding them. `index_select`,
    `split` and `batches` decode. Selections share the workers of the original. The workers run
    until `close`, or until the last selection is deleted.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        files: ImageFiles,
        rows: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
        _workers: _Workers | None = None,
    ) -> None:
        self.files = files
        self.device = torch.device(device)  # where decoded images go
        self._rows = torch.arange(len(files)) if rows is None else rows
        self._workers = _Workers(files) if _workers is None else _workers

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        return torch.Size((len(self), *self.files.shape))

    def __getitem__(self, rows: slice | Tensor) -> StreamedImages:
        if isinstance(rows, Tensor):
            rows = rows.cpu()
        return self._like(self._rows[rows], self.device)

    def to(self, device: torch.device | str) -> StreamedImages:
        """Return the same images, decoded to another device."""
        return self._like(self._rows, device)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Return the decoded images at `index`; CorruptFileError names an unreadable file."""
        if dim != 0:
            raise InputError(f"dim is {dim}; images can only be selected along dimension 0")
        rows = self._rows[index.cpu()].tolist()
        pixels, failures = self.files.decode_rows(rows, threads=THREADS)
        return self._finished(failures[0] if failures else pixels)

    def split(self, size: int, *, workers: int = 0) -> Iterator[Tensor]:
        """Return an iterator over all images, `size` decoded images at a time."""
        return self.batches(list(torch.arange(len(self)).split(size)), workers=workers)

    def batches(self, indices: Sequence[Tensor], *, workers: int) -> Iterator[Tensor]:
        """Return an iterator over decoded batches.

        Args:
            indices: The images of each batch.
            workers: Processes that decode ahead and stay for the next call. With 0, a batch is
                decoded when it is requested.

        Raises:
            CorruptFileError: A file cannot be read.
        """
        if workers == 0:
            yield from (self.index_select(0, index) for index in indices)
            return
        rows = [self._rows[index.cpu()] for index in indices]
        for batch in self._workers.batches(rows, workers):
            yield self._finished(batch)

    def close(self) -> None:
        """End the workers; they restart when needed."""
        self._workers.close()

    def _like(self, rows: Tensor, device: torch.device | str) -> StreamedImages:
        return StreamedImages(self.files, rows, device=device, _workers=self._workers)

    def _finished(self, batch: Tensor | UnreadableImage) -> Tensor:
        if isinstance(batch, UnreadableImage):
            raise CorruptFileError(batch.message)
        return batch.to(self.device, non_blocking=True)
