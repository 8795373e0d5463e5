"""The (image, label) items of any PyTorch dataset as one tensor of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.data.arrays import CHANNELS, plain_tensor
from gradmix.data.image_folders.decode import channels_first, convert, is_grey
from gradmix.errors import InputError

_ROUNDING = 1e-3  # largest distance of 255 · float from a whole number
_ROUNDING_OF_HALF = 0.07  # for float16: half of its last digit below 1, times 255


def own_class_names(dataset: object) -> Sequence[str] | None:
    """Return the class names in `classes`, where torchvision's datasets have them, or None."""
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, (list, tuple)) and all(isinstance(item, str) for item in classes):
        return classes
    return None


def read_items(dataset: Any, where: str) -> tuple[Tensor, list[int]]:
    """Return all images as one uint8 tensor (or float rows) and their labels."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"{where} is a {type(dataset).__name__}; it must be a map-style dataset, with a length "
            "and items by index"
        )
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        image, label = _item(dataset[index], f"{where}[{index}]")
        if images and (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
            raise InputError(
                f"{where}[{index}] is {image.dtype} of shape {tuple(image.shape)} and {where}[0] "
                f"{images[0].dtype} of {tuple(images[0].shape)}; all must have the same form"
            )
        images.append(image)
        labels.append(label)
    if not images:
        raise InputError(f"{where} is empty; a data set needs samples")
    return torch.stack(images), labels


def _item(item: Any, where: str) -> tuple[Tensor, int]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InputError(f"{where} is a {type(item).__name__}; it must be a pair (image, label)")
    image, label = item
    if isinstance(label, Tensor):
        label = plain_tensor(label, f"the label of {where}").numpy()
    if isinstance(label, np.ndarray) and label.ndim == 0:
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)):
        raise InputError(f"{where} has the label {label!r}; it must be an integer")
    return bytes_of(_one_image(image, where), where), int(label)


def _one_image(image: Any, where: str) -> Tensor:
    """Return an image as a tensor (C, H, W), or a row as (d,), with its own type."""
    if isinstance(image, Tensor):
        pixels = plain_tensor(image, where)
    elif isinstance(image, np.ndarray):
        pixels = _array_pixels(image, where)
    elif hasattr(image, "mode") and hasattr(image, "convert"):  # a Pillow image
        pixels = torch.from_numpy(_pillow_pixels(image, where))
    else:
        raise InputError(
            f"{where} has an image of type {type(image).__name__}; it must be a tensor, a NumPy "
            "array or a Pillow image"
        )
    pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels
    if pixels.ndim != 1 and (pixels.ndim != 3 or pixels.shape[0] not in CHANNELS):
        raise InputError(
            f"{where} has an image of shape {tuple(image.shape)}; tensors must be (C, H, W) and "
            "arrays (H, W, C), both with 1, 3 or 4 channels, or (H, W)"
        )
    return pixels


def _array_pixels(image: npt.NDArray[Any], where: str) -> Tensor:
    if image.dtype.kind not in "iufb" or image.dtype == np.longdouble:
        raise InputError(f"{where} has an image of {image.dtype}; it must be uint8")
    array = np.array(image, dtype=image.dtype.newbyteorder("="))  # a copy with native strides
    return torch.from_numpy(array.transpose(2, 0, 1) if array.ndim == 3 else array)


def _pillow_pixels(image: Any, where: str) -> npt.NDArray[np.uint8]:
    try:
        return np.array(channels_first(convert(image, 1 if is_grey(image.mode) else 3)))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def bytes_of(pixels: Tensor, where: str) -> Tensor:
    """Return bytes: unchanged, or from floats that are bytes divided by 255; rows stay floats.

    Raises:
        InputError: Floats are not bytes divided by 255, or pixels have another type.
    """
    if pixels.dtype == torch.uint8 or (pixels.ndim == 1 and pixels.is_floating_point()):
        return pixels
    if not pixels.is_floating_point():
        raise InputError(f"{where} has an image of {pixels.dtype}; it must be torch.uint8")
    scaled = pixels.double() * 255
    rounded = scaled.round()
    away = _ROUNDING_OF_HALF if pixels.dtype == torch.float16 else _ROUNDING
    exact = bool(((scaled - rounded).abs() <= away).all())  # also not NaN
    if not exact or bool(((rounded < 0) | (rounded > 255)).any()):
        least, most = float(pixels.min()), float(pixels.max())
        advice = "leave out transforms such as Normalize"
        if 0 <= least <= most <= 1:
            advice += ", or pass bytes: (x * 255).round().to(torch.uint8)"
        elif 0 <= least <= most <= 255:
            advice += ", or pass bytes: x.round().to(torch.uint8)"
        raise InputError(
            f"{where} has floats from {least:.4g} to {most:.4g} that are not bytes divided by 255; "
            f"{advice}"
        )
    return rounded.to(torch.uint8)
