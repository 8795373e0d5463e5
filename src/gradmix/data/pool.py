"""T_l ∪ M: the current task's data followed by the memory's, as one range of indices."""

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

STREAM_WORKERS = 2
READY_BYTES = 2**26  # up to which the inputs of a whole pool are worked out once


class Normalise:
    """Stored samples → network inputs: (x − mean) / std per channel, in float32."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
    ) -> None:
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise InputError(f"mean is {mean} and std is {std}; give one positive std per mean")
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self._scale = torch.tensor(std, dtype=torch.float32, device=device).reciprocal_()
        self._shaped = {2: (self._mean, self._scale)}  # to broadcast, by the samples' dimensions

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs of stored samples, (N, C, H, W) or (N, d)."""
        if x.ndim not in self._shaped:
            shape = (-1, *(1,) * (x.ndim - 2))  # channels first: images (N, C, H, W), rows (N, d)
            self._shaped[x.ndim] = self._mean.view(shape), self._scale.view(shape)
        mean, scale = self._shaped[x.ndim]
        own = x.to(torch.float32, copy=True)  # memory of its own, to be changed in place
        return own.sub_(mean).mul_(scale)


Transform = Callable[..., Tensor]  # (uint8 images, *, generator) → uint8 images


class Pool:
    """What batches and partners are drawn from while a task is learned.

    Indices below `num_new` are samples of the task, those from there on are of the memory, in
    its order. Samples stay as they are stored, on their device or in their files; `images` makes
    them inputs of the network, `views` does so after random transforms. Of a small pool that needs
    no transforms, the inputs are kept instead: no image has to be normalised in every epoch.
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
        self._ready = False  # whether what is gathered are network inputs already
        self._stored: Stored
        if isinstance(new.x, Tensor):
            x = torch.cat([part.x for part in parts])
            self._ready = not self._transforms and 4 * x.numel() <= READY_BYTES
            self._stored = _InMemory(normalise(x) if self._ready else x)
        else:
            self._stored = _Streamed(new.x, parts[1].x if len(parts) > 1 else None)

    def __len__(self) -> int:
        return len(self.y)

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, as they are."""
        x = self._stored.gather(index)
        return x if self._ready else self.normalise(x)

    def views(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, after random transforms if there are any."""
        if not self._transforms:
            return self.images(index)
        x = self._stored.gather(index)
        for transform in self._transforms:
            x = transform(x, generator=self._generator)
        return self.normalise(x)

    def batch(self, index: Tensor) -> Samples:
        """Views and labels of the samples at `index`."""
        return Samples(self.views(index), self.y.index_select(0, index))

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Say which new samples are asked for next, in order; streamed ones are read ahead."""
        self._stored.expect(batches)


class Stored(Protocol):
    """Samples by index, wherever they are."""

    def gather(self, index: Tensor) -> Tensor:
        """The samples at `index`, as stored."""

    def expect(self, batches: Sequence[Tensor]) -> None:
        """These are the next."""


class _InMemory:
    """Everything on the device."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def gather(self, index: Tensor) -> Tensor:
        return self._x.index_select(0, index)

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Nothing needs to be read ahead."""


class _Streamed:
    """New samples in files, the memory on the device."""

    def __init__(self, new: StreamedImages, memory: Tensor | None) -> None:
        self._new, self._memory = new, memory
        self._expected: deque[Tensor] = deque()
        self._ahead: Iterator[Tensor] = iter(())
        self._last: tuple[Tensor, Tensor] | None = None  # what was read ahead last

    def expect(self, batches: Sequence[Tensor]) -> None:
        self._expected = deque(batches)
        self._ahead = self._new.batches(list(batches), workers=STREAM_WORKERS)

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
        """What was read ahead if that is asked for, else from the files now."""
        if self._last is not None and torch.equal(self._last[0], index):
            return self._last[1]
        if self._expected and torch.equal(self._expected[0], index):
            self._last = self._expected.popleft(), next(self._ahead)
            return self._last[1]
        return self._new.index_select(0, index)
