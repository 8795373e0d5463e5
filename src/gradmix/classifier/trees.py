"""Nested values with tensors, as files contain them: move, copy and compare them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def moved(value: Any, device: torch.device) -> Any:
    """Return a state with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value


def copy_of(value: Any) -> Any:
    """Return a state with copies of its tensors, in the same memory layout."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copy_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_of(item) for item in value]
    return copy.copy(value)


def digest(value: Any) -> str:
    """Return the SHA-256 of nested values with tensors."""
    result = hashlib.sha256()

    def update(part: Any) -> None:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype}{tuple(part.shape)}".encode())
            result.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, Mapping):
            for key in sorted(part, key=str):
                update(key)
                update(part[key])
        elif isinstance(part, (list, tuple)):
            result.update(f"[{len(part)}".encode())
            for item in part:
                update(item)
        else:
            result.update(f"{type(part).__name__}:{part!r};".encode())

    update(value)
    return result.hexdigest()
