"""Splits of a data set into domain-incremental tasks, which all have the same classes.

    samples    every task has other samples
    permuted   every task has all images, with its own order of the pixels
    rotated    every task has all images, turned by its own angle from 0 to 180 degrees

The first task of the last two has the images as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradmix._setting_types import is_whole
from gradmix.data.augment import warp
from gradmix.data.datasets import DataSet
from gradmix.data.tasks import Benchmark, as_benchmark, in_order
from gradmix.errors import InputError, UnknownNameError
from gradmix.randomness import RandomStreams
from gradmix.types import Samples, Task

SHIFTS = ("samples", "permuted", "rotated")
_AT_ONCE = 4096  # images that are rotated at a time


def split_into_domains(
    data: DataSet,
    tasks: int,
    shift: Literal["samples", "permuted", "rotated"] = "samples",
    class_order: str | Sequence[int] = "natural",
    *,
    evaluate_on: Literal["test", "validation"] = "test",
    seed: int = 0,
) -> Benchmark:
    """Return a data set as tasks that all have the same classes, with other data.

    Args:
        data: The data set.
        tasks: Number of tasks.
        shift: "samples" gives every task an equal share of the training and of the test samples of
            each class, drawn at random. "permuted" and "rotated" give every task all images, with
            permuted pixels (the same places in all channels) or turned by an angle.
        class_order: The order in which classes are numbered; see `resolve_class_order`.
        evaluate_on: "validation" evaluates on the samples that `DataSet.hold_out` set aside.
        seed: Seed of shares, permutations and angles.

    Raises:
        InputError: A class has fewer samples than there are tasks, or the samples are not images in
            memory and `shift` needs them.

    Example:
        >>> from gradmix.data import digits
        >>> benchmark = split_into_domains(digits(), 3, "permuted")
        >>> len(benchmark.tasks), benchmark.tasks[2].classes == tuple(range(10))
        (3, True)
    """
    if not is_whole(tasks) or tasks < 2:
        raise InputError(f"tasks is {tasks!r}; it must be an integer of 2 or more")
    if shift not in SHIFTS:
        raise UnknownNameError("domain shift", shift, SHIFTS)
    order, train, test = in_order(data, class_order, evaluate_on)
    generator = RandomStreams(seed).device(f"domains {shift}")
    if shift == "samples":
        new = _shares(train, tasks, "training", generator)
        parts = list(zip(new, _shares(test, tasks, "test", generator), strict=True))
    elif not isinstance(train.x, Tensor):
        raise InputError(f"domain_shift is {shift!r}, which needs images in memory; load fewer")
    elif train.x.ndim != 4:
        raise InputError(
            f"domain_shift is {shift!r}, which needs images; these are rows of {train.x.shape[1]} "
            "numbers: give domain_shift 'samples'"
        )
    else:
        others = [_shifted(train, test, shift, generator) for _ in range(tasks - 1)]
        parts = [(train, test), *others]
    classes = tuple(range(len(order)))
    made = [Task(number, classes, *part) for number, part in enumerate(parts, start=1)]
    return as_benchmark(data, order, made, "domain-incremental")


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
