"""Whole data sets, before they are split into tasks: built-in ones, and a caller's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gradmix.data.arrays import (
    check_plain,
    is_integer,
    own_class_names,
    read_class_labels,
    read_inputs,
    read_items,
)
from gradmix.data.stream import StreamedImages
from gradmix.errors import InputError
from gradmix.types import Samples

_COUNTED_AT_ONCE = 256  # images; streamed ones are decoded in such batches
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A whole data set before it is split into tasks.

    Inputs are uint8 images (N, C, H, W) or float rows (N, d). Label k belongs to
    `class_names[k]`. The constructor raises InputError for anything else. Images that stay in
    their files are `StreamedImages` in place of a tensor.
    """

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel (per column of rows), in the units of x
    std: tuple[float, ...]  # per channel (per column of rows), in the units of x
    validation: Samples | None = None  # training samples that `hold_out` set aside
    skipped: tuple[str, ...] = ()  # why files of an image folder are not used

    def __post_init__(self) -> None:
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        for part, samples in parts.items():
            if samples is not None:
                check_samples(samples, len(self.class_names), f"{part}.x", f"{part}.y")
                check_alike(f"{part}.x", samples.x, "train.x", self.train.x)
        if len(self.train.y) == 0:
            raise InputError("train.y is empty; a data set needs training samples")
        check_statistics(self.mean, self.std, self.train.x.shape[1])

    def hold_out(self, validation: int) -> DataSet:
        """Return the data set with its last training samples set aside for validation.

        If the samples are sorted by class, as in image folders, the last samples of every class
        are taken, the same number of each as far as possible.

        Args:
            validation: Number of samples; 0 returns the data set itself.

        Raises:
            InputError: The number is not possible, or samples are held out already.
        """
        total = len(self.train.y)
        if not is_integer(validation) or not 0 <= validation < total:
            raise InputError(
                f"validation is {validation!r}; it must be an integer from 0 to {total - 1}"
            )
        if validation == 0:
            return self
        if self.validation is not None:
            raise InputError(
                f"validation is {validation}, but {len(self.validation.y)} samples are already "
                "held out; call hold_out once, on the whole data set"
            )
        x, y = self.train
        held = torch.arange(total) >= total - validation
        if bool((y[1:] >= y[:-1]).all()):
            held = _last_of_each_class(y, validation)
        kept, held_out = Samples(x[~held], y[~held]), Samples(x[held], y[held])
        return replace(self, train=kept, validation=held_out)


def digits() -> DataSet:
    """Return scikit-learn's 8x8 digits: 1,797 images with values 0 to 16, without a download.

    Every fifth sample of each class, in file order, is a test sample.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped,unused-ignore]

    bunch = load_digits()
    x = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)  # (N, 1, 8, 8)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        test[(y == label).nonzero().flatten()[4::5]] = True
    train, held = Samples(x[~test], y[~test]), Samples(x[test], y[test])
    return DataSet("digits", train, held, tuple("0123456789"), *channel_statistics(train.x))


def from_arrays(
    x_train: npt.ArrayLike | Tensor,
    y_train: npt.ArrayLike | Tensor,
    x_test: npt.ArrayLike | Tensor,
    y_test: npt.ArrayLike | Tensor,
    *,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
) -> DataSet:
    """Return a data set from NumPy arrays or tensors, which are copied.

    Mean and standard deviation are computed from the training samples.

    Args:
        x_train: Images (N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels, as bytes
            or floats from 0 to 1; or float rows (N, d), which become float32.
        y_train: Integer labels (N,), from 0 to the number of classes less one.
        x_test: Test samples, like `x_train`.
        y_test: Test labels, like `y_train`.
        class_names: One name per label. Default: "0", "1", … up to the largest training label.
        name: Name of the data set.

    Raises:
        InputError: An array has another type or shape, or a label has no name.

    Example:
        >>> import numpy as np
        >>> x, y = np.zeros((6, 28, 28), dtype="uint8"), [0, 1, 2, 0, 1, 2]
        >>> data = from_arrays(x, y, x, y, class_names=["ant", "bee", "fly"])
        >>> data.train.x.shape, data.class_names
        (torch.Size([6, 1, 28, 28]), ('ant', 'bee', 'fly'))
    """
    train = Samples(read_inputs(x_train, "x_train"), read_class_labels(y_train, "y_train"))
    test = Samples(read_inputs(x_test, "x_test"), read_class_labels(y_test, "y_test"))
    if train.y.numel() == 0:
        raise InputError("y_train is empty; a data set needs training samples")
    if class_names is None:
        class_names = list(map(str, range(int(train.y.max()) + 1)))
    elif not isinstance(class_names, Sequence) or not all(isinstance(n, str) for n in class_names):
        raise InputError(f"class_names is {class_names!r}; it must be a list of names")
    names = tuple(class_names)
    check_samples(train, len(names), "x_train", "y_train")
    check_samples(test, len(names), "x_test", "y_test")
    return DataSet(name, train, test, names, *channel_statistics(train.x))


def from_dataset(
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    class_names: Sequence[str] | None = None,
    name: str = "dataset",
) -> DataSet:
    """Return a data set from two map-style PyTorch datasets of (image, label) pairs.

    Every item is read once. Leave out random transforms: only their first result would be kept.

    An image is a tensor or array (H, W), (C, H, W) or (H, W, C), or a Pillow image. All must have
    the same shape. Bytes stay as they are. Floats must be bytes divided by 255, as
    torchvision's ToTensor makes them, and become bytes again. One-dimensional floats are rows.

    Args:
        train: Training items.
        test: Test items.
        class_names: One name per label. Default: `train.classes`, else "0", "1", ….
        name: Name of the data set.

    Raises:
        InputError: An item is not such a pair, or images are normalised or differ in shape.
    """
    if class_names is None:
        class_names = own_class_names(train)
    arrays = (*read_items(train, "train"), *read_items(test, "test"))
    return from_arrays(*arrays, class_names=class_names, name=name)


def check_samples(samples: Samples, num_classes: int, x_name: str, y_name: str) -> None:
    """Raise InputError unless inputs and labels have the form that a DataSet holds."""
    x, y = samples
    for name, value in ((x_name, x), (y_name, y)):
        if isinstance(value, Tensor):
            check_plain(value, name)
        elif not (value is x and isinstance(x, StreamedImages)):
            raise InputError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor")
    images = x.dtype == torch.uint8 and x.ndim == 4
    rows = x.dtype in (torch.float32, torch.float64) and x.ndim == 2
    if not (images or rows) or 0 in x.shape[1:]:
        raise InputError(
            f"{x_name} is {x.dtype} of shape {tuple(x.shape)}; it must be torch.uint8 images "
            "(N, C, H, W) or torch.float32 rows (N, d)"
        )
    if rows and not bool(x.isfinite().all()):
        row = int((~x.isfinite()).any(dim=1).nonzero()[0])
        worst = float(x[row][~x[row].isfinite()][0])
        raise InputError(f"{x_name} holds {worst} in row {row}; every value must be finite")
    if y.dtype not in _INTEGERS or y.ndim != 1:
        raise InputError(
            f"{y_name} is {y.dtype} of shape {tuple(y.shape)}; it must be torch.int64 (N,)"
        )
    if len(y) != len(x):
        raise InputError(
            f"{y_name} has {len(y)} labels and {x_name} {len(x)} samples; "
            "there must be one label per sample"
        )
    wrong = ((y < 0) | (y >= num_classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{y_name} holds label {int(y[row])} in row {row}; "
            f"with {num_classes} classes labels run from 0 to {num_classes - 1}"
        )


def check_alike(name: str, x: Tensor, first_name: str, first: Tensor) -> None:
    """Raise InputError unless two parts have samples of one shape and type."""
    if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
        raise InputError(
            f"{name} is {x.dtype} with samples of shape {tuple(x.shape[1:])}; {first_name} is "
            f"{first.dtype} with {tuple(first.shape[1:])}; all parts must have the same form"
        )


def _last_of_each_class(y: Tensor, count: int) -> Tensor:
    """Return a mask of `count` samples: the last of each class, then the one before it, …."""
    ends = y.bincount().cumsum(dim=0)
    from_end = ends[y.long()] - 1 - torch.arange(len(y))
    held = torch.zeros(len(y), dtype=torch.bool)
    held[(from_end * len(ends) + y).argsort()[:count]] = True
    return held


# --- mean and standard deviation of each channel of images, or of each column of rows -----------


def check_statistics(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise InputError unless both hold one finite value per channel, and std is above zero."""
    for name, values in (("mean", mean), ("std", std)):
        try:
            finite = len(values) == channels and all(map(math.isfinite, values))
        except (TypeError, ValueError, OverflowError, RuntimeError):
            finite = False
        if not finite:
            raise InputError(f"{name} is {values}; it must be {channels} finite values")
    if min(std) <= 0:
        raise InputError(f"std is {std}; every value must be above zero")


def in_bytes(*statistics: float) -> tuple[float, ...]:
    """Return the mean or standard deviation of values from 0 to 1 for bytes, 0 to 255."""
    return tuple(value * 255 for value in statistics)


def complete_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, *parts: Tensor
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the given mean and standard deviation; None is computed from all samples."""
    if mean is None or std is None:
        computed = channel_statistics(parts[0] if len(parts) == 1 else torch.cat(parts))
        mean = computed[0] if mean is None else mean
        std = computed[1] if std is None else std
    check_statistics(mean, std, parts[0].shape[1])
    return tuple(mean), tuple(std)


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel (column of rows); std is 1 if constant."""
    if x.dtype == torch.uint8:
        counts = torch.zeros(x.shape[1], 256, dtype=torch.int64)
        for batch in x.split(_COUNTED_AT_ONCE):
            for total, values in zip(counts, batch.unbind(dim=1), strict=True):
                total += values.flatten().bincount(minlength=256).cpu()
        means, stds = zip(*map(_byte_statistics, counts), strict=True)
        return means, stds
    constant = x.amax(dim=0) == x.amin(dim=0)
    std = x.double().std(dim=0, correction=0).masked_fill(constant, 1.0)
    return tuple(x.double().mean(dim=0).tolist()), tuple(std.tolist())


def _byte_statistics(counts: Tensor) -> tuple[float, float]:
    """Return the exact mean and standard deviation, without a float copy of the images."""
    counts = counts.double()
    levels = torch.arange(256, dtype=torch.float64)
    mean = (counts @ levels) / counts.sum()
    variance = (counts @ (levels - mean) ** 2) / counts.sum()
    return float(mean), float(variance.sqrt()) or 1.0
