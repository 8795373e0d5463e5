"""Every public method with every kind of wrong value: a documented error, and nothing changes."""

import datetime
import decimal
import fractions
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gradmix import IncrementalClassifier
from gradmix.errors import GradMixError

X = np.random.default_rng(0).normal(scale=0.3, size=(12, 4))
X += 3 * np.repeat([[6, 2, 1, 1], [0, 3, 2, 1]], 6, axis=0)  # two blobs, far apart
Y = np.repeat(["a", "b"], 6)
PICTURES = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8)).astype(np.uint8)
NAMES = np.repeat(["a", "b"], 6)
STRUCTURED = np.zeros(12, dtype=[("a", "f4"), ("b", "i4")])


class Raises:
    """An object whose every use fails."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class BadDataset(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise KeyError("broken")


class Liar:
    """Has a shape and a dtype, and no values."""

    shape, dtype, ndim = (12, 4), np.dtype("f4"), 2

    def __len__(self):
        return 12


def special_tensors():
    """Kinds that PyTorch warns about when they are created."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "sparse CSR tensor": torch.eye(12).to_sparse_csr(),
            "jagged tensor": jagged(),
            "quantised": torch.quantize_per_tensor(torch.ones(12), 0.1, 0, torch.quint8),
        }


def jagged():
    with torch.no_grad():
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


NASTY = {
    "None": None,
    "True": True,
    "0": 0,
    "-1": -1,
    "2**63": 2**63,
    "10**400": 10**400,
    "nan": float("nan"),
    "inf": float("inf"),
    "1j": 1j,
    "decimal": decimal.Decimal("1.5"),
    "fraction": fractions.Fraction(1, 3),
    "date": datetime.date(2026, 1, 1),
    "empty text": "",
    "text": "nonsense",
    "NUL in a path": "a\0b",
    "surrogate": "\ud800",
    "long text": "x" * 5000,
    "a path with NUL": Path("a\0b"),
    "a folder": Path(tempfile.gettempdir()) / "no such folder" / "at all",
    "bytes": b"abc",
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "object": object(),
    "class": int,
    "function": len,
    "raises": Raises(),
    "liar": Liar(),
    "empty list": [],
    "nested empty": [[]],
    "ragged": [[1.0, 2.0], [3.0]],
    "list of None": [None] * 12,
    "list of text": ["a", "zzz"] * 6,
    "list of NUL text": ["a", "a\0"] * 6,
    "list of 2**63": [2**63] * 12,
    "list of 10**400": [10**400] * 12,
    "list of NUL paths": ["a\0b", "c"],
    "mixed list": ["a", 1] * 6,
    "dict": {"a": 1},
    "set": {1, 2},
    "generator": (k for k in range(3)),
    "range": range(12),
    "slice": slice(3),
    "csr matrix": scipy.sparse.csr_matrix(X),
    "coo array": scipy.sparse.coo_array(X),
    "structured array": STRUCTURED,
    "object array": np.array([{}, []] * 6, dtype=object),
    "array of huge integers": np.array([2**63, 2**64] * 6, dtype=object),
    "uint64 beyond int64": np.full(12, 2**63, dtype=np.uint64),
    "whole floats above 2**53": np.full(12, 2.0**60),
    "complex array": X * 1j,
    "dates": np.array(["2026-01-01"] * 12, dtype="datetime64[D]"),
    "durations": np.zeros(12, dtype="timedelta64[s]"),
    "void": np.void(b"abc"),
    "NaN array": np.full((12, 4), np.nan),
    "huge array": np.full((12, 4), 1e300),
    "masked array": np.ma.masked_all((12, 4)),
    "0-d array": np.array(3.0),
    "5-d array": np.zeros((2, 1, 1, 1, 1)),
    "empty array": np.empty((0, 4)),
    "bytes array": np.array([b"a"] * 12),
    "other columns": X[:, :2],
    "meta tensor": torch.empty(12, 4, device="meta"),
    "meta labels": torch.empty(12, device="meta", dtype=torch.int64),
    "sparse tensor": torch.eye(12).to_sparse(),
    "conjugated tensor": torch.ones(12, 4, dtype=torch.complex64).conj(),
    "negative view": torch.ones(12, dtype=torch.complex64).conj().imag,
    "tensor with a gradient": torch.ones(12, 4, requires_grad=True),
    "labels with a gradient": torch.ones(12, requires_grad=True),
    "bfloat16": torch.ones(12).bfloat16(),
    **special_tensors(),
    "0-d tensor": torch.tensor(1),
    "broken dataset": BadDataset(),
    "dataset of text": [("x", "y")] * 3,
    "dataset of floats": TensorDataset(torch.zeros(3, 4), torch.tensor([0.5, 1.5, 2.5])),
    "loader": DataLoader(TensorDataset(torch.zeros(3, 4), torch.zeros(3))),
    "module": torch.nn.Linear(2, 2),
}
USES = {
    "fit X": lambda c, v: c.fit(v, Y),
    "fit y": lambda c, v: c.fit(X, v),
    "partial_fit X": lambda c, v: c.partial_fit(v, Y),
    "partial_fit X alone": lambda c, v: c.partial_fit(v),
    "partial_fit y": lambda c, v: c.partial_fit(X, v),
    "partial_fit classes": lambda c, v: c.partial_fit(X, Y, classes=v),
    "partial_fit eval_set": lambda c, v: c.partial_fit(X, Y, eval_set=v),
    "partial_fit eval_set's X": lambda c, v: c.partial_fit(X, Y, eval_set=(v, Y)),
    "partial_fit eval_set's y": lambda c, v: c.partial_fit(X, Y, eval_set=(X, v)),
    "partial_fit checkpoint": lambda c, v: c.partial_fit(X, Y, checkpoint=v),
    "predict": lambda c, v: c.predict(v),
    "predict_proba": lambda c, v: c.predict_proba(v),
    "score X": lambda c, v: c.score(v, Y),
    "score y": lambda c, v: c.score(X, v),
    "score sample_weight": lambda c, v: c.score(X, Y, sample_weight=v),
    "forget": lambda c, v: c.forget(v),
    "save": lambda c, v: c.save(v),
    "load": lambda c, v: IncrementalClassifier.load(v),
    "load device": lambda c, v: IncrementalClassifier.load(c.path, device=v),
    "load model": lambda c, v: IncrementalClassifier.load(c.path, model=v),
}


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory, quick):
    classifier = quick(epochs=1).fit(X, Y)
    return classifier._learned, saved(classifier, tmp_path_factory)


@pytest.fixture(scope="module")
def of_images(tmp_path_factory, quick):
    classifier = quick(epochs=1).fit(PICTURES, NAMES)
    return classifier._learned, saved(classifier, tmp_path_factory)


def saved(classifier, factory):
    path = factory.mktemp("nasty") / "my.gradmix"
    classifier.save(path)
    return path


@pytest.fixture(scope="session")
def new(quick):
    def new(learned):
        """Another classifier with the same knowledge."""
        classifier = quick(epochs=1)
        classifier._take(learned[0])
        classifier.path = learned[1]
        return classifier

    return new


@pytest.fixture(scope="session")
def uses_of(digest, new):
    def uses_of(learned, use, monkeypatch, tmp_path):
        """Use every value; what went wrong in another way than documented."""
        monkeypatch.chdir(tmp_path)
        before, wrong = learned[0].digest(), []
        for name, value in NASTY.items():
            classifier = new(learned)
            try:
                USES[use](classifier, value)
            except (GradMixError, NotFittedError):
                if classifier._learned is not learned[0] or digest(classifier) != before:
                    wrong.append((name, "changed"))
            except Exception as error:
                wrong.append((name, f"{type(error).__name__}: {error}"))
        return wrong

    return uses_of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_rows(of_rows, use, monkeypatch, tmp_path, uses_of):
    assert uses_of(of_rows, use, monkeypatch, tmp_path) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", [use for use in USES if "X" in use or use.startswith("pred")])
def test_images(of_images, use, monkeypatch, tmp_path, uses_of):
    assert uses_of(of_images, use, monkeypatch, tmp_path) == []


PARAMS = [name for name in IncrementalClassifier().get_params() if name != "threads"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARAMS)
def test_parameters(name, tmp_path, monkeypatch, quick):
    """Small values only: `epochs=2**63` is refused, and no other value may train for long."""
    monkeypatch.chdir(tmp_path)
    for value in NASTY.values():
        with suppress(GradMixError):
            quick(**{"epochs": 1, name: value}).fit(X, Y)
