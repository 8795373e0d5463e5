"""Read what callers pass: samples, photos, folders, labels and weights.

Whatever a caller passes, the result is a checked tensor or array, or an `InputError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradmix.data.arrays import as_array, image_stack, own_class_names, read_items
from gradmix.data.image_folders.given import is_photo, is_photo_list, is_plain_folder, read_photos
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import is_archive
from gradmix.errors import GradMixError, InputError, OutOfMemoryError

Array = npt.NDArray[Any]
Label = str | int | bool

FEWER_AT_A_TIME = "give fewer samples at a time"  # the remedy for too little memory
LARGEST_KEPT = 64  # pixels; images in files with a longer side are resized to this
SHOWN = 10  # known classes in a message


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

    x: Tensor  # uint8 images (N, C, H, W), perhaps `StreamedImages`, or float32 rows (N, d)
    labels: Any = None  # of datasets and folders, which contain their labels
    skipped: tuple[str, ...] = ()  # why files of a folder are not used, a sentence per reason
    names: tuple[str, ...] | None = None  # of the columns

    @property
    def layout(self) -> Layout:
        """The form of x."""
        return Layout(tuple(self.x.shape[1:]), self.names)


@dataclass(frozen=True)
class InputReader:
    """Reads samples from an array, a tensor, a dataset, photos or a folder."""

    estimator: Any  # the classifier; scikit-learn's messages name it
    expected: Layout | None = None  # the form that samples get; None accepts any
    size: int | None = None  # to resize photos of no expected form, in pixels a side
    name: str = "X"  # of the samples in messages
    stream: bool = False  # leave photos in their files; a backbone decodes them batch by batch
    skip: Callable[[str], object] | None = None  # is told of unreadable photos; None refuses them
    part: Literal["train", "test"] = "train"  # of a folder that contains both

    def read(self, X: Any) -> Inputs:
        """Return the samples; InputError if they cannot be used."""
        expected, name = self.expected, self.name
        with reading(name):
            x: Any
            labels: Any = None
            if are_photos(X):
                return self._read_photos(X)
            if isinstance(X, (Mapping, Set, Iterator, DataLoader)) and not hasattr(X, "dtype"):
                raise InputError(
                    f"{name} is a {type(X).__name__}; give an array, a tensor, a dataset or photos"
                )
            if isinstance(X, Dataset) or (hasattr(X, "__getitem__") and _gives_pairs(X)):
                x, numbers = read_items(X, name)
                labels = _named(numbers, own_class_names(X), name)
                x = x.numpy() if x.ndim == 2 else x
            else:
                x = self._read_array(X)
            if not isinstance(x, Tensor):
                return self._read_rows(x)._replace(labels=labels)
            self._check_images(f"images of shape {tuple(x.shape[1:])}")
            wanted = None if expected is None or self.stream else expected.shape
            if wanted is not None and tuple(x.shape[1:]) != wanted:
                x = read_photos(list(x), name, shape=wanted)
            return Inputs(x, labels)

    def _check_images(self, given: str) -> None:
        """Refuse images, photos or arrays if the classifier takes rows."""
        if self.expected is not None and not self.expected.images:
            columns = self.expected.shape[0]
            raise InputError(
                f"{self.name} has {given}; this classifier has learned rows of {columns} numbers: "
                f"give an array of shape (N, {columns})"
            )

    def _read_photos(self, X: Any) -> Inputs:
        """Return photos, their labels if they are in class folders, and what was skipped."""
        self._check_images("photos")
        shape = None if self.expected is None else self.expected.shape
        form: Any = {"shape": shape, "size": self.size, "largest": LARGEST_KEPT}
        labelled = isinstance(X, (str, os.PathLike))
        if labelled and os.path.isfile(X):
            labelled = is_archive(X)
        elif labelled and self.part == "test":  # to predict, a plain folder will do
            labelled = not is_plain_folder(X)
        if not labelled:
            photos = [X] if is_photo(X) else list(X)
            return Inputs(read_photos(photos, self.name, stream=self.stream, **form))
        x, listing = read_folder(X, skip=self.skip, part=self.part, stream=self.stream, **form)
        labels = np.array([listing.classes[label] for label in listing.labels])
        return Inputs(x, labels, listing.skipped)

    def _read_array(self, X: Any) -> Any:
        """Return images as a tensor (N, C, H, W), and rows as they are."""
        if isinstance(X, Tensor) or (isinstance(X, (list, tuple)) and np.ndim(X) > 2):
            X = as_array(X, self.name)
        if getattr(X, "ndim", 2) < 3:
            return X
        array = np.asarray(X)
        self._check_images(f"shape {array.shape}")
        colour = self.expected is not None and self.expected.shape[0] > 1
        if colour and array.ndim == 3 and array.shape[2] in (3, 4) and min(array.shape[:2]) > 4:
            array = array[None]  # one photo, (H, W, 3) or (H, W, 4)
        return image_stack(array, self.name)

    def _read_rows(self, X: Any) -> Inputs:
        """Check rows by the rules of scikit-learn."""
        expected, name = self.expected, self.name
        scratch: Any = object.__new__(type(self.estimator))  # records the columns in its place
        if expected is not None:
            if expected.images:
                raise InputError(
                    f"{name} has rows of numbers and does not contain images; this classifier "
                    f"takes photos, or images such as {expected.shape}"
                )
            scratch.n_features_in_ = expected.shape[0]
            if expected.names is not None:
                scratch.feature_names_in_ = np.array(expected.names, dtype=object)
        try:
            with np.errstate(over="ignore"):  # an overflow gives infinity, which is refused
                array = validate_data(scratch, X, reset=expected is None, dtype=np.float32)
        except (TypeError, ValueError) as error:
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            raise kind(_reason(str(error), name)) from error
        names = getattr(scratch, "feature_names_in_", None)
        x = torch.from_numpy(np.array(array))  # a copy: the caller may change the array
        return Inputs(x, names=None if names is None else tuple(map(str, names)))


def are_photos(X: Any) -> bool:
    """Whether samples are photos: a path, bytes, a file, a Pillow image, or a list of these.

    A list may also be an array or a column of a table with one dimension.
    """
    if getattr(X, "ndim", 0) == 1 and getattr(X.dtype, "kind", "") in ("O", "U"):
        X = list(X)
    return not isinstance(X, (np.ndarray, Tensor)) and (is_photo(X) or is_photo_list(X))


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


def _gives_pairs(X: Any) -> bool:
    """Whether X behaves like a dataset of (image, label) pairs without being PyTorch's."""
    return (
        not isinstance(X, (list, tuple, np.ndarray, Tensor))
        and not any(hasattr(X, name) for name in ("__array__", "dtype", "columns"))
        and hasattr(X, "__len__")
        and len(X) > 0
        and isinstance(X[0], tuple)
    )


def _reason(message: str, name: str) -> str:
    """Return a message of scikit-learn with the name of the argument and a remedy."""
    if message.startswith("Input X contains"):  # NaN or infinity
        found = message.splitlines()[0].removeprefix("Input X ").rstrip(".")
        return f"{name} {found}; replace these values or remove their rows"
    if message.startswith("could not convert string"):
        return f"{name} has text ({message}); encode it as numbers, for example with OneHotEncoder"
    return message if message.startswith(f"{name} ") else f"{name}: {message}"


def look_symbolic(x: Tensor) -> bool:
    """Whether rows look like codes: half of the columns that vary have at most 10 whole numbers."""
    if x.ndim != 2 or len(x) < 20:
        return False
    varied = x[:, (x != x[0]).any(dim=0)]
    whole = (varied == varied.round()).all(dim=0)
    few = sum(len(column.unique()) <= 10 for column in varied[:, whole].unbind(dim=1))
    return 0 < varied.shape[1] <= 2 * few


def read_seed(random_state: Any) -> int:
    """Return a seed from what scikit-learn accepts as `random_state`; InputError otherwise."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        if random_state < 0:
            raise InputError(f"random_state is {random_state}; it must be 0 or more")
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InputError(f"random_state is {str(random_state)[:80]!r}: {error}") from error


def read_path(path: Any, name: str = "path") -> str:
    """Return the path of a file; InputError if it is something else."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{name} is a {type(path).__name__}; give the name of a file")
    return os.fspath(path)


def read_weights(sample_weight: Any, count: int) -> Array | None:
    """Return the weights of `count` samples as float64: finite, 0 or more, and not all 0."""
    if sample_weight is None:
        return None
    with reading("sample_weight"):
        raw = as_array(sample_weight, "sample_weight")
        if raw.dtype.kind not in "iufb" or raw.shape != (count,):
            raise InputError(
                f"sample_weight is {raw.dtype} of shape {raw.shape}; give one number for each of "
                f"{count} samples"
            )
        weights = raw.astype(np.float64)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and 0 < weights.sum() < np.inf):
            raise InputError("sample_weight must be finite and 0 or more, and not zero for all")
        return weights


# --- labels ---------------------------------------------------------------------------------

_KINDS = {"U": "text", "i": "integers", "u": "integers", "b": "booleans"}


class Labels(NamedTuple):
    """The known classes in order of arrival: class number k of training is `known[k]`."""

    known: tuple[Label, ...] = ()
    declared: tuple[Label, ...] = ()  # classes announced by `classes=`, seen or not

    @property
    def classes(self) -> Array:
        """Known and announced classes, sorted, as in scikit-learn's `classes_`."""
        return np.unique([*self.known, *self.declared])

    def by_class(self, values: Array, unseen: float) -> Array:
        """Return columns of known classes (N, known) in the order of `classes`, (N, K)."""
        classes = self.classes
        result = np.full((len(values), len(classes)), unseen)
        result[:, np.searchsorted(classes, self.known)] = values
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
        number = {label: k for k, label in enumerate(self.known)}
        try:
            return torch.tensor([number[label] for label in labels.tolist()], dtype=torch.int64)
        except KeyError as error:
            raise InputError(
                f"{name} has the class {error.args[0]!r}, which was never learned; known are "
                f"{_some(self.known)}"
            ) from None

    def check_kind(self, labels: Array, name: str = "y") -> None:
        """Refuse labels of another kind: text, integers and booleans cannot be combined."""
        given, known = _kind(labels), _kind(self.classes)
        if given != known:
            raise InputError(
                f"{name} has {given} as labels and the known classes are {known}; give labels of "
                "the same kind"
            )

    def find(self, label: Any) -> int:
        """Return the number of one known class; InputError for anything else."""
        value = label.item() if isinstance(label, np.generic) else label
        if type(value) is type(self.known[0]) and value in self.known:
            return self.known.index(value)
        shown = value if isinstance(value, Label) else str(value)[:80]
        raise InputError(f"label is {shown!r}; the known classes are {_some(self.known)}")


def read_labels(y: Any, count: int | None, name: str = "y") -> Array:
    """Return `count` labels as an array of text, integers or booleans; InputError otherwise."""
    with reading(name):
        labels = _label_array(as_array(y, name) if isinstance(y, Tensor) else y, name)
    if count is not None and len(labels) != count:
        raise InputError(
            f"{name} has {len(labels)} labels for {count} samples; "
            "inconsistent numbers of samples: there must be one label per sample"
        )
    return labels


def _label_array(y: Any, name: str) -> Array:
    if isinstance(y, (list, tuple)):
        if len({isinstance(item, str) for item in y}) > 1:  # NumPy would turn all into text
            raise InputError(f"{name} mixes text and other types as labels; give one type")
        if any(isinstance(item, str) and item.endswith("\0") for item in y):
            raise InputError(f"{name} has a label that ends in a NUL character; NumPy drops it")
    array: Array = column_or_1d(y, warn=True)
    if array.dtype.kind == "O":
        kinds = {type(item) for item in array.tolist()}
        if len(kinds) != 1 or not kinds <= {str, int, bool, float}:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise InputError(
                f"{name} has labels of the types {found}; give text, integers or booleans"
            )
        array = np.array(array.tolist())
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


def _kind(labels: Array) -> str:
    return _KINDS.get(labels.dtype.kind, str(labels.dtype))


def _some(labels: tuple[Label, ...]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(map(repr, labels[:SHOWN])) + more
