"""The order in which classes arrive, and how many arrive with each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from gradmix.data.arrays import plain_tensor
from gradmix.errors import InputError, UnknownNameError


def resolve_class_order(class_order: str | Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return the original label of each arriving class.

    Args:
        class_order: "natural" (0, 1, 2, …), a permutation of the labels, or "seed:1993". The seed
            is the convention of the field: NumPy's `RandomState(1993).permutation(num_classes)`.
        num_classes: Number of classes.

    Raises:
        InputError: It is not a permutation of all labels.

    Example:
        >>> resolve_class_order("seed:1993", 5)
        (0, 2, 3, 4, 1)
    """
    if isinstance(class_order, str):
        return _named_order(class_order, num_classes)
    order = _integers("class_order", class_order)
    every = set(range(num_classes))
    problems = {
        "names twice": [label for label, count in Counter(order).items() if count > 1],
        "has the unknown": sorted(set(order) - every),
        "lacks": sorted(every - set(order)),
    }
    found = ", ".join(f"{problem} {labels}" for problem, labels in problems.items() if labels)
    if found:
        raise InputError(
            f"class_order {found}; it must name each class from 0 to {num_classes - 1} once"
        )
    return order


def _named_order(name: str, num_classes: int) -> tuple[int, ...]:
    if name == "natural":
        return tuple(range(num_classes))
    kind, _, seed = name.partition(":")
    if kind != "seed":
        raise UnknownNameError("class order", name, ["natural", "seed:1993"])
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 10 and int(seed) < 2**32):
        raise InputError(f"class_order is {name!r}; the seed must be an integer below 2**32")
    return tuple(np.random.RandomState(int(seed)).permutation(num_classes).tolist())


def task_sizes(increments: int | Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return the number of classes of each task; InputError unless they add up to all classes."""
    if isinstance(increments, (int, np.integer)) and _is_integer(increments):
        return _equal_sizes(int(increments), num_classes)
    sizes = _integers("increments", increments)
    if any(size < 1 for size in sizes):
        raise InputError(f"increments is {list(sizes)[:20]}; every task needs at least 1 class")
    if sum(sizes) != num_classes:
        raise InputError(
            f"increments is {list(sizes)[:20]}, together {sum(sizes)} classes; "
            f"the data set has {num_classes}"
        )
    return sizes


def _equal_sizes(size: int, num_classes: int) -> tuple[int, ...]:
    if not 1 <= size <= num_classes:
        raise InputError(
            f"increments is {size}; it must be from 1 to the {num_classes} classes of the data set"
        )
    count, rest = divmod(num_classes, size)
    if rest:
        raise InputError(
            f"increments is {size}, which does not divide the {num_classes} classes; "
            f"give a list, such as {[size] * count + [rest]}"
        )
    return (size,) * count


def _integers(name: str, values: object) -> tuple[int, ...]:
    """Return a sequence, array or tensor of whole numbers as a tuple."""
    listed: object = plain_tensor(values, name) if isinstance(values, Tensor) else values
    listed = listed.tolist() if isinstance(listed, (np.ndarray, Tensor)) else listed
    if not isinstance(listed, Sequence) or not all(map(_is_integer, listed)):
        raise InputError(f"{name} is {values!r}; it must be integers")
    return tuple(int(value) for value in listed)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
