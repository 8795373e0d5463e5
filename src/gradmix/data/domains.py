"""The data of domain-incremental tasks, which all have the same classes.

    samples    every task has other samples
    permuted   every task has all images, with its own order of the pixels
    rotated    every task has all images, turned by its own angle from 0 to 180 degrees

The first task of the last two has the images as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.data.augment import warp
from gradmix.errors import InputError, UnknownNameError
from gradmix.types import Samples

SHIFTS = ("samples", "permuted", "rotated")
_AT_ONCE = 4096  # images that are rotated at a time


def make(
    train: Samples, test: Samples, tasks: int, shift: str, generator: torch.Generator
) -> list[tuple[Samples, Samples]]:
    """Return the training and test samples of each task; all have the same classes."""
    if shift not in SHIFTS:
        raise UnknownNameError("domain shift", shift, SHIFTS)
    if shift == "samples":
        new = _shares(train, tasks, "training", generator)
        return list(zip(new, _shares(test, tasks, "test", generator), strict=True))
    if not isinstance(train.x, Tensor):
        raise InputError(f"domain_shift is {shift!r}, which needs images in memory; load fewer")
    if train.x.ndim != 4:
        raise InputError(
            f"domain_shift is {shift!r}, which needs images; these are rows of {train.x.shape[1]} "
            "numbers: give domain_shift 'samples'"
        )
    others = [_shifted(train, test, shift, generator) for _ in range(tasks - 1)]
    return [(train, test), *others]


def _shares(samples: Samples, tasks: int, part: str, generator: torch.Generator) -> list[Samples]:
    """Deal the samples of each class evenly to the tasks, in random order."""
    x, y = samples
    task = torch.empty_like(y)
    for label in y.unique().tolist():
        rows = (y == label).nonzero().squeeze(1)
        if len(rows) < tasks:
            raise InputError(
                f"class {label} has {len(rows)} {part} samples, too few for {tasks} tasks; give "
                "fewer domains"
            )
        drawn = torch.randperm(len(rows), generator=generator)
        task[rows[drawn]] = torch.arange(len(rows)) % tasks
    return [Samples(x[task == number], y[task == number]) for number in range(tasks)]


def _shifted(
    train: Samples, test: Samples, shift: str, generator: torch.Generator
) -> tuple[Samples, Samples]:
    """Return all samples with a new permutation or rotation of their images."""
    if shift == "permuted":
        places = torch.randperm(train.x[0, 0].numel(), generator=generator)
        moved = [x.flatten(2)[:, :, places].view(x.shape) for x in (train.x, test.x)]
    else:
        degrees = 180 * float(torch.rand((), generator=generator))
        moved = [rotate(x, degrees) for x in (train.x, test.x)]
    return Samples(moved[0], train.y), Samples(moved[1], test.y)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Return uint8 images (N, C, H, W) turned counter-clockwise about their centre.

    Pixels are interpolated bilinearly, black outside the image.

    Example:
        >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), 90).flatten().tolist()
        [2, 4, 1, 3]
    """
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    cos, sin, aspect = float(angle.cos()), float(angle.sin()), x.shape[3] / x.shape[2]
    # Where each pixel comes from, in coordinates from -1 to 1.
    theta = torch.tensor([[cos, -sin / aspect, 0.0], [sin * aspect, cos, 0.0]])
    parts = x.split(_AT_ONCE)
    return torch.cat([warp(part, theta.expand(len(part), 2, 3)) for part in parts])
