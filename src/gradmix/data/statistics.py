"""Mean and standard deviation of each channel of images, or of each column of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradmix.errors import InputError

_COUNTED_AT_ONCE = 256  # images; streamed ones are decoded in such batches


def check_statistics(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise InputError unless both hold one finite value per channel, and std is above zero."""
    for name, values in (("mean", mean), ("std", std)):
        if not _are_finite(values, channels):
            raise InputError(f"{name} is {values}; it must be {channels} finite values")
    if min(std) <= 0:
        raise InputError(f"std is {std}; every value must be above zero")


def _are_finite(values: Sequence[float], count: int) -> bool:
    try:
        return len(values) == count and all(math.isfinite(value) for value in values)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def complete_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, *parts: Tensor
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the given mean and standard deviation; None is computed from all samples."""
    if mean is None or std is None:
        computed = channel_statistics(parts[0] if len(parts) == 1 else torch.cat(parts))
        mean = computed[0] if mean is None else mean
        std = computed[1] if std is None else std
    check_statistics(mean, std, parts[0].shape[1])
    return tuple(mean), tuple(std)


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel (column of rows); std is 1 if constant."""
    if x.dtype == torch.uint8:
        counts = torch.zeros(x.shape[1], 256, dtype=torch.int64)
        for batch in x.split(_COUNTED_AT_ONCE):
            counts += _byte_counts(batch).cpu()
        pairs = [_byte_statistics(channel) for channel in counts]
        return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)
    constant = x.amax(dim=0) == x.amin(dim=0)
    std = x.double().std(dim=0, correction=0).masked_fill(constant, 1.0)
    return tuple(x.double().mean(dim=0).tolist()), tuple(std.tolist())


def _byte_counts(x: Tensor) -> Tensor:
    """Return how often each byte occurs in each channel, (C, 256)."""
    return torch.stack([channel.flatten().bincount(minlength=256) for channel in x.unbind(dim=1)])


def _byte_statistics(counts: Tensor) -> tuple[float, float]:
    """Return the exact mean and standard deviation, without a float copy of the images."""
    counts = counts.double()
    levels = torch.arange(256, dtype=torch.float64)
    mean = (counts @ levels) / counts.sum()
    variance = (counts @ (levels - mean) ** 2) / counts.sum()
    return float(mean), float(variance.sqrt()) or 1.0
