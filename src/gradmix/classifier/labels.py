"""The labels of a classifier: what callers pass, and the classes that are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from gradmix.classifier.inputs import Array, as_numpy, reading
from gradmix.errors import InputError

Label = str | int | bool

_KINDS = {"U": "text", "i": "integers", "u": "integers", "b": "booleans"}


class Labels(NamedTuple):
    """The known classes in order of arrival: class number k of training is `known[k]`."""

    known: tuple[Label, ...] = ()
    declared: tuple[Label, ...] = ()  # classes announced by `classes=`, seen or not

    @property
    def classes(self) -> Array:
        """Known and announced classes, sorted, as in scikit-learn's `classes_`."""
        return np.unique(as_array({*self.known, *self.declared}))

    def by_class(self, values: Array, unseen: float) -> Array:
        """Return columns of known classes (N, known) in the order of `classes`, (N, K)."""
        number = {label: k for k, label in enumerate(self.known)}
        classes = self.classes.tolist()
        result = np.full((len(values), len(classes)), unseen)
        for column, label in enumerate(classes):
            if label in number:
                result[:, column] = values[:, number[label]]
        return result

    def add(self, labels: Array, announced: Array | None) -> Labels:
        """Return the labels with the classes of new data; new classes are added in sorted order."""
        new, declared = sorted({*labels.tolist()} - {*self.known}), self.declared
        undeclared = [label for label in new if label not in declared]
        if announced is None and declared and undeclared:
            raise InputError(
                f"y has the class {undeclared[0]!r}, which was not announced: an earlier call "
                f"announced only {_some(declared)} by classes=; pass classes= with all classes"
            )
        if announced is not None:
            unknown = sorted({*labels.tolist(), *self.known} - {*announced.tolist()})
            if unknown:
                raise InputError(
                    f"classes lacks {unknown[0]!r}, which is in y or known already; it must name "
                    "all classes that occur"
                )
            declared = tuple(sorted({*declared, *announced.tolist()}))
        return Labels((*self.known, *new), declared)

    def without(self, label: Label) -> Labels:
        """Return the labels without a forgotten class."""
        return Labels(*(tuple(other for other in part if other != label) for part in self))

    def encode(self, labels: Array, name: str = "y") -> Tensor:
        """Return the class number of each label, int64 (N,); InputError for an unknown class."""
        classes, inverse = np.unique(labels, return_inverse=True)
        number = {label: k for k, label in enumerate(self.known)}
        for label in classes.tolist():
            if label not in number:
                raise InputError(
                    f"{name} has the class {label!r}, which was never learned; known are "
                    f"{_some(self.known)}"
                )
        table = np.array([number[label] for label in classes.tolist()], dtype=np.int64)
        return torch.from_numpy(table[inverse.reshape(-1)])

    def check_kind(self, labels: Array, name: str = "y") -> None:
        """Refuse labels of another kind: text, integers and booleans cannot be combined."""
        given, known = _kind(labels), _kind(self.classes)
        if len(self.classes) and given != known:
            raise InputError(
                f"{name} has {given} as labels and the known classes are {known}; give labels of "
                "the same kind"
            )

    def find(self, label: Any) -> int:
        """Return the number of one known class.

        Raises:
            InputError: If `label` is not a label, or the class is unknown.
        """
        value = label.item() if isinstance(label, np.generic) else label
        if not isinstance(value, (str, int)) or type(value) is not type(self.known[0]):
            kind = _kind(as_array(self.known))
            raise InputError(f"label is {str(label)[:80]!r}; give one class, the labels are {kind}")
        if value not in self.known:
            raise InputError(f"label is {value!r}; the known classes are {_some(self.known)}")
        return self.known.index(value)


def read_labels(y: Any, count: int | None, name: str = "y") -> Array:
    """Return labels as an array of text, integers or booleans; `count` is the number of samples.

    Raises:
        InputError: If the labels cannot be used, or their number differs from `count`.
    """
    with reading(name):
        labels = _label_array(as_numpy(y, name) if isinstance(y, Tensor) else y, name)
    if count is not None and len(labels) != count:
        raise InputError(
            f"{name} has {len(labels)} labels for {count} samples; "
            "inconsistent numbers of samples: there must be one label per sample"
        )
    return labels


def _label_array(y: Any, name: str) -> Array:
    if isinstance(y, (list, tuple)):
        if len({isinstance(item, str) for item in y}) > 1:  # NumPy would turn all into text
            raise InputError(f"{name} has text and other things as labels; give one kind")
        if any(isinstance(item, str) and item.endswith("\0") for item in y):
            raise InputError(f"{name} has a label that ends in a NUL character; NumPy drops it")
    array: Array = column_or_1d(y, warn=True)
    if array.dtype.kind == "O":
        array = _plain(array, name)
    if array.dtype.kind == "f":
        assert_all_finite(array, input_name=name)
    check_classification_targets(array)
    if array.dtype.kind not in f"f{''.join(_KINDS)}":
        raise InputError(f"{name} has dtype {array.dtype}; give text, integers or booleans")
    if array.dtype.kind in "fu" and array.size:
        limit = 2**53 if array.dtype.kind == "f" else 2**63 - 1
        if int(np.abs(array).max()) > limit:
            raise InputError(
                f"{name} has the label {np.abs(array).max()}; labels must be at most {limit}"
            )
    return array.astype(np.int64) if array.dtype.kind in "fiu" else array


def _plain(array: Array, name: str) -> Array:
    """Return an array of objects with the dtype of its items."""
    kinds = {type(item) for item in array.tolist()}
    if len(kinds) != 1 or not kinds <= {str, int, bool, float}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{name} has labels of the types {found}; give text, integers or booleans")
    return np.array(array.tolist())


def as_array(labels: Iterable[Label]) -> Array:
    """Return labels of one kind as an array."""
    values = list(labels)
    return np.array(values) if values else np.empty(0, dtype=np.int64)


def _kind(labels: Array) -> str:
    return _KINDS.get(labels.dtype.kind, str(labels.dtype))


def _some(labels: tuple[Label, ...], most: int = 10) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(repr(label) for label in labels[:most]) + more
