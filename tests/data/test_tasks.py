from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.data import (
    DataSet,
    benchmark_from_tasks,
    from_arrays,
    split_into_tasks,
)
from gradmix.data.datasets import digits
from gradmix.errors import InputError, UnknownNameError
from gradmix.types import Samples

LABELS = [3, 1, 0, 2, 1, 3, 0, 2]


def toy(labels: list[int] | None = None, num_classes: int = 4) -> DataSet:
    """Rows whose one value is their position in the file."""
    y = LABELS if labels is None else labels
    x = np.arange(len(y), dtype=np.float32)[:, None]
    test = np.arange(num_classes, dtype=np.float32)[:, None]
    names = [f"class {label}" for label in range(num_classes)]
    return from_arrays(x, y, test, list(range(num_classes)), class_names=names, name="toy")


def test_labels_are_renumbered_by_arrival() -> None:
    result = split_into_tasks(toy(), 2, [2, 0, 3, 1])
    first, second = result.tasks
    assert (first.number, second.number) == (1, 2)
    assert (first.classes, second.classes) == ((0, 1), (2, 3))
    assert first.train.x.flatten().tolist() == [2, 3, 6, 7]  # the order of the file
    assert first.train.y.tolist() == [1, 0, 1, 0]
    assert second.train.x.flatten().tolist() == [0, 1, 4, 5]
    assert second.train.y.tolist() == [2, 3, 3, 2]
    assert first.test.x.flatten().tolist() == [0, 2]
    assert first.test.y.tolist() == [1, 0]
    assert result.class_names == ("class 2", "class 0", "class 3", "class 1")
    assert result.class_order == (2, 0, 3, 1)
    assert result.num_classes == 4
    assert (result.name, result.mean, result.std) == ("toy", toy().mean, toy().std)


@given(
    order=st.permutations(range(4)), cuts=st.sampled_from([[4], [1, 3], [2, 1, 1], [1, 1, 1, 1]])
)
def test_every_sample_lands_once_with_its_class(order: list[int], cuts: list[int]) -> None:
    result = split_into_tasks(toy(), cuts, order)
    assert [len(task.classes) for task in result.tasks] == cuts
    found = {}
    for task in result.tasks:
        assert set(task.train.y.tolist()) == set(task.classes)
        for x, y in zip(task.train.x.flatten().tolist(), task.train.y.tolist(), strict=True):
            assert x not in found
            found[int(x)] = result.class_order[y]
    assert [found[row] for row in range(len(LABELS))] == LABELS


def test_validation_stands_in_for_test() -> None:
    data = toy().hold_out(4)
    task = split_into_tasks(data, 4, evaluate_on="validation").tasks[0]
    assert task.test.x.flatten().tolist() == [4, 5, 6, 7]
    assert task.train.x.flatten().tolist() == [0, 1, 2, 3]


def test_validation_must_be_held_out() -> None:
    with pytest.raises(InputError, match=r"data.hold_out\(validation\) first"):
        split_into_tasks(toy(), 4, evaluate_on="validation")
    with pytest.raises(UnknownNameError, match="did you mean 'test'"):
        split_into_tasks(toy(), 4, evaluate_on="tset")  # type: ignore[arg-type]


def test_class_without_training_samples() -> None:
    with pytest.raises(InputError, match=r"no training samples of \['class 2'\]: an empty task"):
        split_into_tasks(toy([0, 1, 3]), 2)


def test_task_without_test_samples() -> None:
    x = np.zeros((2, 1), dtype=np.float32)
    data = from_arrays(x, [0, 1], x[:1], [0])
    with pytest.raises(InputError, match=r"task 2 has no samples to evaluate classes \[1\] on"):
        split_into_tasks(data, 1)


def test_every_class_needs_something_to_be_evaluated_on() -> None:
    data = digits()
    chosen = data.test.y != 3
    less = replace(data, test=Samples(data.test.x[chosen], data.test.y[chosen]))
    with pytest.raises(InputError, match=r"task 2 has no samples to evaluate classes \[3\] on"):
        split_into_tasks(less, 2)


def rows(*labels: int) -> Samples:
    return Samples(torch.tensor(labels).float()[:, None], torch.tensor(labels, dtype=torch.int32))


def test_own_tasks() -> None:
    own = [(rows(1, 0, 1), rows(0)), (rows(2, 2), rows(2))]
    result = benchmark_from_tasks("own", own, ["a", "b", "c"])
    assert [task.classes for task in result.tasks] == [(0, 1), (2,)]
    assert [task.number for task in result.tasks] == [1, 2]
    assert result.tasks[0].train.y.dtype == torch.int64
    assert result.tasks[0].train.y.tolist() == [1, 0, 1]
    assert result.class_names == ("a", "b", "c")
    assert result.class_order == (0, 1, 2)
    assert result.mean == pytest.approx((1.2,))
    assert result.std == pytest.approx((0.56**0.5,))


def test_own_tasks_with_given_statistics() -> None:
    result = benchmark_from_tasks("own", [(rows(0, 1), rows(0))], mean=[3.0], std=[2.0])
    assert (result.mean, result.std, result.class_names) == ((3.0,), (2.0,), ("0", "1"))
    with pytest.raises(InputError, match=r"mean is \[3.0, 1.0\]; it must be 1 finite"):
        benchmark_from_tasks("own", [(rows(0, 1), rows(0))], mean=[3.0, 1.0])


WIDE = Samples(torch.zeros(1, 2), torch.tensor([1]))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "at least one task"),
        ([(rows(), rows(0))], r"tasks\[0\] has no train samples"),
        ([(rows(0), rows())], r"tasks\[0\] has no test samples"),
        ([(rows(0, 1), rows(0)), (rows(1, 2), rows(2))], r"tasks\[1\] holds \[1\] .* two tasks"),
        ([(rows(0, 2), rows(0))], r"holds classes \[0, 2\]; .* must be \[0, 1\]"),
        ([(rows(1), rows(1))], r"holds classes \[1\]; .* must be \[0\]"),
        ([(rows(0), rows(0)), (rows(1), rows(0))], r"tests on \[0\], .* not among its \[1\]"),
        ([(rows(-1), rows(0))], r"tasks\[0\] train.y holds label -1"),
        ([(rows(0), rows(0)), (WIDE, WIDE)], r"tasks\[1\] is .* the same form"),
        ([(Samples(torch.zeros(1, 1), torch.zeros(1)), rows(0))], "train.y is torch.float32"),
    ],
)
def test_bad_own_tasks(tasks: list[tuple[Samples, Samples]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        benchmark_from_tasks("own", tasks)


def test_own_names_must_fit() -> None:
    with pytest.raises(InputError, match="class_names has 1 names; the tasks hold 2"):
        benchmark_from_tasks("own", [(rows(0, 1), rows(0))], ["a"])


def test_a_share_of_each_class_arrives_in_the_other_tasks():
    plain, blurry = split_into_tasks(digits(), 2), split_into_tasks(digits(), 2, blur=0.2)
    assert blurry.scenario == "blurry"
    sizes = torch.stack([task.train.y.bincount(minlength=10) for task in blurry.tasks])  # (5, 10)
    totals = torch.cat([task.train.y for task in plain.tasks]).bincount()
    assert torch.equal(sizes.sum(dim=0), totals)  # nothing is lost or doubled
    for label in range(10):
        own = sizes[label // 2, label]
        others = sizes[:, label][torch.arange(5) != label // 2]
        assert int(totals[label] - own) == round(0.2 * int(totals[label]))
        assert int(others.max() - others.min()) <= 1
    for task, expected in zip(blurry.tasks, plain.tasks, strict=True):
        assert task.classes == tuple(range(10))
        assert torch.equal(task.test.y, expected.test.y)  # tested on its own classes


def test_the_seed_decides_which_samples_are_blurred():
    one, same, other = (split_into_tasks(digits(), 5, blur=0.1, seed=s).tasks[0] for s in (0, 0, 1))
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.train.x, other.train.x)


@pytest.mark.parametrize("blur", [-0.1, 1, float("nan")])
def test_a_blur_that_is_no_share_is_refused(blur):
    with pytest.raises(InputError, match=r"blur is .*; it must be a share"):
        split_into_tasks(digits(), 2, blur=blur)


def test_a_single_task_cannot_be_blurred():
    with pytest.raises(InputError, match="there is one task"):
        split_into_tasks(digits(), 10, blur=0.1)


def test_own_tasks_may_share_classes_in_other_scenarios():
    def samples(*labels):
        return Samples(torch.zeros(len(labels), 2), torch.tensor(labels))

    tasks = [
        (samples(0, 1), samples(0, 1)),
        (samples(1, 2, 0), samples(2)),
        (samples(2), samples(2)),
    ]
    with pytest.raises(InputError, match=r"tasks\[1\] holds \[0, 1\] of an earlier task"):
        benchmark_from_tasks("own", tasks)
    benchmark = benchmark_from_tasks("own", tasks, scenario="blurry")
    assert [task.classes for task in benchmark.tasks] == [(0, 1), (0, 1, 2), (2,)]
    assert benchmark.num_classes == 3
    with pytest.raises(InputError, match=r"numbered by arrival they must be \[2\]"):
        benchmark_from_tasks("own", [tasks[0], (samples(3), samples(3))], scenario="blurry")
