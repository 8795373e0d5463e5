"""T_l ∪ M: the current task's data followed by the memory's, as one range of indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.types import Batch, Samples


class Normalise:
    """Stored samples → network inputs: (x − mean) / std per channel, in float32."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
    ) -> None:
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise InputError(f"mean is {mean} and std is {std}; give one positive std per mean")
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self._scale = 1 / torch.tensor(std, dtype=torch.float32, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs of stored samples, (N, C, H, W) or (N, d)."""
        shape = (-1, *(1,) * (x.ndim - 2))  # channels first: images (N, C, H, W), rows (N, d)
        return (x.float() - self._mean.view(shape)).mul_(self._scale.view(shape))


class Pool:
    """What batches and partners are drawn from while a task is learned.

    Indices below `num_new` are samples of the task, those from there on are of the memory, in
    its order. Samples stay as they are stored, on their device; `images` makes them inputs.
    """

    def __init__(self, new: Samples, memory: Samples | None, normalise: Normalise) -> None:
        parts = [new] if memory is None or len(memory.y) == 0 else [new, memory]
        self.num_new = len(new.y)
        self.y = torch.cat([part.y for part in parts])
        self._x = torch.cat([part.x for part in parts])
        self.normalise = normalise

    def __len__(self) -> int:
        return len(self.y)

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`."""
        return self.normalise(self._x.index_select(0, index))

    def batch(self, index: Tensor) -> Batch:
        """Inputs and labels of the samples at `index`."""
        return Batch(self.images(index), self.y.index_select(0, index), index)
