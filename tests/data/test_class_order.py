from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gradmix.data import DataSet, from_arrays, resolve_class_order, split_into_tasks
from gradmix.errors import InputError


def toy() -> DataSet:
    """Four classes with one sample each."""
    x, y = np.arange(4, dtype=np.float32)[:, None], [3, 1, 0, 2]
    return from_arrays(x, y, x, y, name="toy")


def test_seed_1993_is_the_convention_of_the_field() -> None:
    assert resolve_class_order("seed:1993", 10) == (4, 2, 7, 6, 0, 3, 5, 8, 9, 1)
    assert resolve_class_order("seed:1993", 100)[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)


def test_class_orders() -> None:
    assert resolve_class_order("natural", 4) == (0, 1, 2, 3)
    assert resolve_class_order(np.array([1, 0, 2]), 3) == (1, 0, 2)  # type: ignore[arg-type]
    assert resolve_class_order(torch.tensor([1, 0]), 2) == (1, 0)  # type: ignore[arg-type]


def test_class_order_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    resolve_class_order("seed:7", 10)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 1, 2], r"names twice \[1\], lacks \[3\]; it must name each class from 0 to 3 once"),
        ([0, 1, 2], r"class_order lacks \[3\]; it must name each class"),
        ([0, 1, 2, 4], r"has the unknown \[4\], lacks \[3\]"),
        ([0, 1, 2, -1], r"the unknown \[-1\]"),
        ([0, 1, 2, 3.0], "must be integers"),
        (7, "class_order is 7; it must be integers"),
        ("seed:", "the seed must be an integer"),
        ("seed:-1", "the seed must be an integer"),
        ("seed:4294967296", "below 2"),
        ("naturel", "did you mean 'natural'"),
    ],
)
def test_bad_class_orders(order: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_class_order(order, 4)


@pytest.mark.parametrize(
    ("increments", "message"),
    [
        (3, r"3, which does not divide the 4 classes; give a list, such as \[3, 1\]"),
        (0, "increments is 0; it must be from 1 to the 4 classes"),
        (-2, "increments is -2"),
        (5, "increments is 5; it must be from 1 to the 4"),
        ([1] * 5, "together 5 classes; the data set has 4"),
        ([4, 0], r"\[4, 0\]; every task needs at least 1"),
        ([5, -1], "every task needs at least 1"),
        ([2, 1], r"\[2, 1\], together 3 classes; the data set has 4"),
        ([2, 3], "together 5 classes"),
        ([], "together 0 classes"),
        ([2, 2.0], "must be integers"),
        ("22", "increments is '22'; it must be integers"),
        (True, "increments is True"),
        (2.0, "increments is 2.0"),
    ],
)
def test_bad_increments(increments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_into_tasks(toy(), increments)
