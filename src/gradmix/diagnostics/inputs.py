"""The arguments of a diagnostic: a model, the memory and current samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import find_head
from gradmix.criterion.embedding import check_samples
from gradmix.data.datasets import check_alike
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.settings import check as check_setting
from gradmix.types import Samples

Pair = tuple[Tensor, Tensor]  # network inputs (N, …) and their labels (N,)


class Given(NamedTuple):
    """Checked arguments of a diagnostic."""

    head: nn.Linear
    memory: Samples
    current: Samples

    @property
    def pool(self) -> Samples:
        """The current samples followed by the memory, T_l ∪ M."""
        return Samples(*(torch.cat(parts) for parts in zip(self.current, self.memory, strict=True)))


def check(
    model: nn.Module, memory: Pair, current: Pair, average: str, head: nn.Linear | None
) -> Given:
    """Check all arguments and find the head if it is not given."""
    check_setting("average", average)
    head = find_head(model) if head is None else head
    old = check_samples("memory", memory, head.out_features)
    new = check_samples("current", current, head.out_features)
    check_alike("memory", old.x, "current", new.x)
    return Given(head, old, new)


def check_counts(**given: int | None) -> None:
    """Raise InputError for numbers below 1; None is left alone."""
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; give 1 or more")


def check_ratios(name: str, ratios: Sequence[float]) -> None:
    """Raise InputError for an empty list and for values outside 0 to 1."""
    if len(ratios) == 0:
        raise InputError(f"{name} is empty; give at least one mixing ratio")
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"{name} has {lam}; a mixing ratio lies between 0 and 1")


def draw_per_class(
    labels: Tensor, most: int, generator: torch.Generator | None, outputs: int
) -> Tensor:
    """Draw the rows of up to `most` samples of every class uniformly, class by class."""
    index = ClassIndex(labels, outputs)
    return torch.cat([index.draw(label, most, generator) for label in index.classes.tolist()])


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Return labels as one-hot rows, (N, C)."""
    return nn.functional.one_hot(labels, outputs).to(torch.float32)
