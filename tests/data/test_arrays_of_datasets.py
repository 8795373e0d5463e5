from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from gradmix.data import from_dataset
from gradmix.errors import InputError

BYTES = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
X = torch.from_numpy(BYTES.transpose(0, 3, 1, 2).copy())


class Items(list[Any]):
    """Has a length and items, as a map-style dataset."""


def test_tensors_are_kept() -> None:
    train = TensorDataset(X, torch.tensor([0, 1, 2, 1]))
    data = from_dataset(train, Subset(train, [2, 0]), name="mine")
    assert torch.equal(data.train.x, X)
    assert torch.equal(data.test.x, X[[2, 0]])
    assert data.train.y.tolist() == [0, 1, 2, 1]
    assert data.test.y.tolist() == [2, 0]
    assert (data.name, data.class_names) == ("mine", ("0", "1", "2"))
    assert data.mean == pytest.approx(X.double().mean(dim=(0, 2, 3)).tolist())


@pytest.mark.parametrize(
    ("convert", "expected"),
    [
        (lambda k: BYTES[k], X),
        (lambda k: BYTES[k].transpose(2, 0, 1), X),
        (lambda k: torch.from_numpy(BYTES[k]), X),
        (lambda k: X[k].int(), X),
        (lambda k: BYTES[k, ::-1], X.flip(2)),
        (lambda k: BYTES[k, :, :, 0], X[:, :1]),
        (lambda k: X[k, 0], X[:, :1]),
        (lambda k: Image.fromarray(BYTES[k]), X),
        (lambda k: Image.fromarray(BYTES[k, :, :, 0]), X[:, :1]),
        (lambda k: Image.fromarray(BYTES[k]).convert("RGBA"), X),
        (lambda k: X[k].float() / 255, X),
        (lambda k: X[k].double().div(255).numpy().transpose(1, 2, 0), X),
    ],
)
def test_every_kind_of_image(convert: Any, expected: torch.Tensor) -> None:
    items = Items((convert(k), np.int64(k % 2)) for k in range(4))
    data = from_dataset(items, items)  # type: ignore[arg-type]
    assert data.train.x.dtype == torch.uint8
    assert torch.equal(data.train.x, expected)
    assert data.train.y.tolist() == [0, 1, 0, 1]


def test_rows() -> None:
    rows = torch.tensor([[0.5, 2.0], [1.5, -1.0]])
    data = from_dataset(TensorDataset(rows, torch.tensor([0, 1])), Items([(rows[0], 1)]))  # type: ignore[arg-type]
    assert torch.equal(data.train.x, rows)


def test_names_of_the_dataset() -> None:
    items = Items((X[k], k) for k in range(2))
    items.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    assert from_dataset(items, items).class_names == ("cat", "dog")  # type: ignore[arg-type]
    named = from_dataset(items, items, class_names=["a", "b", "c"])  # type: ignore[arg-type]
    assert named.class_names == ("a", "b", "c")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Endless(), "train is a Endless; it must be a map-style dataset"),
        (Items(), "train is empty"),
        (Items([X[0]]), r"train\[0\] is a Tensor; it must be a pair"),
        (Items([(X[0], 0), (X[1], 1.0)]), r"train\[1\] has the label 1.0"),
        (Items([(X[0], True)]), "has the label True"),
        (Items([(X[0], "cat")]), "has the label 'cat'"),
        (Items([("cat.png", 0)]), "has an image of type str"),
        (Items([(X[0], 0), (X[1, :, :3], 0)]), r"train\[1\] is .* \(3, 3, 5\) and train\[0\]"),
        (Items([(X[0].int() + 256, 0)]), "int32 .* images are bytes"),
        (Items([(X[0].float(), 0)]), r"divided by 255; leave out .* bytes: x\.round\(\)"),
        (
            Items([((X[0].float() - 128) / 64, 0)]),
            "divided by 255; leave out transforms.*Normalize$",
        ),
        (Items([(torch.rand(3, 4, 4), 0)]), r"divided by 255; .* bytes: \(x \* 255\)\.round\(\)"),
        (Items([(torch.full((3, 4, 4), torch.nan), 0)]), "contains NaN or infinity"),
        (Items([(Image.new("F", (4, 4)), 0)]), r"train\[0\]: its pixels have mode 'F'"),
        (Items([(X[0], -1)]), "y_train holds label -1"),
    ],
)
def test_bad_datasets_are_refused(train: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_dataset(train, Items([(X[0], 0)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_every_byte_returns_from_floats(kind):
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    items = Items([((every.double() / 255).to(kind), 0)])
    data = from_dataset(items, items)
    assert torch.equal(data.train.x[0], every)
