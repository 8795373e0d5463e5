"""Arrays, tensors and PyTorch datasets of a caller as tensors of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix._setting_types import is_whole
from gradmix.data.image_folders.decode import channels_first, convert, is_grey
from gradmix.errors import InputError

CHANNELS = (1, 3, 4)
MOST_CLASSES = 2**20
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_ROUNDING = 1e-3  # largest distance of 255 · float from a whole number
_ROUNDING_OF_HALF = 0.07  # for float16: half of its last digit below 1, times 255


def check_plain(value: Tensor, name: str) -> None:
    """Raise InputError unless the tensor holds its values as an ordinary array."""
    special = {
        "nested": value.is_nested,
        "sparse": value.layout != torch.strided,
        "quantised": value.is_quantized,
        "meta": value.is_meta,
    }
    for kind, is_so in special.items():
        if is_so:
            raise InputError(f"{name} is a {kind} tensor; pass a dense tensor with its values")


def as_array(value: npt.ArrayLike | Tensor, name: str) -> npt.NDArray[Any]:
    """Return anything that is like an array as a NumPy array; InputError for anything else."""
    if isinstance(value, Tensor):
        check_plain(value, name)
        unknown = value.is_floating_point() and value.dtype not in _NUMPY_FLOATS
        return (value.float() if unknown else value).numpy(force=True)
    if hasattr(value, "toarray"):
        raise InputError(f"{name} is a sparse matrix; pass {name}.toarray()")
    if np.ma.is_masked(value):
        raise InputError(f"{name} has masked values; fill them or leave them out")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} is not a rectangular array: {error}") from error


def read_inputs(value: npt.ArrayLike | Tensor, name: str) -> Tensor:
    """Return a copy as uint8 images (N, C, H, W) or float32 rows (N, d); else InputError."""
    array = as_array(value, name)
    if array.dtype.kind == "f" and array.ndim == 2:
        return torch.from_numpy(_to_float32(array, name))
    return image_stack(array, name)


def _to_float32(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    largest = np.finfo(np.float32).max
    too_large = np.isfinite(array) & (np.abs(array) > largest)
    if too_large.any():
        raise InputError(
            f"{name} holds {array[too_large][0]}; values must fit float32, at most {largest:.3g}"
        )
    return np.array(array, dtype=np.float32)


def image_stack(array: npt.NDArray[Any], name: str) -> Tensor:
    """Return images (N, H, W), (N, C, H, W) or (N, H, W, C) as uint8 (N, C, H, W).

    InputError for another shape, and for values that are neither bytes nor bytes / 255.
    """
    if array.dtype.kind in "iub" and array.size and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    readable = array.dtype == np.uint8 or array.dtype.kind == "f"
    if not readable or array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; images are bytes, 0 to 255, or "
            "floats from 0 to 1, (N, H, W), (N, C, H, W) or (N, H, W, C), at least one; rows are "
            "floats (N, d)"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in CHANNELS and array.shape[3] in CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in CHANNELS:
        raise InputError(
            f"{name} has shape {array.shape}; images have 1, 3 or 4 channels, (N, C, H, W) or "
            "(N, H, W, C)"
        )
    kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return _as_bytes(torch.from_numpy(np.array(array, dtype=kind)), name).contiguous()


def one_image(item: npt.NDArray[Any] | Tensor, name: str) -> Tensor:
    """Return one array (H, W), (H, W, C) or (C, H, W) as uint8 (C, H, W).

    If both ends could be channels, a NumPy array is (H, W, C) and a tensor (C, H, W).
    """
    array = as_array(item, name)
    first, last = (array.ndim > 0 and array.shape[axis] in CHANNELS for axis in (0, -1))
    if array.ndim == 3 and last and not (first and isinstance(item, Tensor)):
        array = array.transpose(2, 0, 1)
    return image_stack(array[None], name)[0]


def _as_bytes(pixels: Tensor, name: str) -> Tensor:
    """Return bytes: unchanged, or from floats that are bytes divided by 255; else InputError."""
    if pixels.dtype == torch.uint8:
        return pixels
    if not bool(pixels.isfinite().all()):
        raise InputError(f"{name} contains NaN or infinity; replace these values with pixels")
    scaled = pixels.double() * 255
    rounded = scaled.round()
    away = _ROUNDING_OF_HALF if pixels.dtype == torch.float16 else _ROUNDING
    exact = bool(((scaled - rounded).abs() <= away).all())
    if not exact or bool(((rounded < 0) | (rounded > 255)).any()):
        least, most = float(pixels.min()), float(pixels.max())
        advice = "leave out transforms such as Normalize"
        if 0 <= least <= most <= 1:
            advice += ", or pass bytes: (x * 255).round().to(torch.uint8)"
        elif 0 <= least <= most <= 255:
            advice += ", or pass bytes: x.round().to(torch.uint8)"
        raise InputError(
            f"{name} has floats from {least:.4g} to {most:.4g} that are not bytes divided by 255; "
            f"{advice}"
        )
    return rounded.to(torch.uint8)


def read_class_labels(value: npt.ArrayLike | Tensor, name: str) -> Tensor:
    """Return a copy as int64 labels; InputError unless they are integers below MOST_CLASSES."""
    array = as_array(value, name)
    if array.dtype.kind not in "iu":
        example = f", such as {array.flat[0]!r}" if array.size else ""
        raise InputError(
            f"{name} is of type {array.dtype}{example}; labels must be integers from 0 to the "
            "number of classes less one, and names belong into class_names"
        )
    if array.size and int(array.max()) >= MOST_CLASSES:
        raise InputError(
            f"{name} holds label {array.max()}; number the classes 0, 1, 2, … below {MOST_CLASSES}"
        )
    return torch.from_numpy(np.array(array, dtype=np.int64))


# --- PyTorch datasets -----------------------------------------------------------------------


def own_class_names(dataset: object) -> Sequence[str] | None:
    """Return the class names in `classes`, where torchvision's datasets have them, or None."""
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, (list, tuple)) and all(isinstance(item, str) for item in classes):
        return classes
    return None


def read_items(dataset: Any, where: str) -> tuple[Tensor, list[int]]:
    """Return all images of a map-style dataset as uint8 (N, C, H, W) or rows, and their labels."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"{where} is a {type(dataset).__name__}; it must be a map-style dataset, with a length "
            "and items by index"
        )
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        item, at = dataset[index], f"{where}[{index}]"
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(f"{at} is a {type(item).__name__}; it must be a pair (image, label)")
        image, label = _input(item[0], at), item[1]
        if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 0:
            label = as_array(label, f"the label of {at}").item()
        if not is_whole(label):
            raise InputError(f"{at} has the label {label!r}; it must be an integer")
        if images and (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
            raise InputError(
                f"{at} is {image.dtype} of shape {tuple(image.shape)} and {where}[0] "
                f"{images[0].dtype} of {tuple(images[0].shape)}; all must have the same form"
            )
        images.append(image)
        labels.append(int(label))
    if not images:
        raise InputError(f"{where} is empty; a data set needs samples")
    return torch.stack(images), labels


def _input(image: Any, where: str) -> Tensor:
    """Return an image as uint8 (C, H, W), or a row of floats as float32 (d,)."""
    if hasattr(image, "mode") and hasattr(image, "convert"):  # a Pillow image
        channels = 1 if is_grey(image.mode) else 3
        try:
            converted = convert(image, channels)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        pixels = torch.empty((channels, converted.height, converted.width), dtype=torch.uint8)
        channels_first(converted, pixels.numpy())
        return pixels
    if not isinstance(image, (Tensor, np.ndarray)):
        raise InputError(
            f"{where} has an image of type {type(image).__name__}; it must be a tensor, a NumPy "
            "array or a Pillow image"
        )
    if image.ndim == 1 and (array := as_array(image, where)).dtype.kind == "f":
        return torch.from_numpy(_to_float32(array, where))
    return one_image(image, where)
