"""The pool T_l ∪ M: the samples of the current task, then the samples of the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.types import Samples

if TYPE_CHECKING:
    from gradmix.data.stream import StreamedImages

READY_BYTES = 2**26  # network inputs of a pool up to this size are computed once and kept


class Normalise:
    """Turns stored samples into network inputs: (x − mean) / std per channel, in float32."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
    ) -> None:
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise InputError(f"mean is {mean} and std is {std}; give one positive std per mean")
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self._scale = torch.tensor(std, dtype=torch.float32, device=device).reciprocal_()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the network inputs of stored samples, (N, C, H, W) or (N, d)."""
        shape = (-1, *(1,) * (x.ndim - 2))  # (C, 1, 1) or (d,)
        own = x.to(torch.float32, copy=True)  # a copy, to change in place
        return own.sub_(self._mean.view(shape)).mul_(self._scale.view(shape))

    def undo(self, x: Tensor) -> Tensor:
        """Return the stored values of network inputs, in float32."""
        shape = (-1, *(1,) * (x.ndim - 2))
        return x / self._scale.view(shape) + self._mean.view(shape)


Transform = Callable[..., Tensor]  # (uint8 images, *, generator) → uint8 images
Rows = slice | Tensor  # some rows of a batch
ALL = slice(None)


class Pool:
    """The samples from which batches and partners are drawn while a task is learned.

    Indices below `num_new` are samples of the task; the others are samples of the memory, in its
    order. Samples stay as they are stored, on their device or in their files. `inputs` returns
    their network inputs, and `augmented` the same after random transforms. A small pool without
    transforms keeps the network inputs, so that they are normalised only once.
    """

    def __init__(
        self,
        new: Samples,
        memory: Samples | None,
        normalise: Normalise,
        transforms: Sequence[Transform] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        parts = [new] if memory is None or len(memory.y) == 0 else [new, memory]
        self.parts = tuple(parts)  # as stored: the task's samples, then the memory's, if any
        self.num_new = len(new.y)
        self.input_shape = tuple(new.x.shape[1:])
        self.y = torch.cat([part.y for part in parts])
        self.normalise = normalise
        self._transforms, self._generator = tuple(transforms), generator
        self.streamed = not isinstance(new.x, Tensor)
        # Whether one gather can fetch a batch and its partners: a sample has only one view.
        self.one_gather = not self.streamed and not self._transforms
        self.random_views = bool(self._transforms)  # whether `augmented` differs from call to call
        self._ready = False  # whether the stored samples are network inputs already
        self._stored: Tensor | _Streamed
        if isinstance(new.x, Tensor):
            x = torch.cat([part.x for part in parts])
            self._ready = not self._transforms and 4 * x.numel() <= READY_BYTES
            self._stored = normalise(x) if self._ready else x
        else:
            self._stored = _Streamed(new.x, parts[1].x if len(parts) > 1 else None)

    def __len__(self) -> int:
        return len(self.y)

    def with_samples(self, new: Samples, memory: Samples | None = None) -> Pool:
        """Return a pool of other samples, with the same transforms."""
        return Pool(new, memory, self.normalise, self._transforms, self._generator)

    def without(self, rows: Tensor) -> Pool:
        """Return a pool that lacks the samples at `rows`; the others keep their order."""
        kept = torch.ones_like(self.y, dtype=torch.bool)
        kept[rows] = False
        masks = kept.split([len(part.y) for part in self.parts])
        parts = zip(self.parts, masks, strict=True)
        return self.with_samples(*(Samples(part.x[mask], part.y[mask]) for part, mask in parts))

    def inputs(self, index: Tensor) -> Tensor:
        """Return the network inputs of the samples at `index`, without random transforms."""
        x = self._stored.index_select(0, index)
        return x if self._ready else self.normalise(x)

    def augmented(self, index: Tensor, rows: Rows = ALL) -> Tensor:
        """Return the network inputs of the samples at `index[rows]`, after random transforms.

        Transforms are drawn for the whole index, so that a row does not depend on `rows`.
        """
        if not self._transforms:
            return self.inputs(index[rows])
        x = self._stored.index_select(0, index[rows])
        if not (isinstance(rows, slice) and len(x) == len(index)):  # others have the other rows
            own, x = x, x.new_zeros((len(index), *x.shape[1:]))
            x[rows] = own
        for transform in self._transforms:
            x = transform(x, generator=self._generator)
        return self.normalise(x[rows])

    def batch(self, index: Tensor, rows: Rows = ALL) -> Samples:
        """Return the network inputs after random transforms, and the labels, of some samples."""
        return Samples(self.augmented(index, rows), self.y.index_select(0, index[rows]))

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Announce the samples of each of the next steps; streamed ones are read ahead."""
        if not isinstance(self._stored, Tensor):
            self._stored.expect(batches)


class _Streamed:
    """New samples in files, and the memory on the device."""

    def __init__(self, new: StreamedImages, memory: Tensor | None) -> None:
        self._new, self._memory = new, memory
        self._expected: deque[Tensor] = deque()
        self._ahead: Iterator[Tensor] = iter(())
        self._last: tuple[Tensor, Tensor] | None = None  # the last batch read ahead

    def expect(self, batches: Sequence[Tensor]) -> None:
        new = [batch[batch < len(self._new)].unique() for batch in batches]  # sorted
        self._expected = deque(batch for batch in new if len(batch))
        self._ahead = self._new.batches(list(self._expected))
        self._last = None

    def index_select(self, _dim: int, index: Tensor) -> Tensor:
        """Return the samples at `index`, as the method of a tensor does."""
        is_new = index < len(self._new)
        new = self._read(index[is_new])
        if self._memory is None or len(new) == len(index):
            return new
        x = new.new_empty((len(index), *new.shape[1:]))
        x[is_new] = new
        x[~is_new] = self._memory[index[~is_new] - len(self._new)]
        return x

    def _read(self, index: Tensor) -> Tensor:
        """Return new samples from the batch that was read ahead if it has them, else read them."""
        if not len(index):
            return torch.empty(0, *self._new.shape[1:], dtype=torch.uint8, device=self._new.device)
        if self._last is None or not _contains(self._last[0], index):
            if not self._expected or not _contains(self._expected[0], index):
                rows, places = index.unique(return_inverse=True)
                return self._new.index_select(0, rows)[places]
            self._last = self._expected.popleft(), next(self._ahead)
        rows, x = self._last
        return x[torch.searchsorted(rows, index)]


def _contains(rows: Tensor, index: Tensor) -> bool:
    """Return whether sorted rows contain all of an index."""
    places = torch.searchsorted(rows, index).clamp_(max=len(rows) - 1)
    return bool((rows[places] == index).all())


class ClassIndex:
    """The rows of each class in a list of labels.

    Args:
        labels: Class of each sample, int64 (N,).
        num_outputs: Number of classes C that labels may have.

    Attributes:
        counts: Samples of each class, (C,).
        classes: The classes that have samples, (K,), sorted.
    """

    def __init__(self, labels: Tensor, num_outputs: int) -> None:
        self._order = labels.argsort(stable=True)  # (N,) rows, class by class
        self.counts = labels.bincount(minlength=num_outputs)
        self.classes = self.counts.nonzero().squeeze(1)
        self._start = self.counts.cumsum(0) - self.counts  # (C,) first place of each class
        self._float_counts = self.counts.double()
        self._host_counts, self._host_start = self.counts.tolist(), self._start.tolist()

    def draw(self, label: int, most: int, generator: torch.Generator | None) -> Tensor:
        """Return the rows of up to `most` different samples of one class, drawn uniformly."""
        count, start = self._host_counts[label], self._host_start[label]
        chosen = torch.randperm(count, generator=generator, device=self._order.device)[:most]
        return self._order[start + chosen]

    def at(self, classes: Tensor, uniform: Tensor) -> Tensor:
        """Return one row for each of the given classes; float64 `uniform` in [0, 1) chooses it."""
        # In float64 the product stays below the count for any count under 2**53.
        within = (uniform * self._float_counts[classes]).long()
        return self._order[within.add_(self._start[classes])]

    def draw_balanced(self, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        """Draw rows with replacement: first a class, uniformly, then one of its samples."""
        device = self._order.device
        label, uniform = (
            torch.rand(tuple(shape), generator=generator, device=device, dtype=torch.float64)
            for _ in range(2)
        )
        return self.at(self.classes[(label * len(self.classes)).long()], uniform)
