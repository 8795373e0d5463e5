"""Arrays and tensors that cannot be samples or labels raise InputError, at every entrance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from gradmix.data import (
    benchmark_from_tasks,
    from_arrays,
    from_dataset,
    load_dataset,
    read_idx,
    split_into_tasks,
)
from gradmix.data.arrays import as_array
from gradmix.errors import DataNotFoundError, GradMixError, InputError
from gradmix.types import Samples

X = np.random.default_rng(0).random((6, 4), dtype=np.float32)
Y = np.array([0, 0, 0, 1, 1, 1])
ROWS, LABELS = torch.from_numpy(X), torch.from_numpy(Y)


class Hostile:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


BAD = {
    "sparse matrix": sparse.csr_matrix(X),
    "sparse array": sparse.coo_array(X),
    "structured": np.zeros(6, dtype=[("a", "f4"), ("b", "u1")]),
    "void": np.zeros((6, 4), "V8"),
    "huge integers": [[10**400] * 4] * 6,
    "large integers": [[10**30] * 4] * 6,
    "objects": np.array([[None] * 4] * 6),
    "text": np.array([["a"] * 4] * 6),
    "dates": np.zeros((6, 4), dtype="M8[D]"),
    "ragged": [[1.0], [1.0, 2.0]],
    "masked": np.ma.masked_array(X, mask=X > 0.5),
    "hostile": Hostile(),
    "None": None,
    "a number": 3,
    "a dict": {},
    "bytes": b"abc",
    "meta tensor": torch.zeros(6, 4, device="meta"),
    "sparse tensor": ROWS.to_sparse(),
    "conjugated tensor": torch.zeros(6, 4, dtype=torch.complex64).conj(),
}
BAD_LABELS = {
    "huge integers": [10**400] * 6,
    "large integers": [10**30] * 6,
    "unsigned": np.array([2**64 - 1] * 6, dtype="u8"),
    "largest integer": [2**63 - 1] * 6,
    "a million million": [10**12] * 6,
    "sparse matrix": sparse.csr_matrix(Y),
    "structured": np.zeros(6, dtype=[("a", "i4")]),
    "meta tensor": torch.zeros(6, dtype=torch.long, device="meta"),
    "sparse tensor": LABELS.to_sparse(),
    "conjugated tensor": torch.zeros(6, dtype=torch.complex64).conj(),
    "two dimensions": Y[None],
    "None": None,
}


class Items(list[Any]):
    """A map-style dataset."""


def images(label: Any = 0) -> Items:
    return Items([(np.zeros((4, 4), dtype=np.uint8), label)] * 3)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_inputs(bad: Any) -> None:
    good = Samples(ROWS, LABELS)
    with pytest.raises(InputError, match="x_train"):
        from_arrays(bad, Y, X, Y)
    with pytest.raises(InputError, match="x_test"):
        from_arrays(X, Y, bad, Y)
    with pytest.raises(InputError, match=r"train\[0\]"):
        from_dataset(Items([(bad, 0)]), images())
    with pytest.raises(InputError, match=r"tasks\[0\] train\.x"):
        benchmark_from_tasks("name", [(Samples(bad, LABELS), good)])
    with pytest.raises(InputError, match=r"tasks\[0\] test\.x"):
        benchmark_from_tasks("name", [(good, Samples(bad, LABELS))])


@pytest.mark.parametrize("bad", BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels(bad: Any) -> None:
    good = Samples(ROWS, LABELS)
    with pytest.raises(InputError, match="y_train"):
        from_arrays(X, bad, X, Y)
    with pytest.raises(InputError, match="y_test"):
        from_arrays(X, Y, X, bad)
    with pytest.raises(InputError, match=r"tasks\[0\] train\.y"):
        benchmark_from_tasks("name", [(Samples(ROWS, bad), good)])
    with pytest.raises(InputError, match=r"tasks\[0\] test\.y"):
        benchmark_from_tasks("name", [(good, Samples(ROWS, bad))])


@pytest.mark.parametrize(
    "label",
    [
        *(10**400, 2**63 - 1, np.uint64(2**64 - 1), torch.tensor(1, device="meta"), None, 1.0),
        np.zeros((), dtype=[("a", "i4")]),
    ],
)
def test_bad_labels_of_a_dataset(label: Any) -> None:
    with pytest.raises(InputError):
        from_dataset(images(label), images())


@pytest.mark.parametrize("tasks", [None, 3, [], [3], [ROWS], [(Samples(ROWS, LABELS),)], [(1, 2)]])
def test_bad_tasks(tasks: Any) -> None:
    with pytest.raises(InputError, match="tasks"):
        benchmark_from_tasks("name", tasks)


@pytest.mark.parametrize(
    "values", [[10**400] * 4, "abcd", [None] * 4, 3, [1.0], torch.zeros(4, device="meta")]
)
@pytest.mark.parametrize("name", ["mean", "std"])
def test_bad_statistics(name: str, values: Any) -> None:
    task = (Samples(ROWS, LABELS), Samples(ROWS, LABELS))
    with pytest.raises(InputError, match=f"{name} is"):
        benchmark_from_tasks("name", [task], **{name: values})


@pytest.mark.parametrize(
    "value",
    [
        *(10**400, -1, 1.0, None, [10**30], True, np.ones((2, 2), int)),
        *(torch.zeros(2, device="meta"), LABELS.to_sparse(), np.zeros(2, dtype=[("a", "i4")])),
    ],
    ids=str,
)
def test_bad_splits(value: Any) -> None:
    data = from_arrays(X, Y, X, Y)
    with pytest.raises(InputError):
        split_into_tasks(data, value)
    with pytest.raises(InputError):
        split_into_tasks(data, 1, value)
    with pytest.raises(InputError):
        data.hold_out(10**400 if value is True else value)


@pytest.mark.parametrize("names", [3, [10**400], [None, "a"], {"a", "b"}])
def test_bad_class_names(names: Any) -> None:
    with pytest.raises(InputError, match="class_names"):
        from_arrays(X, Y, X, Y, class_names=names)


@pytest.mark.parametrize(
    "name", ["folder:a\0b", "folder:a\0b@32", "folder:~nobody-at-all/x", 3, None]
)
def test_bad_names_of_data_sets(name: Any) -> None:
    with pytest.raises(InputError):
        load_dataset(name)


def test_numbers_with_thousands_of_digits() -> None:
    with pytest.raises(InputError):
        split_into_tasks(from_arrays(X, Y, X, Y), 1, "seed:" + "9" * 5000)
    with pytest.raises(DataNotFoundError):
        load_dataset("folder:x@" + "9" * 5000)


def test_bad_paths_of_idx_files() -> None:
    for path in ("a\0b", 3, None, "x" * 5000, "none"):
        with pytest.raises(GradMixError):
            read_idx(path)  # type: ignore[arg-type]


def test_views_with_a_conjugate_or_negative_bit_are_resolved() -> None:
    imaginary = torch.complex(ROWS, -ROWS).conj().imag
    assert imaginary.is_neg()
    assert np.array_equal(from_arrays(imaginary, Y, X, Y).train.x.numpy(), X)
    assert as_array(torch.tensor([1 + 2j]).conj(), "x").tolist() == [1 - 2j]
