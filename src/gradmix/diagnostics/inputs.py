"""What every analysis is given: a model, samples to protect and samples to learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import find_head
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing.partners import ClassIndex
from gradmix.types import Samples

Pair = tuple[Tensor, Tensor]  # network inputs (N, …) and their labels (N,)


class Given(NamedTuple):
    """Checked arguments of an analysis."""

    head: nn.Linear
    memory: Samples
    current: Samples

    @property
    def pool(self) -> Samples:
        """T_l ∪ M: the current samples, then the memory's."""
        return Samples(*(torch.cat(parts) for parts in zip(self.current, self.memory, strict=True)))


def check(
    model: nn.Module, memory: Pair, current: Pair, average: str, head: nn.Linear | None
) -> Given:
    """Refuse, by name, what cannot be analysed; find the head if it is not given."""
    if average not in ("sample", "class"):
        raise UnknownNameError("average", average, ("sample", "class"))
    head = find_head(model) if head is None else head
    given = Given(
        head, check_samples("memory", memory, head), check_samples("current", current, head)
    )
    ours, other = given.memory.x, given.current.x
    if ours.shape[1:] != other.shape[1:] or ours.dtype != other.dtype:
        raise InputError(
            f"memory inputs are {ours.dtype} of shape {tuple(ours.shape)}, current's are "
            f"{other.dtype} of shape {tuple(other.shape)}; give both in the form batches have"
        )
    return given


def check_samples(name: str, samples: Pair, head: nn.Linear) -> Samples:
    """Network inputs and labels that the head knows, at least one."""
    if not isinstance(samples, tuple) or len(samples) != 2:
        raise InputError(f"{name} is {type(samples).__name__}; give (inputs, labels)")
    x, y = samples
    for part, value in (("inputs", x), ("labels", y)):
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise InputError(f"{name} {part} are {type(value).__name__}; give a tensor of N rows")
    if len(x) != len(y) or len(y) == 0:
        raise InputError(f"{name} has {len(x)} inputs and {len(y)} labels; give as many, above 0")
    if y.dtype != torch.int64 or y.ndim != 1:
        raise InputError(f"{name} labels are {y.dtype} of {y.ndim} dimensions; give int64 (N,)")
    if not 0 <= int(y.min()) <= int(y.max()) < head.out_features:
        raise InputError(
            f"{name} labels run from {int(y.min())} to {int(y.max())}; "
            f"the head has outputs 0 to {head.out_features - 1}"
        )
    if not x.is_floating_point():
        raise InputError(f"{name} inputs are {x.dtype}; give floating-point network inputs")
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{name} inputs have NaN or infinite values")
    return Samples(x, y)


def check_count(name: str, value: int) -> None:
    """Refuse numbers below 1."""
    if value < 1:
        raise InputError(f"{name} is {value}; give 1 or more")


def check_ratios(name: str, ratios: Sequence[float]) -> None:
    """Refuse an empty list and what is no mixing ratio."""
    if len(ratios) == 0:
        raise InputError(f"{name} is empty; give at least one mixing ratio")
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"{name} has {lam}; a mixing ratio lies between 0 and 1")


def draw_per_class(
    samples: Samples, most: int, generator: torch.Generator | None, outputs: int
) -> Samples:
    """Up to `most` samples of every class, drawn uniformly, in the order they have."""
    index = ClassIndex(samples.y, outputs)
    chosen = [index.draw_some(label, most, generator) for label in index.classes.tolist()]
    rows = torch.cat(chosen).sort().values
    return Samples(samples.x[rows], samples.y[rows])


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Labels as rows of probabilities, (N, C)."""
    return nn.functional.one_hot(labels, outputs).to(torch.float32)
