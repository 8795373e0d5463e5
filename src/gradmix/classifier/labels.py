"""What classes are called, and the numbers that training knows them by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from gradmix.errors import InputError

Label = str | int | bool
Array = npt.NDArray[Any]
_KINDS = {"U": "text", "i": "integers", "u": "integers", "b": "booleans"}


class Labels(NamedTuple):
    """The classes known, in order of arrival: label k of training is `known[k]`."""

    known: tuple[Label, ...] = ()
    declared: tuple[Label, ...] = ()  # classes that were announced, seen or not

    @property
    def classes(self) -> Array:
        """As scikit-learn's `classes_` has them: sorted, with those announced."""
        return np.unique(as_array({*self.known, *self.declared}))

    @property
    def columns(self) -> list[int | None]:
        """For each of `classes` its label in training; None if it was never seen."""
        number = {label: k for k, label in enumerate(self.known)}
        return [number.get(label) for label in self.classes.tolist()]

    def add(self, labels: Array, announced: Array | None) -> Labels:
        """With the classes of new data; new ones come in sorted order."""
        declared = self.declared
        undeclared = sorted({*labels.tolist()} - {*self.known, *declared})
        if announced is None and declared and undeclared:
            raise InputError(
                f"y has the class {undeclared[0]!r}, which was not announced: an earlier call said "
                f"by classes= that only {_some(declared)} occur; give classes= with all anew"
            )
        if announced is not None:
            unknown = sorted({*labels.tolist(), *self.known} - {*announced.tolist()})
            if unknown:
                raise InputError(
                    f"classes lacks {unknown[0]!r}, which is in y or known already; it must name "
                    "all classes that occur"
                )
            declared = tuple({*declared, *announced.tolist()})
            declared = tuple(np.unique(as_array(declared)).tolist())
        new = sorted({*labels.tolist()} - {*self.known})
        return Labels((*self.known, *new), declared)

    def without(self, label: Label) -> Labels:
        """After a class is forgotten."""
        return Labels(*(tuple(other for other in part if other != label) for part in self))

    def encode(self, labels: Array, name: str = "y") -> Tensor:
        """Labels as training has them; InputError for a class that is not known."""
        classes, inverse = np.unique(labels, return_inverse=True)
        number = {label: k for k, label in enumerate(self.known)}
        for label in classes.tolist():
            if label not in number:
                raise InputError(
                    f"{name} has the class {label!r}, which was never learned; known are "
                    f"{_some(self.known)}"
                )
        table = torch.tensor([number[label] for label in classes.tolist()], dtype=torch.int64)
        return table[torch.from_numpy(inverse.reshape(-1))]

    def check_kind(self, labels: Array, name: str = "y") -> None:
        """Text, integers and booleans do not go together."""
        known = [*self.known, *self.declared]
        if known and _kind(labels) != _kind(as_array(known)):
            raise InputError(
                f"{name} has {_kind(labels)} as labels and the classes known are "
                f"{_kind(as_array(known))}; give labels of the same kind"
            )


def read_labels(y: Any, count: int, name: str = "y") -> Array:
    """Labels as a NumPy array of text, integers or booleans, one for each of `count` samples."""
    if isinstance(y, Tensor):
        y = as_numpy(y, name)
    labels = read_classes(y, name)
    if len(labels) != count:
        raise InputError(
            f"{name} has {len(labels)} labels for {count} samples; "
            "inconsistent numbers of samples: there must be one label per sample"
        )
    return labels


def as_numpy(tensor: Tensor, name: str) -> Array:
    """A tensor as an array."""
    try:
        array: Array = tensor.detach().cpu().numpy()
    except TypeError as error:  # sparse, or numbers that NumPy does not have
        raise InputError(
            f"{name} is {tensor.dtype}, {tensor.layout}, of which no array can be made; "
            "give a dense tensor of another type"
        ) from error
    return array


def read_classes(y: Any, name: str = "y") -> Array:
    """Labels without regard to their number."""
    if isinstance(y, (list, tuple)):  # of which NumPy would make text
        some = {isinstance(item, str) for item in y}
        if len(some) > 1:
            raise InputError(f"{name} has text and other things as labels; give one kind")
    try:
        array: Array = column_or_1d(y, warn=True)
        if array.dtype.kind == "O":
            array = _plain(array, name)
        if array.dtype.kind == "f":
            assert_all_finite(array, input_name=name)
        check_classification_targets(array)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} cannot be used: {error}") from error
    if array.dtype.kind == "f":
        array = array.astype(np.int64)  # whole numbers, as checked
    if array.dtype.kind not in _KINDS:
        raise InputError(f"{name} is of type {array.dtype}; give text, integers or booleans")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise InputError(f"{name} has the label {array.max()}; integers must be below 2**63")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _plain(array: Array, name: str) -> Array:
    """An array of objects by what they are."""
    kinds = {type(item) for item in array.tolist()}
    if len(kinds) != 1 or not kinds <= {str, int, bool, float}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{name} has labels of the types {found}; give text, integers or booleans")
    return np.array(array.tolist())


def as_array(labels: Iterable[Label]) -> Array:
    """Labels of one kind as an array."""
    values = list(labels)
    return np.array(values) if values else np.empty(0, dtype=np.int64)


def _kind(labels: Array) -> str:
    return _KINDS.get(labels.dtype.kind, str(labels.dtype))


def _some(labels: tuple[Label, ...], most: int = 10) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(repr(label) for label in labels[:most]) + more
