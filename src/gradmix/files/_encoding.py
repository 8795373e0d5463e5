"""Convert nested values with tensors to JSON and the bytes of a safetensors file, and back.

JSON has no NaN, no tensors, no tuples and no keys other than text. Objects with a special key
represent these:

    {"$tensor": name}                a tensor
    {"$tensor": name, "$strides": …} a tensor that is not stored row by row, for example
                                     channels-last weights; `name` has its axes in the order of
                                     their strides
    {"$float": "nan"}                nan, inf, -inf
    {"$tuple": [...]}                a tuple
    {"$dict": [[key, value], ...]}   a dict with keys that are not text, or start with $

The bytes of the tensors have the format of safetensors, and all its readers accept them: the length
of a header, the header (JSON: name → dtype, shape, begin and end), then the tensors without gaps.
The package `safetensors` itself needs all bytes of a file in memory at once, or a file of its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from gradmix.errors import FileError, InputError
from gradmix.files.schema import Schema, first_violation, parse_json, refuse

DEPTH = 64
"""The greatest depth of nested values; training states have at most 8."""

HEADER_LIMIT = 16 << 20  # bytes
DIMENSIONS = 64

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

Fill = Callable[[memoryview], None]
"""Fills a buffer with the next bytes of the file."""


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
        strides, usual = tensor.stride(), torch.empty(tensor.shape, device="meta").stride()
        in_order = tensor.permute(_by_stride(strides))
        if strides == usual or not in_order.is_contiguous() or not tensor.numel():
            self.tensors[name] = tensor
            return {"$tensor": name}
        self.tensors[name] = in_order
        return {"$tensor": name, "$strides": list(strides)}


def decode(value: Any, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """Return the value that was encoded; every tensor is removed from `tensors`."""
    kind = type(value)  # JSON values have exactly these types
    if kind not in (dict, list):
        return value
    if depth > DEPTH:
        raise FileError(f"its values are nested more than {DEPTH} levels deep")
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
            raise FileError(f"its state refers to the missing tensor {content[:80]!r}")
        if len(value) == 1:
            return tensors.pop(content)
        if marks == ["$tensor", "$strides"]:
            return _laid_out(tensors.pop(content), value["$strides"])
    raise FileError(f"its state has an object with the unknown keys {', '.join(marks)[:80]}")


def _decode_dict(items: list[Any], tensors: dict[str, Tensor], depth: int) -> dict[Any, Any]:
    result = {}
    for item in items:
        if not (isinstance(item, list) and len(item) == 2):
            raise FileError("its state has a $dict that is not a list of keys and values")
        key, content = (decode(part, tensors, depth) for part in item)
        if not (key is None or isinstance(key, str | int | float)):
            raise FileError(f"its state has a key of type {type(key).__name__}")
        result[key] = content
    return result


def _laid_out(tensor: Tensor, strides: Any) -> Tensor:
    """Return the tensor with these strides; `tensor` has its axes in the order of the strides."""
    whole = isinstance(strides, list) and all(type(s) is int and 0 <= s < 2**63 for s in strides)
    if whole and len(strides) == tensor.ndim and tensor.numel():
        order = _by_stride(strides)
        found = tensor.permute([order.index(axis) for axis in range(tensor.ndim)])
        layout = zip(found.shape, found.stride(), strides, strict=True)
        if all(size == 1 or own == stride for size, own, stride in layout):
            return found.as_strided(found.shape, strides)
    raise FileError(f"its state has strides {str(strides)[:80]} for shape {tuple(tensor.shape)}")


def _by_stride(strides: Sequence[int]) -> list[int]:
    """Return the axes in the order of the elements in memory."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _text(path: tuple[str, ...]) -> str:
    return "/".join(path) or "its root"


# --- tensors ------------------------------------------------------------------------------------


def to_buffers(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the bytes of the file in pieces; tensors on the CPU are not copied."""
    header: dict[str, Any] = {}
    buffers, place = [], 0
    # Wide numbers come first, so that every tensor starts at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        if tensor.dtype not in _CODES:
            raise InputError(
                f"the tensor {name} has dtype {tensor.dtype}; safetensors cannot store it"
            )
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        buffer = plain.reshape(-1).view(torch.uint8).numpy().data
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(buffer)],
        }
        place += len(buffer)
        buffers.append(buffer)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise InputError(f"the state has {len(tensors)} tensors; that is too many for one file")
    return [memoryview(len(text).to_bytes(8, "little") + text), *buffers]


Size = Annotated[int, Field(ge=0, lt=2**63)]


class Entry(Schema):
    """A tensor as the header describes it."""

    dtype: str
    shape: Annotated[list[Size], Field(max_length=DIMENSIONS)]
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _fits(self) -> Entry:
        if self.dtype not in DTYPES:
            refuse(f"the dtype {self.dtype[:40]!r} is unknown")
        # PyTorch multiplies the sizes without regard to zeros, so an empty tensor can overflow.
        too_large = math.prod(filter(None, self.shape)) >= 2**63
        bytes_needed = math.prod(self.shape) * DTYPES[self.dtype].itemsize
        begin, end = self.data_offsets
        if too_large or bytes_needed != end - begin:
            refuse(f"shape {str(self.shape)[:80]} and dtype {self.dtype} for {end - begin} bytes")
        return self


_Header = TypeAdapter(dict[str, Entry])


def read_tensors(size: int, fill: Fill) -> dict[str, Tensor]:
    """Return the tensors of a member of `size` bytes; sizes are checked before memory is allocated.

    Raises:
        FileError: If the header is invalid or does not fit the size.
    """
    if size < 8:
        raise FileError(f"its tensors have {size} bytes, too few for a header")
    prefix = bytearray(8)
    fill(memoryview(prefix))
    length = int.from_bytes(prefix, "little")
    if length > min(size - 8, HEADER_LIMIT):
        raise FileError(f"its tensors claim a header of {length} bytes; the member has {size}")
    header = bytearray(length)
    fill(memoryview(header))
    entries = _read_header(bytes(header), size - 8 - length)
    there = 0
    with suppress(AttributeError, OSError, ValueError):  # the system does not tell its memory
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 0 < there < size:  # a sparse file takes no space on disk
        raise FileError(f"its tensors need {size} bytes of memory; this machine has {there}")
    return {name: _read(name, entry, fill) for name, entry in entries.items()}


def _read_header(text: bytes, size: int) -> dict[str, Entry]:
    """Return the entries of a header in the order of their bytes, which must be `size` in total."""
    header = parse_json(text, "the header of its tensors")
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    try:
        found = _Header.validate_python(header)
    except ValidationError as error:
        raise FileError(f"the header of its tensors: {first_violation(error)[:200]}") from None
    entries = dict(sorted(found.items(), key=lambda item: item[1].data_offsets))
    place = 0
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if begin != place:
            raise FileError(f"its tensor {name[:80]!r} starts at {begin}, not at {place}")
        place = end
    if place != size:
        raise FileError(f"its tensors end at byte {place} of {size}")
    return entries


def _read(name: str, entry: Entry, fill: Fill) -> Tensor:
    begin, end = entry.data_offsets
    try:
        flat = torch.empty(end - begin, dtype=torch.uint8)
        fill(flat.numpy().data)
        if entry.dtype == "BOOL" and len(flat) and int(flat.max()) > 1:
            raise FileError(f"its tensor {name[:80]!r} has booleans other than 0 and 1")
        return flat.view(DTYPES[entry.dtype]).view(entry.shape)
    except RuntimeError as error:  # PyTorch: not enough memory, or an impossible shape
        reason = str(error).splitlines()[0]
        raise FileError(f"its tensor {name[:80]!r} cannot be created: {reason}") from None
