"""The pool T_l ∪ M: the samples of the current task, then those of the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

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
        self._shaped = {2: (self._mean, self._scale)}  # by number of dimensions, to broadcast

    def __call__(self, x: Tensor) -> Tensor:
        """Return the network inputs of stored samples, (N, C, H, W) or (N, d)."""
        if x.ndim not in self._shaped:
            shape = (-1, *(1,) * (x.ndim - 2))  # channels first: images (N, C, H, W), rows (N, d)
            self._shaped[x.ndim] = self._mean.view(shape), self._scale.view(shape)
        mean, scale = self._shaped[x.ndim]
        own = x.to(torch.float32, copy=True)  # a copy, to change in place
        return own.sub_(mean).mul_(scale)


Transform = Callable[..., Tensor]  # (uint8 images, *, generator) → uint8 images


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
        self.num_new = len(new.y)
        self.input_shape = tuple(new.x.shape[1:])
        self.y = torch.cat([part.y for part in parts])
        self.normalise = normalise
        self._transforms, self._generator = tuple(transforms), generator
        self.streamed = not isinstance(new.x, Tensor)
        self.one_gather = not self.streamed and not self._transforms
        self._ready = False  # whether the stored samples are network inputs already
        self._stored: Stored
        if isinstance(new.x, Tensor):
            x = torch.cat([part.x for part in parts])
            self._ready = not self._transforms and 4 * x.numel() <= READY_BYTES
            self._stored = _InMemory(normalise(x) if self._ready else x)
        else:
            self._stored = _Streamed(new.x, parts[1].x if len(parts) > 1 else None)

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Tensor:
        """Return the network inputs of the samples at `index`, without random transforms."""
        x = self._stored.gather(index)
        return x if self._ready else self.normalise(x)

    def augmented(self, index: Tensor) -> Tensor:
        """Return the network inputs of the samples at `index`, after random transforms if any."""
        if not self._transforms:
            return self.inputs(index)
        x = self._stored.gather(index)
        for transform in self._transforms:
            x = transform(x, generator=self._generator)
        return self.normalise(x)

    def batch(self, index: Tensor) -> Samples:
        """Return the network inputs after random transforms, and the labels, of some samples."""
        return Samples(self.augmented(index), self.y.index_select(0, index))

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Announce which new samples are needed next, in order; streamed ones are read ahead."""
        self._stored.expect(batches)


class Stored(Protocol):
    """Samples by index, in memory or in files."""

    def gather(self, index: Tensor) -> Tensor:
        """Return the samples at `index`, as stored."""

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Announce the next batches."""


class _InMemory:
    """All samples on the device."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def gather(self, index: Tensor) -> Tensor:
        return self._x.index_select(0, index)

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Ignored: nothing needs to be read ahead."""


class _Streamed:
    """New samples in files, and the memory on the device."""

    def __init__(self, new: StreamedImages, memory: Tensor | None) -> None:
        self._new, self._memory = new, memory
        self._expected: deque[Tensor] = deque()
        self._ahead: Iterator[Tensor] = iter(())
        self._last: tuple[Tensor, Tensor] | None = None  # the last batch read ahead

    def expect(self, batches: Sequence[Tensor]) -> None:
        self._expected = deque(batches)
        self._ahead = self._new.batches(batches)

    def gather(self, index: Tensor) -> Tensor:
        is_new = index < len(self._new)
        new = self._read(index[is_new])
        if self._memory is None or len(new) == len(index):
            return new
        x = new.new_empty((len(index), *new.shape[1:]))
        x[is_new] = new
        x[~is_new] = self._memory[index[~is_new] - len(self._new)]
        return x

    def _read(self, index: Tensor) -> Tensor:
        """Return the batch that was read ahead if it is this one, else read it now."""
        if self._last is not None and torch.equal(self._last[0], index):
            return self._last[1]
        if self._expected and torch.equal(self._expected[0], index):
            self._last = self._expected.popleft(), next(self._ahead)
            return self._last[1]
        return self._new.index_select(0, index)


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
        """Return one row for each of the given classes, which must have samples.

        Args:
            classes: Labels of any shape.
            uniform: Float64 numbers in [0, 1) of the same shape; they choose the sample.
        """
        # In float64 the product stays below the count for any count under 2**53.
        within = (uniform * self._float_counts[classes]).long()
        return self._order[within.add_(self._start[classes])]
