"""Named tensors ↔ the bytes of a safetensors file, without a second copy of them in memory.

The format is safetensors', and any of its readers takes it: the length of a header, the header
(JSON: name → dtype, shape, begin and end), then the tensors' bytes, without gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.files._values import Damaged

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
"""Fills a buffer with the bytes that come next in the file."""


def to_buffers(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The member's bytes, in pieces; tensors on the CPU are not copied."""
    header: dict[str, Any] = {}
    buffers, place = [], 0
    # Wide numbers first, so that every tensor starts at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        if tensor.dtype not in _CODES:
            raise InputError(f"the tensor {name} is {tensor.dtype}, which safetensors has not")
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
        raise InputError(f"the state has {len(tensors)} tensors, too many for one file")
    return [memoryview(len(text).to_bytes(8, "little") + text), *buffers]


class Entry(NamedTuple):
    """What the header says of a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_tensors(size: int, fill: Fill) -> dict[str, Tensor]:
    """The tensors of a member of `size` bytes; nothing is allocated that it does not have."""
    if size < 8:
        raise Damaged(f"its tensors are {size} bytes, which not even a header fits in")
    length = int.from_bytes(_filled(8, fill), "little")
    if length > min(size - 8, HEADER_LIMIT):
        raise Damaged(f"its tensors claim a header of {length} bytes; the member has {size}")
    entries = read_header(bytes(_filled(length, fill)), size - 8 - length)
    _check_memory(size)
    return {entry.name: _read(entry, fill) for entry in entries}


def read_header(text: bytes, size: int) -> list[Entry]:
    """What a header says, in the order of the bytes, of which there are `size`."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the header of its tensors is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise Damaged("the header of its tensors is no object")
    header.pop("__metadata__", None)
    entries = sorted((_entry(name, about) for name, about in header.items()), key=_place)
    place = 0
    for entry in entries:
        if entry.begin != place:
            raise Damaged(f"its tensor {entry.name!r} starts at {entry.begin} instead of {place}")
        place = entry.end
    if place != size:
        raise Damaged(f"its tensors end at {place} of {size} bytes")
    return entries


def _place(entry: Entry) -> tuple[int, int]:
    return entry.begin, entry.end


def _entry(name: str, about: Any) -> Entry:
    if not (isinstance(about, dict) and about.keys() == {"dtype", "shape", "data_offsets"}):
        raise Damaged(f"its tensor {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, place = about["dtype"], about["shape"], about["data_offsets"]
    if not (isinstance(dtype, str) and dtype in DTYPES):
        raise Damaged(f"its tensor {name!r} is of {str(dtype)[:40]!r}, which is not known")
    if not (_sizes(shape) and len(shape) <= DIMENSIONS and math.prod(filter(None, shape)) < 2**63):
        raise Damaged(f"its tensor {name!r} has the shape {str(shape)[:80]}")
    if not (_sizes(place) and len(place) == 2):
        raise Damaged(f"its tensor {name!r} has the offsets {str(place)[:80]}")
    begin, end = place
    kind = DTYPES[dtype]
    if math.prod(shape) * kind.itemsize != end - begin:
        raise Damaged(f"its tensor {name!r} of shape {shape} and {dtype} has {end - begin} bytes")
    return Entry(name, kind, tuple(shape), begin, end)


def _sizes(value: Any) -> bool:
    """Whether it is a list of whole numbers that PyTorch can count to."""
    if type(value) is not list or not {*map(type, value)} <= {int}:
        return False
    return min(value, default=0) >= 0 and max(value, default=0) < 2**63


def _read(entry: Entry, fill: Fill) -> Tensor:
    try:
        flat = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
        fill(flat.numpy().data)
        if entry.dtype is torch.bool and len(flat) and int(flat.max()) > 1:
            raise Damaged(f"its tensor {entry.name!r} has booleans other than 0 and 1")
        typed = flat if entry.dtype is torch.uint8 else flat.view(entry.dtype)
        return typed if len(entry.shape) == 1 else typed.view(entry.shape)
    except RuntimeError as error:  # PyTorch's: no such memory, no such shape
        reason = str(error).splitlines()[0]
        raise Damaged(f"its tensor {entry.name!r} cannot be made: {reason}") from None


def _filled(size: int, fill: Fill) -> bytearray:
    data = bytearray(size)
    fill(memoryview(data))
    return data


def _check_memory(size: int) -> None:
    """Refuse what cannot fit: a file may be large without taking any space on its disk."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return
    if 0 < there < size:
        raise Damaged(f"its tensors need {size} bytes of memory; this machine has {there}")
