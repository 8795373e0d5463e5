"""Read what callers pass: samples, photos, folders and weights.

Whatever a caller passes, the result is a checked tensor or array, or an `InputError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradmix.data.arrays import image_stack, own_class_names, read_items
from gradmix.data.image_folders.given import is_photo, is_photo_list, is_plain_folder, read_photos
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import is_archive
from gradmix.data.stream import StreamedImages
from gradmix.errors import GradMixError, InputError, OutOfMemoryError

Array = npt.NDArray[Any]

LARGEST_KEPT = 64
"""Largest side in pixels of images in files that keep their size; larger ones are resized to it."""


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
    """Return a tensor as an array; InputError for sparse tensors, meta tensors and some dtypes."""
    try:
        array: Array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except Exception as error:
        what = "meta tensor without values" if tensor.is_meta else f"tensor ({tensor.layout})"
        raise InputError(
            f"{name} is a {tensor.dtype} {what}, which cannot become an array; give a dense tensor "
            "of another type"
        ) from error
    return array


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
    layout: Layout
    labels: Any = None  # of datasets and folders, which contain their labels
    skipped: tuple[str, ...] = ()  # why files of a folder are not used, a sentence per reason


def read_inputs(
    X: Any,
    estimator: Any,
    expected: Layout | None,
    size: int | None,
    name: str = "X",
    *,
    stream: bool = False,
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
) -> Inputs:
    """Read samples from an array, a tensor, a dataset, photos or a folder.

    Args:
        X: The samples.
        estimator: The classifier that the messages of scikit-learn name.
        expected: The form that the samples get; None accepts any.
        size: Pixels a side to which the first photos are resized; None: chosen from them.
        name: The name of the argument in messages.
        stream: Leave photos in their files and arrays of images as they are, for a backbone that
            decodes and resizes batch by batch.
        skip: Called with a message for unreadable photos, which are then skipped; None refuses
            them.
        part: The part to read from a folder that contains `train` and `test`.

    Raises:
        InputError: If the samples cannot be used or do not have the expected form.
    """
    with reading(name):
        x: Any
        labels: Any = None
        skipped: tuple[str, ...] = ()
        if are_photos(X):
            x, labels, skipped = _read_photos(X, expected, size, name, skip, part, stream)
        elif isinstance(X, (Mapping, Set, Iterator, DataLoader)) and not hasattr(X, "dtype"):
            raise InputError(
                f"{name} is a {type(X).__name__}; give an array, a tensor, a dataset or photos"
            )
        elif isinstance(X, Dataset) or (hasattr(X, "__getitem__") and _gives_pairs(X)):
            x, numbers = read_items(X, name)
            labels = _named(numbers, own_class_names(X), name)
            x = x.numpy() if x.ndim == 2 else x
        else:
            x = _read_array(X, expected, name)
        if not isinstance(x, (Tensor, StreamedImages)):  # rows
            return _rows(x, estimator, expected, name)._replace(labels=labels)
        if expected is not None and not expected.images:
            raise InputError(
                f"{name} has images of shape {tuple(x.shape[1:])}; this classifier has learned "
                f"rows of {expected.shape[0]} numbers"
            )
        wanted = None if expected is None or stream else expected.shape
        if wanted is not None and isinstance(x, Tensor) and tuple(x.shape[1:]) != wanted:
            x = read_photos(list(x), name, shape=wanted)
        return Inputs(x, Layout(tuple(x.shape[1:])), labels, skipped)


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


def are_photos(X: Any) -> bool:
    """Whether samples are photos: a path, bytes, a file, a Pillow image, or a list of these."""
    return not isinstance(X, (np.ndarray, Tensor)) and (is_photo(X) or is_photo_list(X))


def _gives_pairs(X: Any) -> bool:
    """Whether X behaves like a dataset of (image, label) pairs without being PyTorch's."""
    return (
        not isinstance(X, (list, tuple, np.ndarray, Tensor))
        and not any(hasattr(X, name) for name in ("__array__", "dtype", "columns"))
        and hasattr(X, "__len__")
        and len(X) > 0
        and isinstance(X[0], tuple)
    )


def _read_photos(
    X: Any,
    expected: Layout | None,
    size: int | None,
    name: str,
    skip: Callable[[str], object] | None,
    part: Literal["train", "test"],
    stream: bool,
) -> tuple[Tensor, Any, tuple[str, ...]]:
    """Return photos, their labels if they are in class folders, and what was skipped."""
    if expected is not None and not expected.images:
        raise InputError(f"{name} are photos; this classifier has learned rows of numbers")
    shape = None if expected is None else expected.shape
    if not _has_class_folders(X, part):
        items = [X] if is_photo(X) else X
        x = read_photos(items, name, shape=shape, size=size, largest=LARGEST_KEPT, stream=stream)
        return x, None, ()
    photos = read_folder(
        X, shape=shape, size=size, largest=LARGEST_KEPT, skip=skip, part=part, stream=stream
    )
    labels = np.array([photos.classes[label] for label in photos.labels])
    return photos.x, labels, photos.skipped


def _has_class_folders(X: Any, part: str) -> bool:
    """Whether X must be a labelled folder or zip file; to predict, a plain folder will do."""
    if not isinstance(X, (str, os.PathLike)):
        return False
    if os.path.isfile(X):
        return is_archive(X)
    return part == "train" or not is_plain_folder(X)


def _read_array(X: Any, expected: Layout | None, name: str) -> Any:
    """Return images as a tensor (N, C, H, W), and rows as they are."""
    if isinstance(X, Tensor):
        X = as_numpy(X.float() if X.dtype == torch.bfloat16 else X, name)
    elif isinstance(X, (list, tuple)):
        try:
            X = np.asarray(X) if np.ndim(X) > 2 else X
        except ValueError as error:
            raise InputError(f"{name} is not a rectangular array: {error}") from error
    if getattr(X, "ndim", 2) not in (3, 4):
        return X
    array = np.asarray(X)
    return image_stack(array[None] if _is_one_photo(array, expected) else array, name)


def _is_one_photo(array: Array, expected: Layout | None) -> bool:
    """Whether a classifier of colour images got one photo (H, W, 3) or (H, W, 4)."""
    colour = expected is not None and expected.images and expected.shape[0] > 1
    return colour and array.ndim == 3 and array.shape[2] in (3, 4) and min(array.shape[:2]) > 4


def _rows(X: Any, estimator: Any, expected: Layout | None, name: str) -> Inputs:
    """Check rows by the rules of scikit-learn, with its messages."""
    scratch: Any = object.__new__(type(estimator))  # records the columns in place of the classifier
    if expected is not None:
        if expected.images:
            raise InputError(
                f"{name} has rows of numbers and does not contain images; this classifier takes "
                f"photos, or images such as {expected.shape}"
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


def read_path(path: Any, name: str = "path") -> str | os.PathLike[str]:
    """Return the path of a file; InputError if it is something else."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{name} is a {type(path).__name__}; give the name of a file")
    return path


def read_weights(sample_weight: Any, count: int) -> Array | None:
    """Return the weights of `count` samples as float64.

    Raises:
        InputError: If there is not one finite weight of 0 or more per sample, or all are 0.
    """
    if sample_weight is None:
        return None
    with reading("sample_weight"):
        is_tensor = isinstance(sample_weight, Tensor)
        raw = as_numpy(sample_weight, "sample_weight") if is_tensor else np.asarray(sample_weight)
        if raw.dtype.kind not in "iufb" or raw.shape != (count,):
            raise InputError(
                f"sample_weight is {raw.dtype} of shape {raw.shape}; give one number for each of "
                f"{count} samples"
            )
        weights = raw.astype(np.float64)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and 0 < weights.sum() < np.inf):
            raise InputError("sample_weight must be finite and 0 or more, and not zero for all")
        return weights
