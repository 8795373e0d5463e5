"""The inputs of a diagnostic: a model, the memory and current samples.

All access to the samples of a training method is at the end of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import find_head
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import Method
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
    """Check network inputs and labels: at least one sample, labels within the head's outputs."""
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
    """Raise InputError for numbers below 1."""
    if value < 1:
        raise InputError(f"{name} is {value}; give 1 or more")


def check_ratios(name: str, ratios: Sequence[float]) -> None:
    """Raise InputError for an empty list and for values outside 0 to 1."""
    if len(ratios) == 0:
        raise InputError(f"{name} is empty; give at least one mixing ratio")
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"{name} has {lam}; a mixing ratio lies between 0 and 1")


def draw_per_class(
    samples: Samples, most: int, generator: torch.Generator | None, outputs: int
) -> Samples:
    """Draw up to `most` samples of every class uniformly; keep their order."""
    index = ClassIndex(samples.y, outputs)
    chosen = [index.draw(label, most, generator) for label in index.classes.tolist()]
    rows = torch.cat(chosen).sort().values
    return Samples(samples.x[rows], samples.y[rows])


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Return labels as one-hot rows, (N, C)."""
    return nn.functional.one_hot(labels, outputs).to(torch.float32)


# --- samples of a training method ---------------------------------------------------------------


def has_memory(method: Method) -> bool:
    """Whether the method replays exemplars of earlier tasks."""
    return method.replays and len(method.pool) > method.pool.num_new


def has_two_classes(method: Method) -> bool:
    """Whether the pool has two classes, and two samples of one of them."""
    counts = method.pool.y.bincount()
    return int((counts > 0).sum()) > 1 and int(counts.max()) > 1


def memory_of(method: Method) -> Samples:
    """Return all exemplars of earlier tasks."""
    pool = method.pool
    return _fetch(method, torch.arange(pool.num_new, len(pool), device=pool.y.device))


def new_samples_of(method: Method, number: int, generator: torch.Generator) -> Samples:
    """Draw samples of the current task without replacement."""
    pool = method.pool
    order = torch.randperm(pool.num_new, generator=generator, device=pool.y.device)
    return _fetch(method, order[:number])


def draw_exemplars(
    method: Method, most: int, generator: torch.Generator, *, with_memory: bool = False
) -> Samples:
    """Draw up to `most` samples of every class of the current task, or of all classes."""
    number = len(method.pool) if with_memory else method.pool.num_new
    index = ClassIndex(method.pool.y[:number], method.head.out_features)
    drawn = [index.draw(label, most, generator) for label in index.classes.tolist()]
    return _fetch(method, torch.cat(drawn))


def alpha_of(method: Method) -> float:
    """Return the α of the method's mix; 1 without mixing."""
    recipe = method.mixer.recipe
    return 1.0 if recipe is None else recipe.alpha


def _fetch(method: Method, index: Tensor) -> Samples:
    return Samples(method.pool.inputs(index), method.pool.y[index])
