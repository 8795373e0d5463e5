"""Convert nested values with tensors to JSON with references to named tensors, and back.

JSON has no NaN, no tensors, no tuples and no keys other than text. Objects with a special key
represent these:

    {"$tensor": name}                a tensor
    {"$tensor": name, "$strides": …} a tensor that is not stored row by row, for example
                                     channels-last weights; `name` has its axes in the order of
                                     their strides
    {"$float": "nan"}                nan, inf, -inf
    {"$tuple": [...]}                a tuple
    {"$dict": [[key, value], ...]}   a dict with keys that are not text, or start with $
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmix.errors import InputError

DEPTH = 64
"""The greatest depth of nested values; training states have at most 8."""


class Damaged(Exception):  # noqa: N818 (internal: readers turn it into a FileError)
    """A file is invalid; the message says why."""


class Encoder:
    """Turns values into JSON values and collects the tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return the JSON for a value; `path` is its position in the state."""
        if len(path) > DEPTH:
            raise InputError(f"the state is nested more than {DEPTH} levels deep at {_text(path)}")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, Tensor):
            return self._reference(value, path)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if type(value) in (list, tuple):
            items = [self.encode(item, (*path, str(n))) for n, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        raise InputError(
            f"the state has a {type(value).__name__} at {_text(path)}; files store tensors, "
            "numbers, text, booleans and None, in dicts, lists and tuples"
        )

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        items = []
        for key, item in value.items():
            if not (key is None or isinstance(key, str | int | float)):
                raise InputError(f"a key at {_text(path)} is {key!r}; keys must be text or numbers")
            items.append((key, self.encode(item, (*path, str(key)))))
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
            return dict(items)
        return {"$dict": [[self.encode(key), item] for key, item in items]}

    def _reference(self, tensor: Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        if tensor.layout != torch.strided:
            raise InputError(f"the tensor at {_text(path)} is {tensor.layout}; give a dense one")
        name = _text(path)
        while name in self.tensors or name == "__metadata__":  # reserved by safetensors
            name += "'"
        shape, strides = tensor.shape, tensor.stride()
        if strides == _contiguous(shape) or not _dense(shape, strides):
            self.tensors[name] = tensor
            return {"$tensor": name}
        self.tensors[name] = tensor.permute(_by_stride(strides))
        return {"$tensor": name, "$strides": list(strides)}


def decode(value: Any, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """Return the value that was encoded; every tensor is removed from `tensors`."""
    kind = type(value)  # JSON values have exactly these types
    if kind not in (dict, list):
        return value
    if depth > DEPTH:
        raise Damaged(f"its values are nested more than {DEPTH} levels deep")
    if kind is list:
        return [decode(item, tensors, depth + 1) for item in value]
    marks = [key for key in value if key[:1] == "$"]
    if not marks:
        return {key: decode(item, tensors, depth + 1) for key, item in value.items()}
    content = value[marks[0]]
    if marks == ["$float"] and content in ("nan", "inf", "-inf"):
        return float(content)
    if marks == ["$tuple"] and isinstance(content, list):
        return tuple(decode(item, tensors, depth + 1) for item in content)
    if marks == ["$dict"] and isinstance(content, list):
        return _decode_dict(content, tensors, depth + 1)
    if marks[0] == "$tensor" and len(value) == len(marks) and isinstance(content, str):
        if content not in tensors:
            raise Damaged(f"its state refers to the missing tensor {content[:80]!r}")
        if len(value) == 1:
            return tensors.pop(content)
        if marks == ["$tensor", "$strides"]:
            return _laid_out(tensors.pop(content), value["$strides"])
    raise Damaged(f"its state has an object with the unknown keys {', '.join(marks)[:80]}")


def _decode_dict(items: list[Any], tensors: dict[str, Tensor], depth: int) -> dict[Any, Any]:
    result = {}
    for item in items:
        if not (isinstance(item, list) and len(item) == 2):
            raise Damaged("its state has a $dict that is not a list of keys and values")
        key, content = (decode(part, tensors, depth) for part in item)
        if not (key is None or isinstance(key, str | int | float)):
            raise Damaged(f"its state has a key of type {type(key).__name__}")
        result[key] = content
    return result


def _laid_out(tensor: Tensor, strides: Any) -> Tensor:
    """Return the tensor with these strides; `tensor` has its axes in the order of the strides."""
    whole = isinstance(strides, list) and all(type(s) is int and 0 <= s < 2**63 for s in strides)
    if whole and len(strides) == tensor.ndim:
        sizes = dict(zip(_by_stride(strides), tensor.shape, strict=True))
        shape = torch.Size(sizes[axis] for axis in range(tensor.ndim))
        if _dense(shape, strides):
            return tensor.as_strided(shape, strides)
    raise Damaged(f"its state has strides {str(strides)[:80]} for shape {tuple(tensor.shape)}")


def _by_stride(strides: Sequence[int]) -> list[int]:
    """Return the axes in the order of the elements in memory."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _dense(shape: torch.Size, strides: Any) -> bool:
    """Whether the elements fill their memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return expected > 0


def _text(path: tuple[str, ...]) -> str:
    return "/".join(path) or "its root"
