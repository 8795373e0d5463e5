"""Arrays and tensors of a caller as tensors of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.errors import InputError

CHANNELS = (1, 3, 4)
MOST_CLASSES = 2**20


def plain_tensor(value: Tensor, name: str) -> Tensor:
    """Return a tensor on the CPU without gradient, conjugate or negative bit.

    Raises:
        InputError: It is sparse, nested or quantised, or has no values (meta device).
    """
    check_plain(value, name)
    return value.detach().cpu().resolve_conj().resolve_neg()


def check_plain(value: Tensor, name: str) -> None:
    """Raise InputError unless the tensor holds its values as an ordinary array."""
    special = [
        kind
        for kind, is_so in (
            ("nested", value.is_nested),
            ("sparse", value.layout != torch.strided),
            ("quantised", value.is_quantized),
            ("meta", value.is_meta),
        )
        if is_so
    ]
    if special:
        raise InputError(
            f"{name} is a {special[0]} tensor; pass a dense tensor that holds its values"
        )


def as_array(value: npt.ArrayLike | Tensor, name: str) -> npt.NDArray[Any]:
    """Return anything that is like an array as a NumPy array; InputError for anything else."""
    if isinstance(value, Tensor):
        value = plain_tensor(value, name)
        return (value.float() if value.is_floating_point() else value).numpy()
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
    if array.dtype == np.uint8 and array.ndim == 3:
        return torch.from_numpy(np.array(array)).unsqueeze(1)
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] in CHANNELS:
        return torch.from_numpy(np.array(array))
    if array.dtype.kind == "f" and array.ndim == 2:
        return torch.from_numpy(_to_float32(array, name))
    raise InputError(
        f"{name} is {array.dtype} of shape {array.shape}; it must be uint8 images (N, H, W) or "
        f"(N, C, H, W) with 1, 3 or 4 channels, or float rows (N, d){_hint(array)}"
    )


def _to_float32(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    largest = np.finfo(np.float32).max
    too_large = np.isfinite(array) & (np.abs(array) > largest)
    if too_large.any():
        raise InputError(
            f"{name} holds {array[too_large][0]}; values must fit float32, at most {largest:.3g}"
        )
    return np.array(array, dtype=np.float32)


def _hint(array: npt.NDArray[Any]) -> str:
    """Return a remedy for the most common mistakes."""
    if array.ndim == 4 and array.dtype == np.uint8 and array.shape[3] in CHANNELS:
        return "; for channels last, pass x.transpose(0, 3, 1, 2)"
    if array.ndim in (3, 4) and array.dtype.kind in "iu":
        return "; if its values are 0 to 255, pass x.astype('uint8')"
    if array.ndim in (3, 4) and array.dtype.kind == "f":
        return "; if its values are 0 to 1, pass (x * 255).round().astype('uint8')"
    if array.ndim == 2 and array.dtype.kind in "iub":
        return "; pass rows as x.astype('float32')"
    return ""


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
