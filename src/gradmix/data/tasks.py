"""Splits of a data set into tasks: which classes arrive when, and under which labels.

From here on, label k means the k-th class to arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gradmix.data.arrays import MOST_CLASSES, plain_tensor
from gradmix.data.datasets import DataSet, channel_statistics, check_samples, check_statistics
from gradmix.errors import InputError, UnknownNameError
from gradmix.types import Samples, Task


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Tasks in order of arrival, numbered from 1, and the meaning of their labels.

    Label k is the k-th class to arrive. Its name is `class_names[k]`, and its label in the data
    set was `class_order[k]`.
    """

    name: str
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]  # in order of arrival
    class_order: tuple[int, ...]  # original label of each arriving class
    mean: tuple[float, ...]  # per channel, in the units of x
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes in all tasks."""
        return len(self.class_order)


def split_into_tasks(
    data: DataSet,
    increments: int | Sequence[int],
    class_order: str | Sequence[int] = "natural",
    *,
    evaluate_on: Literal["test", "validation"] = "test",
) -> Benchmark:
    """Return a data set split into tasks of classes that arrive together.

    Samples keep their order within a task.

    Args:
        data: The data set.
        increments: Classes per task: one number for all tasks, or one per task.
        class_order: The order in which classes arrive; see `resolve_class_order`.
        evaluate_on: "validation" evaluates on the samples that `DataSet.hold_out` set aside.

    Raises:
        InputError: The increments or the order do not fit the classes, or a class has no samples.

    Example:
        >>> from gradmix.data import digits
        >>> benchmark = split_into_tasks(digits(), 2, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
        >>> len(benchmark.tasks), benchmark.class_names[:2], benchmark.tasks[1].classes
        (5, ('9', '8'), (2, 3))
    """
    order = resolve_class_order(class_order, len(data.class_names))
    sizes = _task_sizes(increments, len(order))
    _check_every_class_trains(data)
    arrival = torch.empty(len(order), dtype=torch.int64)
    arrival[list(order)] = torch.arange(len(order))  # arrival[original label] = new label
    parts = [data.train, _evaluation_samples(data, evaluate_on)]
    train, test = (Samples(x, arrival[y.long()]) for x, y in parts)
    stops = list(accumulate(sizes))
    ranges = [range(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
    tasks = [
        Task(number, tuple(classes), _only(train, classes), _only(test, classes))
        for number, classes in enumerate(ranges, start=1)
    ]
    _check_every_task_tests(tasks)
    names = tuple(data.class_names[label] for label in order)
    return Benchmark(data.name, tuple(tasks), names, order, data.mean, data.std)


def benchmark_from_tasks(
    name: str,
    tasks: Sequence[tuple[Samples, Samples]],
    class_names: Sequence[str] | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Benchmark:
    """Return a benchmark from (train, test) samples of each task.

    Args:
        name: Name of the benchmark.
        tasks: A pair of Samples per task. Labels follow the arrival of classes: the first task
            has classes 0 to k-1, the second starts at k.
        class_names: One name per class. Default: "0", "1", ….
        mean: Per channel or column. Default: computed from all training samples.
        std: The standard deviation, like `mean`.

    Raises:
        InputError: Samples or labels do not have this form.
    """
    if not isinstance(tasks, (list, tuple)) or not tasks:
        raise InputError(f"tasks is {tasks!r}; it must be a list with at least one task")
    made: list[Task] = []
    for number, task in enumerate(tasks, start=1):
        seen = made[-1].classes[-1] + 1 if made else 0
        made.append(_own_task(number, *_pair(task, f"tasks[{number - 1}]"), seen))
    _check_alike(made)
    num_classes = made[-1].classes[-1] + 1
    names = tuple(map(str, range(num_classes)) if class_names is None else class_names)
    if len(names) != num_classes:
        raise InputError(f"class_names has {len(names)} names; the tasks hold {num_classes}")
    mean, std = _given_or_computed(mean, std, made)
    return Benchmark(name, tuple(made), names, tuple(range(num_classes)), mean, std)


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
    twice = sorted(label for label, count in Counter(order).items() if count > 1)
    if twice:
        raise InputError(f"class_order names {twice} more than once: a class in two tasks")
    unknown = sorted(set(order) - set(range(num_classes)))
    if unknown:
        raise InputError(f"class_order names {unknown}; labels run from 0 to {num_classes - 1}")
    missing = sorted(set(range(num_classes)) - set(order))
    if missing:
        raise InputError(f"class_order lacks {missing}; it must name all {num_classes} classes")
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


def _task_sizes(increments: int | Sequence[int], num_classes: int) -> tuple[int, ...]:
    if isinstance(increments, (int, np.integer)) and _is_integer(increments):
        return _equal_sizes(int(increments), num_classes)
    sizes = _integers("increments", increments)
    if len(sizes) > num_classes:
        raise InputError(
            f"increments has {len(sizes)} tasks, more than the {num_classes} classes; "
            "every task needs a class of its own"
        )
    if any(size < 1 for size in sizes):
        raise InputError(f"increments is {list(sizes)}; every task needs at least 1 class")
    if sum(sizes) != num_classes:
        raise InputError(
            f"increments is {list(sizes)}, together {sum(sizes)} classes; "
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


def _evaluation_samples(data: DataSet, evaluate_on: str) -> Samples:
    if evaluate_on == "test":
        return data.test
    if evaluate_on != "validation":
        raise UnknownNameError("part to evaluate on", evaluate_on, ["test", "validation"])
    if data.validation is None:
        raise InputError(
            "evaluate_on is 'validation', but no samples are held out; "
            "call data.hold_out(validation) first"
        )
    return data.validation


def _only(samples: Samples, classes: range) -> Samples:
    chosen = (samples.y >= classes.start) & (samples.y < classes.stop)
    return Samples(samples.x[chosen], samples.y[chosen])


def _check_every_class_trains(data: DataSet) -> None:
    counts = torch.bincount(data.train.y.long(), minlength=len(data.class_names))
    empty = [data.class_names[label] for label in (counts == 0).nonzero().flatten().tolist()]
    if empty:
        raise InputError(f"data has no training samples of {empty}: an empty task or class")


def _check_every_task_tests(tasks: Iterable[Task]) -> None:
    for task in tasks:
        if len(task.test.y) == 0:
            raise InputError(
                f"task {task.number} (classes {list(task.classes)}) has no samples to evaluate on; "
                "every task needs test samples"
            )
        missing = sorted(set(task.classes) - set(task.test.y.unique().tolist()))
        if missing:
            raise InputError(
                f"task {task.number} has no samples to evaluate classes {missing} on; every class "
                "needs test samples, or validation samples with evaluate_on='validation'"
            )


def _pair(task: object, where: str) -> tuple[Samples, Samples]:
    """Return the training and test samples of a caller's task."""
    if isinstance(task, (tuple, list)) and len(task) == 2:
        train, test = task
        if all(isinstance(part, (tuple, list)) and len(part) == 2 for part in (train, test)):
            return Samples(*train), Samples(*test)
    raise InputError(f"{where} must be a pair of Samples(x, y): training and test samples")


def _own_task(number: int, train: Samples, test: Samples, seen: int) -> Task:
    """Return a checked task of a caller; `seen` classes arrived before."""
    where = f"tasks[{number - 1}]"
    for part, samples in (("train", train), ("test", test)):
        check_samples(samples, MOST_CLASSES, f"{where} {part}.x", f"{where} {part}.y")
        if len(samples.y) == 0:
            raise InputError(f"{where} has no {part} samples; a task must not be empty")
    classes = tuple(sorted(set(train.y.tolist())))
    repeated = [label for label in classes if label < seen]
    if repeated:
        raise InputError(f"{where} holds {repeated} of an earlier task: a class in two tasks")
    if classes != tuple(range(seen, seen + len(classes))):
        raise InputError(
            f"{where} holds classes {list(classes)}; numbered by arrival they must be "
            f"{list(range(seen, seen + len(classes)))}"
        )
    strangers = sorted(set(test.y.tolist()) - set(classes))
    if strangers:
        raise InputError(f"{where} tests on {strangers}, which are not among its {list(classes)}")
    return Task(number, classes, *(Samples(x, y.long()) for x, y in (train, test)))


def _check_alike(tasks: Sequence[Task]) -> None:
    first = tasks[0].train.x
    for task in tasks:
        for x in (task.train.x, task.test.x):
            if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
                raise InputError(
                    f"tasks[{task.number - 1}] holds {x.dtype} samples of shape "
                    f"{tuple(x.shape[1:])}; the first task has {first.dtype} "
                    f"{tuple(first.shape[1:])}; all must have the same form"
                )


def _given_or_computed(
    mean: Sequence[float] | None, std: Sequence[float] | None, tasks: Sequence[Task]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    channels = tasks[0].train.x.shape[1]
    if mean is None or std is None:
        computed = channel_statistics(torch.cat([task.train.x for task in tasks]))
        mean = computed[0] if mean is None else mean
        std = computed[1] if std is None else std
    check_statistics(mean, std, channels)
    return tuple(mean), tuple(std)
