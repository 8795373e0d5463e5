"""Samples from whatever an application has: arrays, tensors, datasets, files, folders."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradmix.classifier.labels import as_numpy
from gradmix.data.image_folders.read import read_folder, read_image_files
from gradmix.data.torch_dataset import bytes_of, own_class_names, read_items
from gradmix.errors import InputError

Array = npt.NDArray[Any]
_CHANNELS = (1, 3, 4)
LARGEST_KEPT = 64  # pixels a side, of images in files that all have one size; others become this
_DISTINCT, _SHARE, _ENOUGH = 10, 0.5, 20


class Layout(NamedTuple):
    """What a classifier's samples look like."""

    shape: tuple[int, ...]  # (C, H, W) of images, (d,) of rows
    names: tuple[str, ...] | None = None  # of columns, if they came with any

    @property
    def images(self) -> bool:
        """Or rows of numbers."""
        return len(self.shape) == 3


class Inputs(NamedTuple):
    """Samples as training takes them: uint8 images (N, C, H, W) or float32 rows (N, d)."""

    x: Tensor
    layout: Layout
    labels: Any = None  # where they came along


def read_inputs(
    X: Any,
    estimator: Any,
    expected: Layout | None,
    size: int | None,
    name: str = "X",
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
) -> Inputs:
    """Read samples; InputError unless they look as `expected`.

    `size` is what images in files are resized to at first, `estimator` whom messages speak of,
    `skip` who is told which images of a folder cannot be read and are left out; None refuses them.
    `part` is taken of a folder that has one to train and one to test on.
    """
    shape = None if expected is None else expected.shape
    if isinstance(X, (Mapping, Set, Iterator, DataLoader)) and not hasattr(X, "dtype"):
        raise InputError(
            f"{name} is a {type(X).__name__}; give an array, a tensor, a dataset or a folder"
        )
    if isinstance(X, (str, os.PathLike)) or _are_paths(X):
        x, labels = _read_files(X, shape, size, name, skip, part)
    elif isinstance(X, Dataset) or (hasattr(X, "__getitem__") and _gives_pairs(X)):
        x, numbers = read_items(X, name)
        labels = _named(numbers, own_class_names(X), name)
    else:
        return _read_array(X, estimator, expected, name)
    if x.ndim == 2:  # rows of a dataset
        return _rows(x.numpy(), estimator, expected, name)._replace(labels=labels)
    return Inputs(_like(x, expected, name), Layout(tuple(x.shape[1:])), labels)


def _named(numbers: list[int], names: Sequence[str] | None, what: str) -> Array:
    """Labels of a dataset, by the names of its classes if it has any."""
    if not names:
        return np.array(numbers)
    for place, number in enumerate(numbers):
        if not 0 <= number < len(names):
            raise InputError(
                f"{what}[{place}] has the label {number}, and {what} names {len(names)} classes"
            )
    return np.array([names[number] for number in numbers])


def _are_paths(X: Any) -> bool:
    if not isinstance(X, (list, tuple)) or not X:
        return False
    return all(isinstance(item, (str, os.PathLike)) for item in X)


def _gives_pairs(X: Any) -> bool:
    """Whether it is like a dataset of (image, label), though not PyTorch's."""
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
) -> tuple[Tensor, Any]:
    if shape is not None and len(shape) != 3:
        raise InputError(f"{name} are image files; this classifier has learned rows of numbers")
    single = isinstance(X, (str, os.PathLike))
    if single and (zipfile.is_zipfile(X) or not Path(X).is_file()):
        x, labels, classes = read_folder(
            X, shape=shape, size=size, largest=LARGEST_KEPT, skip=skip, part=part
        )
        return x, np.array([classes[label] for label in labels])
    paths = [X] if single else list(X)
    if shape is None:
        raise InputError(
            f"{name} is {str(paths[0])!r}; to learn, give a folder with a folder of images for "
            "each class"
        )
    channels, height, width = shape
    return read_image_files(paths, (channels, height, width)), None


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
    """Rows by scikit-learn's rules, with its messages."""
    scratch: Any = object.__new__(type(estimator))  # takes note of columns in our place
    if expected is not None:
        if expected.images:
            raise InputError(
                f"{name} is not made of images; this classifier has learned images of "
                f"{expected.shape}"
            )
        scratch.n_features_in_ = expected.shape[0]
        if expected.names is not None:
            scratch.feature_names_in_ = np.array(expected.names, dtype=object)
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which is refused
            array = validate_data(scratch, X, reset=expected is None, dtype=np.float32)
    except ValueError as error:
        where = "" if name == "X" else f"{name}: "
        raise InputError(f"{where}{error}") from error
    names = getattr(scratch, "feature_names_in_", None)
    columns = None if names is None else tuple(map(str, names))
    x = torch.from_numpy(np.array(array))  # a copy: arrays of others may change
    return Inputs(x, Layout((x.shape[1],), columns))


def _images(array: Array, name: str) -> Tensor:
    """Images (N, H, W), (N, C, H, W) or (N, H, W, C) as uint8 (N, C, H, W)."""
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
            f"of {expected.shape}"
        )
    return x


def look_symbolic(x: Tensor) -> bool:
    """Whether rows look like codes and not measurements: few different whole numbers in most."""
    if x.ndim != 2 or len(x) < _ENOUGH:
        return False
    varied = x[:, (x != x[0]).any(dim=0)]
    if not varied.shape[1]:
        return False
    whole = (varied == varied.round()).all(dim=0)
    few = sum(len(column.unique()) <= _DISTINCT for column in varied[:, whole].unbind(dim=1))
    return few >= _SHARE * varied.shape[1]
