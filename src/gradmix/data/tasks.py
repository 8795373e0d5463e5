"""Splits of a data set into tasks: which classes arrive when, and under which labels.

From here on, label k means the k-th class to arrive. Three scenarios:

    class-incremental    every task has classes of its own
    blurry               the same, but a share of each class arrives in the other tasks
    domain-incremental   every task has all classes, with other data, from `domains.py`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gradmix._setting_types import is_whole
from gradmix.data.arrays import MOST_CLASSES, as_array
from gradmix.data.datasets import DataSet, check_alike, check_samples, complete_statistics
from gradmix.errors import InputError, UnknownNameError
from gradmix.randomness import RandomStreams
from gradmix.types import Samples, Task


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Tasks in order of arrival, numbered from 1, and the meaning of their labels.

    Label k is the k-th class to arrive. Its name is `class_names[k]`, and its label in the data
    set was `class_order[k]`. Except in the scenario class-incremental, tasks may share classes.
    """

    name: str
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]  # in order of arrival
    class_order: tuple[int, ...]  # original label of each arriving class
    mean: tuple[float, ...]  # per channel, in the units of x
    std: tuple[float, ...]
    scenario: str = "class-incremental"

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
    blur: float = 0.0,
    seed: int = 0,
) -> Benchmark:
    """Return a data set split into tasks of classes that arrive together.

    Samples keep their order within a task.

    Args:
        data: The data set.
        increments: Classes per task: one number for all tasks, or one per task.
        class_order: The order in which classes arrive; see `resolve_class_order`.
        evaluate_on: "validation" evaluates on the samples that `DataSet.hold_out` set aside.
        blur: Share of the training samples of each class that arrives in the other tasks, spread
            evenly, as in Bang et al. (Rainbow Memory, CVPR 2021). Above 0 the scenario is blurry. A
            task is always tested on the classes of its increment.
        seed: Seed of the draw of these samples.

    Raises:
        InputError: The increments or the order do not fit the classes, or a class has no samples.

    Example:
        >>> from gradmix.data import digits
        >>> benchmark = split_into_tasks(digits(), 2, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
        >>> len(benchmark.tasks), benchmark.class_names[:2], benchmark.tasks[1].classes
        (5, ('9', '8'), (2, 3))
        >>> blurry = split_into_tasks(digits(), 2, blur=0.1)
        >>> blurry.tasks[0].classes, blurry.tasks[0].test.y.unique().tolist()
        ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), [0, 1])
    """
    if not 0 <= blur < 1:
        raise InputError(f"blur is {blur!r}; it must be a share from 0 to below 1")
    sizes = torch.tensor(_task_sizes(increments, len(data.class_names)))
    order, train, test = in_order(data, class_order, evaluate_on)
    task_of_class = torch.arange(len(sizes)).repeat_interleave(sizes)
    arrives, tested = task_of_class[train.y], task_of_class[test.y]  # task of each sample, (N,)
    if blur:
        arrives = _blurred(arrives, train.y, len(sizes), blur, seed)
    tasks = []
    for task in range(len(sizes)):
        new, held = (
            Samples(x[own == task], y[own == task])
            for (x, y), own in ((train, arrives), (test, tested))
        )
        expected = (task_of_class == task).nonzero().flatten().tolist()
        missing = sorted(set(expected) - set(held.y.tolist()))
        if missing:
            raise InputError(
                f"task {task + 1} has no samples to evaluate classes {missing} on; every class "
                "needs test samples, or validation samples with evaluate_on='validation'"
            )
        tasks.append(Task(task + 1, tuple(new.y.unique().tolist()), new, held))
    return as_benchmark(data, order, tasks, "blurry" if blur else "class-incremental")


def as_benchmark(
    data: DataSet, order: tuple[int, ...], tasks: list[Task], scenario: str
) -> Benchmark:
    """Return tasks of a data set as a benchmark."""
    names = tuple(data.class_names[label] for label in order)
    return Benchmark(data.name, tuple(tasks), names, order, data.mean, data.std, scenario)


def in_order(
    data: DataSet, class_order: str | Sequence[int], evaluate_on: str
) -> tuple[tuple[int, ...], Samples, Samples]:
    """Return the class order, and training and evaluation samples with labels in this order."""
    order = resolve_class_order(class_order, len(data.class_names))
    counts = torch.bincount(data.train.y.long(), minlength=len(data.class_names))
    empty = [data.class_names[label] for label in (counts == 0).nonzero().flatten().tolist()]
    if empty:
        raise InputError(f"data has no training samples of {empty}: an empty task or class")
    if evaluate_on not in ("test", "validation"):
        raise UnknownNameError("part to evaluate on", evaluate_on, ["test", "validation"])
    test = data.test if evaluate_on == "test" else data.validation
    if test is None:
        raise InputError(
            "evaluate_on is 'validation', but no samples are held out; "
            "call data.hold_out(validation) first"
        )
    arrival = torch.empty(len(order), dtype=torch.int64)
    arrival[list(order)] = torch.arange(len(order))  # arrival[original label] = new label
    train = Samples(data.train.x, arrival[data.train.y.long()])
    return order, train, Samples(test.x, arrival[test.y.long()])


def _blurred(arrives: Tensor, labels: Tensor, tasks: int, share: float, seed: int) -> Tensor:
    """Return the task of each sample after a share of each class has moved to the other tasks."""
    if tasks == 1:
        raise InputError(f"blur is {share}, but there is one task; give smaller increments")
    arrives, generator = arrives.clone(), RandomStreams(seed).device("blur")
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        count = min(round(share * len(rows)), len(rows) - 1)  # one sample stays at least
        moved = rows[torch.randperm(len(rows), generator=generator)[:count]]
        others = torch.tensor([task for task in range(tasks) if task != arrives[rows[0]]])
        start = label % len(others)  # classes with few samples begin with different tasks
        arrives[moved] = others[(torch.arange(count) + start) % len(others)]
    return arrives


def benchmark_from_tasks(
    name: str,
    tasks: Sequence[tuple[Samples, Samples]],
    class_names: Sequence[str] | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    scenario: Literal["class-incremental", "domain-incremental", "blurry"] = "class-incremental",
) -> Benchmark:
    """Return a benchmark from (train, test) samples of each task.

    Args:
        name: Name of the benchmark.
        tasks: A pair of Samples per task. Labels follow the arrival of classes: the first task
            has classes 0 to k-1, the second starts at k.
        class_names: One name per class. Default: "0", "1", ….
        mean: Per channel or column. Default: computed from all training samples.
        std: The standard deviation, like `mean`.
        scenario: Except in "class-incremental", tasks may have classes of earlier tasks.

    Raises:
        InputError: Samples or labels do not have this form.
    """
    if not isinstance(tasks, (list, tuple)) or not tasks:
        raise InputError(f"tasks is {tasks!r}; it must be a list with at least one task")
    made: list[Task] = []
    num_classes = 0
    for number, task in enumerate(tasks, start=1):
        try:
            train, test = (Samples(*part) for part in task)
        except (TypeError, ValueError):
            raise InputError(
                f"tasks[{number - 1}] must be a pair of Samples(x, y): training and test samples"
            ) from None
        made.append(_own_task(number, train, test, num_classes, scenario != "class-incremental"))
        num_classes = max(num_classes, made[-1].classes[-1] + 1)
    for task in made:
        for x in (task.train.x, task.test.x):
            check_alike(f"tasks[{task.number - 1}]", x, "tasks[0]", made[0].train.x)
    names = tuple(map(str, range(num_classes)) if class_names is None else class_names)
    if len(names) != num_classes:
        raise InputError(f"class_names has {len(names)} names; the tasks hold {num_classes}")
    statistics = complete_statistics(mean, std, *(task.train.x for task in made))
    return Benchmark(name, tuple(made), names, tuple(range(num_classes)), *statistics, scenario)


def _own_task(number: int, train: Samples, test: Samples, seen: int, shared: bool) -> Task:
    """Return a checked task of a caller; `seen` classes arrived before and may be `shared`."""
    where = f"tasks[{number - 1}]"
    for part, samples in (("train", train), ("test", test)):
        check_samples(samples, MOST_CLASSES, f"{where} {part}.x", f"{where} {part}.y")
        if len(samples.y) == 0:
            raise InputError(f"{where} has no {part} samples; a task must not be empty")
    classes = tuple(sorted(set(train.y.tolist())))
    repeated = [label for label in classes if label < seen]
    if repeated and not shared:
        raise InputError(
            f"{where} holds {repeated} of an earlier task: a class in two tasks; give another "
            "scenario, such as 'domain-incremental'"
        )
    new = [label for label in classes if label >= seen]
    if new != list(range(seen, seen + len(new))):
        raise InputError(
            f"{where} holds classes {new}; numbered by arrival they must be "
            f"{list(range(seen, seen + len(new)))}"
        )
    strangers = sorted(set(test.y.tolist()) - set(classes))
    if strangers:
        raise InputError(f"{where} tests on {strangers}, which are not among its {list(classes)}")
    return Task(number, classes, *(Samples(x, y.long()) for x, y in (train, test)))


# --- the order of the classes, and their number in each task --------------------------------------


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
        if class_order == "natural":
            return tuple(range(num_classes))
        kind, _, seed = class_order.partition(":")
        if kind != "seed":
            raise UnknownNameError("class order", class_order, ["natural", "seed:1993"])
        if not (seed.isascii() and seed.isdigit() and len(seed) <= 10 and int(seed) < 2**32):
            raise InputError(
                f"class_order is {class_order!r}; the seed must be an integer below 2**32"
            )
        return tuple(np.random.RandomState(int(seed)).permutation(num_classes).tolist())
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


def _task_sizes(increments: int | Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return the number of classes of each task; InputError unless they add up to all classes."""
    if is_whole(increments):
        size = int(increments)
        if not 1 <= size <= num_classes:
            raise InputError(
                f"increments is {size}; it must be from 1 to the {num_classes} classes"
            )
        count, rest = divmod(num_classes, size)
        if rest:
            raise InputError(
                f"increments is {size}, which does not divide the {num_classes} classes; "
                f"give a list, such as {[size] * count + [rest]}"
            )
        return (size,) * count
    sizes = _integers("increments", increments)
    if any(size < 1 for size in sizes):
        raise InputError(f"increments is {list(sizes)[:20]}; every task needs at least 1 class")
    if sum(sizes) != num_classes:
        raise InputError(
            f"increments is {list(sizes)[:20]}, together {sum(sizes)} classes; "
            f"the data set has {num_classes}"
        )
    return sizes


def _integers(name: str, values: object) -> tuple[int, ...]:
    """Return a sequence, array or tensor of whole numbers as a tuple."""
    listed: object = values
    if isinstance(values, (np.ndarray, Tensor)):
        listed = as_array(values, name).tolist()
    if not isinstance(listed, Sequence) or not all(map(is_whole, listed)):
        raise InputError(f"{name} is {values!r}; it must be integers")
    return tuple(map(int, listed))
