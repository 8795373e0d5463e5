"""Read samples and labels from arrays, tensors, datasets, image files and folders.

Whatever a caller passes, the result is a checked tensor or array, or an `InputError`.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradmix.data.image_folders.read import read_folder, read_image_files
from gradmix.data.torch_dataset import bytes_of, own_class_names, read_items
from gradmix.errors import GradMixError, InputError, OutOfMemoryError

Array = npt.NDArray[Any]
Label = str | int | bool

LARGEST_KEPT = 64
"""Images in files keep their size up to so many pixels a side; others are resized to it."""
_CHANNELS = (1, 3, 4)
_KINDS = {"U": "text", "i": "integers", "u": "integers", "b": "booleans"}
_DISTINCT, _SHARE, _ENOUGH = 10, 0.5, 20


class InputTypeError(InputError, TypeError):
    """An argument whose type cannot be used; scikit-learn expects a TypeError in some cases."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn every error that a caller's object causes into an `InputError` that names it."""
    try:
        yield
    except GradMixError:
        raise
    except TypeError as error:
        raise InputTypeError(f"{name} cannot be used: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise InputError(f"{name} cannot be used: {kind}{error}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or PyTorch could not allocate memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in words)


@contextmanager
def needing_memory(what: str, remedy: str) -> Iterator[None]:
    """Turn an error for lack of memory into an `OutOfMemoryError` that says what needed it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, GradMixError) or not is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()
        detail = f" ({reason[0][:200]})" if reason else ""
        raise OutOfMemoryError(f"not enough memory to {what}; {remedy}{detail}") from error


def as_numpy(tensor: Tensor, name: str) -> Array:
    """Return a tensor as an array.

    Raises:
        InputError: If NumPy has no such array: sparse tensors, meta tensors, some dtypes.
    """
    try:
        array: Array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except Exception as error:
        what = "meta tensor without values" if tensor.is_meta else f"tensor ({tensor.layout})"
        raise InputError(
            f"{name} is a {tensor.dtype} {what}, which cannot become an array; give a dense tensor "
            "of another type"
        ) from error
    return array


# --- samples --------------------------------------------------------------------------------


class Layout(NamedTuple):
    """The form of a classifier's samples."""

    shape: tuple[int, ...]  # (C, H, W) for images, (d,) for rows
    names: tuple[str, ...] | None = None  # of the columns, if the first data had names

    @property
    def images(self) -> bool:
        """True for images, False for rows of numbers."""
        return len(self.shape) == 3


class Inputs(NamedTuple):
    """Samples in the form that training takes."""

    x: Tensor  # uint8 images (N, C, H, W) or float32 rows (N, d)
    layout: Layout
    labels: Any = None  # of datasets and folders, which contain their labels
    skipped: tuple[str, ...] = ()  # why files of a folder are not used, a sentence per reason


def read_inputs(
    X: Any,
    estimator: Any,
    expected: Layout | None,
    size: int | None,
    name: str = "X",
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
) -> Inputs:
    """Read samples from an array, a tensor, a dataset, image files or a folder.

    Args:
        X: The samples.
        estimator: The classifier that the messages of scikit-learn name.
        expected: The form that the samples must have; None accepts any.
        size: Pixels a side to which the first images in files are resized; None: chosen from them.
        name: The name of the argument in messages.
        skip: Called with a message for unreadable images, which are then skipped; None refuses
            them.
        part: The part to read from a folder that contains `train` and `test`.

    Raises:
        InputError: If the samples cannot be used or do not have the expected form.
    """
    with reading(name):
        if isinstance(X, (Mapping, Set, Iterator, DataLoader)) and not hasattr(X, "dtype"):
            raise InputError(
                f"{name} is a {type(X).__name__}; give an array, a tensor, a dataset or a folder"
            )
        if is_path(X):
            shape = None if expected is None else expected.shape
            x, labels, skipped = _read_files(X, shape, size, name, skip, part)
            return Inputs(_like(x, expected, name), Layout(tuple(x.shape[1:])), labels, skipped)
        if isinstance(X, Dataset) or (hasattr(X, "__getitem__") and _gives_pairs(X)):
            x, numbers = read_items(X, name)
            labels = _named(numbers, own_class_names(X), name)
        else:
            return _read_array(X, estimator, expected, name)
        if x.ndim == 2:  # the rows of a dataset
            return _rows(x.numpy(), estimator, expected, name)._replace(labels=labels)
        return Inputs(_like(x, expected, name), Layout(tuple(x.shape[1:])), labels)


def _named(numbers: list[int], names: Sequence[str] | None, what: str) -> Array:
    """Return the labels of a dataset, as class names if it has any."""
    if not names:
        return np.array(numbers)
    for place, number in enumerate(numbers):
        if not 0 <= number < len(names):
            raise InputError(
                f"{what}[{place}] has the label {number}, and {what} names {len(names)} classes"
            )
    return np.array([names[number] for number in numbers])


def is_path(X: Any) -> bool:
    """Whether samples are given as one path or as several."""
    return isinstance(X, (str, os.PathLike)) or _are_paths(X)


def _are_paths(X: Any) -> bool:
    if not isinstance(X, (list, tuple)) or not X:
        return False
    return all(isinstance(item, (str, os.PathLike)) for item in X)


def _gives_pairs(X: Any) -> bool:
    """Whether X behaves like a dataset of (image, label) pairs without being PyTorch's."""
    return (
        not isinstance(X, (list, tuple, np.ndarray, Tensor))
        and not hasattr(X, "__array__")
        and not hasattr(X, "dtype")
        and not hasattr(X, "columns")
        and hasattr(X, "__len__")
        and len(X) > 0
        and isinstance(X[0], tuple)
    )


def _read_files(
    X: Any,
    shape: tuple[int, ...] | None,
    size: int | None,
    name: str,
    skip: Callable[[str], object] | None,
    part: Literal["train", "test"],
) -> tuple[Tensor, Any, tuple[str, ...]]:
    if shape is not None and len(shape) != 3:
        raise InputError(f"{name} are image files; this classifier has learned rows of numbers")
    single = isinstance(X, (str, os.PathLike))
    if single and (not os.path.isfile(X) or zipfile.is_zipfile(X)):
        photos = read_folder(X, shape=shape, size=size, largest=LARGEST_KEPT, skip=skip, part=part)
        labels = np.array([photos.classes[label] for label in photos.labels])
        return photos.x, labels, photos.skipped
    paths = [X] if single else list(X)
    if shape is None:
        raise InputError(
            f"{name} is {str(paths[0])!r}; to learn, give a folder that contains a folder of "
            "images for each class"
        )
    channels, height, width = shape
    return read_image_files(paths, (channels, height, width)), None, ()


def _read_array(X: Any, estimator: Any, expected: Layout | None, name: str) -> Inputs:
    if isinstance(X, Tensor):
        X = as_numpy(X.float() if X.dtype == torch.bfloat16 else X, name)
    elif isinstance(X, (list, tuple)):
        try:
            X = np.asarray(X) if np.ndim(X) > 2 else X
        except ValueError as error:
            raise InputError(f"{name} is not a rectangular array: {error}") from error
    if getattr(X, "ndim", 2) not in (3, 4):
        return _rows(X, estimator, expected, name)
    x = _images(np.asarray(X), name)
    return Inputs(_like(x, expected, name), Layout(tuple(x.shape[1:])))


def _rows(X: Any, estimator: Any, expected: Layout | None, name: str) -> Inputs:
    """Check rows by the rules of scikit-learn, with its messages."""
    scratch: Any = object.__new__(type(estimator))  # records the columns in place of the classifier
    if expected is not None:
        if expected.images:
            raise InputError(
                f"{name} does not contain images; this classifier has learned images of shape "
                f"{expected.shape}"
            )
        scratch.n_features_in_ = expected.shape[0]
        if expected.names is not None:
            scratch.feature_names_in_ = np.array(expected.names, dtype=object)
    try:
        with np.errstate(over="ignore"):  # an overflow gives infinity, which is refused
            array = validate_data(scratch, X, reset=expected is None, dtype=np.float32)
    except (TypeError, ValueError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        where = "" if name == "X" else f"{name}: "
        raise kind(f"{where}{error}") from error
    names = getattr(scratch, "feature_names_in_", None)
    columns = None if names is None else tuple(map(str, names))
    x = torch.from_numpy(np.array(array))  # a copy: the caller may change the array
    return Inputs(x, Layout((x.shape[1],), columns))


def _images(array: Array, name: str) -> Tensor:
    """Return images (N, H, W), (N, C, H, W) or (N, H, W, C) as uint8 (N, C, H, W)."""
    if array.dtype.kind in "ib" and array.size and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    if array.dtype.kind not in "uf" or 0 in array.shape:
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; images are bytes, 0 to 255, or "
            "floats from 0 to 1, (N, H, W), (N, C, H, W) or (N, H, W, C), at least one"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in _CHANNELS and array.shape[3] in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in _CHANNELS:
        raise InputError(
            f"{name} has shape {array.shape}; images have 1, 3 or 4 channels, (N, C, H, W) or "
            "(N, H, W, C)"
        )
    kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return bytes_of(torch.from_numpy(np.array(array, dtype=kind)), name).contiguous()


def _like(x: Tensor, expected: Layout | None, name: str) -> Tensor:
    if expected is not None and tuple(x.shape[1:]) != expected.shape:
        what = "images" if expected.images else "rows"
        raise InputError(
            f"{name} has samples of shape {tuple(x.shape[1:])}; this classifier has learned {what} "
            f"of shape {expected.shape}"
        )
    return x


def look_symbolic(x: Tensor) -> bool:
    """Whether rows look like codes, not measurements: most columns have few whole numbers."""
    if x.ndim != 2 or len(x) < _ENOUGH:
        return False
    varied = x[:, (x != x[0]).any(dim=0)]
    if not varied.shape[1]:
        return False
    whole = (varied == varied.round()).all(dim=0)
    few = sum(len(column.unique()) <= _DISTINCT for column in varied[:, whole].unbind(dim=1))
    return few >= _SHARE * varied.shape[1]


def read_weights(sample_weight: Any, count: int) -> Array | None:
    """Return the weights of `count` samples as float64.

    Raises:
        InputError: If there is not one finite weight of 0 or more per sample, or all are 0.
    """
    if sample_weight is None:
        return None
    with reading("sample_weight"):
        given = sample_weight
        given = as_numpy(given, "sample_weight") if isinstance(given, Tensor) else given
        raw = np.asarray(given)
        if raw.dtype.kind not in "iufb" or raw.shape != (count,):
            raise InputError(
                f"sample_weight is {raw.dtype} of shape {raw.shape}; give one number for each of "
                f"{count} samples"
            )
        weights = raw.astype(np.float64)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and 0 < weights.sum() < np.inf):
            raise InputError("sample_weight must be finite, 0 or more, and not 0 for all samples")
        return weights


# --- labels ---------------------------------------------------------------------------------


class Labels(NamedTuple):
    """The known classes in order of arrival: class number k of training is `known[k]`."""

    known: tuple[Label, ...] = ()
    declared: tuple[Label, ...] = ()  # classes announced by `classes=`, seen or not

    @property
    def classes(self) -> Array:
        """Known and announced classes, sorted, as in scikit-learn's `classes_`."""
        return np.unique(as_array({*self.known, *self.declared}))

    @property
    def columns(self) -> list[int | None]:
        """For each of `classes` its number in training; None if it was never seen."""
        number = {label: k for k, label in enumerate(self.known)}
        return [number.get(label) for label in self.classes.tolist()]

    def add(self, labels: Array, announced: Array | None) -> Labels:
        """Return the labels with the classes of new data; new classes are added in sorted order."""
        declared = self.declared
        undeclared = sorted({*labels.tolist()} - {*self.known, *declared})
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
            declared = tuple({*declared, *announced.tolist()})
            declared = tuple(np.unique(as_array(declared)).tolist())
        new = sorted({*labels.tolist()} - {*self.known})
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
        table = torch.tensor([number[label] for label in classes.tolist()], dtype=torch.int64)
        return table[torch.from_numpy(inverse.reshape(-1))]

    def check_kind(self, labels: Array, name: str = "y") -> None:
        """Refuse labels of another kind: text, integers and booleans cannot be combined."""
        known = [*self.known, *self.declared]
        if known and _kind(labels) != _kind(as_array(known)):
            raise InputError(
                f"{name} has {_kind(labels)} as labels and the known classes are "
                f"{_kind(as_array(known))}; give labels of the same kind"
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
    """Return labels as an array of text, integers or booleans.

    Args:
        y: The labels: an array, a tensor or a list.
        count: The number of samples; None accepts any number of labels.
        name: The name of the argument in messages.

    Raises:
        InputError: If the labels cannot be used, or their number differs.
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
