"""The tasks of a caller as a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradmix.data.arrays import MOST_CLASSES
from gradmix.data.datasets import check_alike, check_samples, complete_statistics
from gradmix.data.tasks import Benchmark
from gradmix.errors import InputError
from gradmix.types import Samples, Task


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
