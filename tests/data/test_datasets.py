from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped,unused-ignore]

from gradmix.data import DATASETS, DataSet, from_arrays, load_dataset
from gradmix.errors import InputError, UnknownNameError
from gradmix.types import Samples


def images(count: int) -> torch.Tensor:
    return torch.arange(count * 4, dtype=torch.uint8).reshape(count, 1, 2, 2)


NUMPY: Any = images(2).numpy()


def toy(count: int = 6) -> DataSet:
    y = torch.arange(count) % 3
    return DataSet(
        "toy", Samples(images(count), y), Samples(images(3), y[:3]), ("a", "b", "c"), (0.0,), (1.0,)
    )


def test_hold_out_takes_the_last() -> None:
    data = toy().hold_out(2)
    assert data.validation is not None
    assert torch.equal(data.train.x, images(6)[:4])
    assert torch.equal(data.validation.x, images(6)[4:])
    assert data.train.y.tolist() == [0, 1, 2, 0]
    assert data.validation.y.tolist() == [1, 2]


def test_hold_out_of_sorted_samples_takes_the_last_of_each_class() -> None:
    samples = Samples(images(9), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2]))
    data = replace(toy(), train=samples).hold_out(4)
    assert data.validation is not None
    assert data.validation.y.tolist() == [0, 0, 1, 2]
    assert torch.equal(data.validation.x, images(9)[[2, 3, 5, 8]])
    assert torch.equal(data.train.x, images(9)[[0, 1, 4, 6, 7]])
    assert data.train.y.tolist() == [0, 0, 1, 2, 2]


def test_hold_out_nothing() -> None:
    data = toy().hold_out(0)
    assert data.validation is None
    assert len(data.train.y) == 6


@pytest.mark.parametrize("count", [-1, 6, 7, 1.5, True])
def test_hold_out_refuses(count: Any) -> None:
    message = f"validation is {count}; it must be an integer from 0 to 5"
    with pytest.raises(InputError, match=message):
        toy().hold_out(count)


def test_hold_out_twice_is_refused() -> None:
    with pytest.raises(InputError, match="2 samples are already held out"):
        toy().hold_out(2).hold_out(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train": Samples(images(6).float(), torch.arange(6) % 3)},
            "train.x is torch.float32 of shape",
        ),
        ({"train": Samples(images(6)[:, 0], torch.arange(6) % 3)}, r"train.x is .* \(6, 2, 2\)"),
        ({"train": Samples(images(6), torch.arange(5) % 3)}, "train.y has 5 labels and train.x 6"),
        ({"train": Samples(images(6), torch.zeros(6))}, "train.y is torch.float32"),
        ({"train": Samples(images(0), torch.arange(0))}, "train.y is empty"),
        ({"train": Samples(NUMPY, torch.arange(2))}, "train.x is a ndarray"),
        ({"test": Samples(images(3), torch.tensor([0, 3, 1]))}, "test.y holds label 3 in row 1"),
        ({"test": Samples(images(3), torch.tensor([0, 1, -1]))}, "label -1 in row 2; .* 0 to 2"),
        (
            {"test": Samples(images(3).repeat(1, 3, 1, 1), torch.arange(3))},
            "test.x .* the same form",
        ),
        ({"validation": Samples(images(1), torch.tensor([9]))}, "validation.y holds label 9"),
        ({"mean": (0.0, 0.0)}, r"mean is \(0.0, 0.0\); it must be 1 finite"),
        ({"std": (math.nan,)}, "std is .*nan"),
        ({"std": (0.0,)}, "std is .* above zero"),
    ],
)
def test_bad_parts_are_refused_at_construction(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(toy(), **change)


def test_digits() -> None:
    data = load_dataset("digits")
    source = load_digits()
    assert data.train.x.shape == (1442, 1, 8, 8)
    assert data.test.x.shape == (355, 1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.max() == 16
    assert data.class_names == tuple("0123456789")
    # the first test samples are the fifth of their class
    positions = [np.flatnonzero(source.target == label)[4] for label in range(10)]
    first = min(positions)
    assert np.array_equal(data.test.x[0, 0].numpy(), source.images[first])
    assert data.test.y[0] == source.target[first]
    counts = np.bincount(source.target)
    assert torch.bincount(data.test.y).tolist() == (counts // 5).tolist()
    train = data.train.x.double()
    assert data.mean[0] == pytest.approx(float(train.mean()))
    assert data.std[0] == pytest.approx(float(train.std(correction=0)))


@pytest.mark.parametrize(
    ("name", "labels", "pixel_sum", "mean", "std"),
    [
        ("mnist", [5, 0, 4, 1, 9, 2, 1, 3], 27525, 0.1307, 0.3081),
        ("fashion-mnist", [9, 0, 0, 3, 0, 2, 7, 2], 76247, 0.2860, 0.3530),
    ],
)
def test_real_files(
    use_real: Callable[[str], None],
    name: str,
    labels: list[int],
    pixel_sum: int,
    mean: float,
    std: float,
) -> None:
    use_real(name)
    data = load_dataset(name)
    assert data.name == name
    assert data.train.x.shape == (60000, 1, 28, 28)
    assert data.test.x.shape == (10000, 1, 28, 28)
    assert data.train.y.dtype == torch.int64
    assert data.train.y[:8].tolist() == labels
    assert int(data.train.x[0].sum()) == pixel_sum
    assert torch.bincount(data.test.y).tolist()[9] == (1009 if name == "mnist" else 1000)
    assert (data.mean, data.std) == ((mean * 255,), (std * 255,))
    computed = from_arrays(data.train.x, data.train.y, data.test.x, data.test.y)
    assert computed.mean[0] == pytest.approx(mean * 255, rel=1e-3)
    assert computed.std[0] == pytest.approx(std * 255, rel=1e-3)


def test_fashion_names() -> None:
    from gradmix.data.binary import _FASHION_NAMES

    assert _FASHION_NAMES[0] == "T-shirt/top"
    assert _FASHION_NAMES[9] == "Ankle boot"
    assert len(_FASHION_NAMES) == 10


def test_registry_suggests() -> None:
    assert list(DATASETS) == [
        *("digits", "mnist", "fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet"),
        "imagenet",
    ]
    with pytest.raises(UnknownNameError, match="did you mean 'fashion-mnist'"):
        load_dataset("fashion_mnist")


def test_from_numpy_images_without_channels() -> None:
    x = np.zeros((2, 1, 4), dtype=np.uint8)
    x[1] = 10
    data = from_arrays(x, [0, 1], x[:1], np.array([1], dtype=np.uint8))
    assert data.train.x.shape == (2, 1, 1, 4)
    assert data.train.y.dtype == data.test.y.dtype == torch.int64
    assert (data.mean, data.std) == ((5.0,), (5.0,))
    assert data.class_names == ("0", "1")
    x[:] = 99
    assert int(data.train.x.max()) == 10  # a copy


def test_constant_channel_gets_a_std_of_one() -> None:
    x = torch.zeros(2, 3, 1, 1, dtype=torch.uint8)
    x[:, 1] = 7
    x[1, 2] = 4
    data = from_arrays(x, [0, 1], x, [0, 1], class_names=["a", "b"], name="mine")
    assert (data.mean, data.std) == ((0.0, 7.0, 2.0), (1.0, 1.0, 2.0))
    assert (data.name, data.class_names) == ("mine", ("a", "b"))


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.int64),
        lambda x: x / 255,
        lambda x: x.transpose(0, 2, 3, 1),
        lambda x: torch.from_numpy(x).half() / 255,
    ],
)
def test_every_form_of_the_same_images(convert: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 7), dtype=np.uint8)
    assert np.array_equal(from_arrays(convert(x), [0, 1, 2], x, [0, 1, 2]).train.x, x)


def test_rows_become_float32_with_statistics_per_column() -> None:
    x = np.array([[1.0, 0.1], [3.0, 0.1]], dtype=">f8")
    data = from_arrays(x, [0, 1], x, [0, 1])
    assert data.train.x.dtype == torch.float32
    assert data.mean == pytest.approx((2.0, 0.1))
    assert data.std == (1.0, 1.0)


X = np.zeros((3, 2, 2), dtype=np.uint8)
ROWS = np.zeros((3, 2), dtype=np.float32)
BAD_ROWS = np.array([[0, 0], [0, math.nan], [math.inf, 0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (BAD_ROWS, [0, 1, 2], "x_train holds nan in row 1; every value must be finite"),
        (BAD_ROWS[[0, 2]], [0, 1], "x_train holds inf in row 1"),
        (np.full((1, 2), 1e300), [0], "x_train holds 1e\\+300; values must fit float32"),
        (np.full((3, 2, 2), math.nan), [0, 1, 2], "x_train contains NaN or infinity; replace"),
        (X.astype(np.int64) + 256, [0, 1, 2], "x_train is int64 .* images are bytes"),
        (X.astype(np.float32) + 0.3, [0, 1, 2], r"\(x \* 255\).round"),
        (np.zeros((3, 2, 8, 8), dtype=np.uint8), [0, 1, 2], "have 1, 3 or 4 channels"),
        (X[0], [0, 1], r"rows are floats \(N, d\)"),
        ([[0.0], [1.0, 2.0]], [0, 1], "x_train is not a rectangular array"),
        (X, [0, 1], "y_train has 2 labels and x_train 3 samples"),
        (X, [0.0, 1.0, 2.0], "y_train is of type float64, such as .*0.0.*must be integers"),
        (X, ["cat", "dog", "cow"], "y_train is of type <U3, .*names belong into class_names"),
        (X, [True, False, True], "y_train is of type bool"),
        (X, [0, -1, 2], "y_train holds label -1 in row 1; with 3 classes"),
        (X, [[0], [1], [2]], r"y_train is torch.int64 of shape \(3, 1\)"),
        (X, 0, r"y_train is torch.int64 of shape \(\)"),
        (X[:0], np.zeros(0, dtype=int), "at least one"),
        (ROWS[:0], np.zeros(0, dtype=int), "y_train is empty"),
    ],
)
def test_bad_arrays_are_refused(x: Any, y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_arrays(x, y, ROWS, [0, 1, 2])


def test_unknown_test_label_is_refused() -> None:
    with pytest.raises(InputError, match="y_test holds label 5 in row 0; with 3 classes"):
        from_arrays(ROWS, [0, 1, 2], ROWS, [5, 0, 0])


def test_label_beyond_the_names_is_refused() -> None:
    with pytest.raises(InputError, match="y_train holds label 2 in row 2; with 2 classes"):
        from_arrays(ROWS, [0, 1, 2], ROWS, [0, 0, 0], class_names=["a", "b"])
