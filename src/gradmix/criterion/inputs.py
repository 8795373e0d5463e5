"""Checks of the network inputs and labels that users pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.types import Samples


def check_samples(
    name: str, samples: Any, num_outputs: int, *, may_be_empty: bool = False
) -> Samples:
    """Return a pair of network inputs (N, …) and int64 labels (N,) as samples.

    Args:
        name: The argument, for the message.
        samples: The pair.
        num_outputs: Outputs of the head; labels are below it.
        may_be_empty: Whether there may be no sample.

    Raises:
        InputError: If the pair cannot be used.
    """
    if not isinstance(samples, (tuple, list)) or len(samples) != 2:
        raise InputError(f"{name} is a {type(samples).__name__}; give a pair: inputs and labels")
    x, y = samples
    for part, value in (("inputs", x), ("labels", y)):
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise InputError(f"{name} {part} are {type(value).__name__}; give a tensor of N rows")
        if value.layout != torch.strided or value.is_meta:
            raise InputError(f"{name} {part} are {value.layout} on {value.device}; give dense data")
    if len(x) != len(y) or (len(y) == 0 and not may_be_empty):
        raise InputError(f"{name} has {len(x)} inputs and {len(y)} labels; give as many, above 0")
    if y.dtype != torch.int64 or y.ndim != 1:
        raise InputError(f"{name} labels are {y.dtype} of {y.ndim} dimensions; give int64 (N,)")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_outputs:
        raise InputError(
            f"{name} labels run from {int(y.min())} to {int(y.max())}; "
            f"the head has outputs 0 to {num_outputs - 1}"
        )
    if not x.is_floating_point():
        raise InputError(f"{name} inputs are {x.dtype}; give floating-point network inputs")
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{name} inputs have NaN or infinite values")
    return Samples(x, y)
