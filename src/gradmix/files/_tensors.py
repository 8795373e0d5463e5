"""Convert named tensors to the bytes of a safetensors file and back, without a second copy.

The format is safetensors, and all its readers accept it: the length of a header, the header
(JSON: name → dtype, shape, begin and end), then the bytes of the tensors without gaps. The package
`safetensors` itself needs all bytes of a file in memory at once, or a file of its own to map.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from gradmix.errors import FileError, InputError
from gradmix.files._values import Damaged
from gradmix.files.json_file import parse_json
from gradmix.files.schema import Schema, first_violation, refuse

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
        Damaged: If the header is invalid or does not fit the size.
    """
    if size < 8:
        raise Damaged(f"its tensors have {size} bytes, too few for a header")
    length = int.from_bytes(_filled(8, fill), "little")
    if length > min(size - 8, HEADER_LIMIT):
        raise Damaged(f"its tensors claim a header of {length} bytes; the member has {size}")
    entries = read_header(bytes(_filled(length, fill)), size - 8 - length)
    _check_memory(size)
    return {name: _read(name, entry, fill) for name, entry in entries.items()}


def read_header(text: bytes, size: int) -> dict[str, Entry]:
    """Return the entries of a header in the order of their bytes, which must be `size` in total."""
    try:
        header = parse_json(text, "the header of its tensors")
        if isinstance(header, dict):
            header.pop("__metadata__", None)
        found = _Header.validate_python(header)
    except FileError as error:
        raise Damaged(str(error)) from None
    except ValidationError as error:
        raise Damaged(f"the header of its tensors: {first_violation(error)[:200]}") from None
    entries = dict(sorted(found.items(), key=lambda item: item[1].data_offsets))
    place = 0
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if begin != place:
            raise Damaged(f"its tensor {name[:80]!r} starts at {begin}, not at {place}")
        place = end
    if place != size:
        raise Damaged(f"its tensors end at byte {place} of {size}")
    return entries


def _read(name: str, entry: Entry, fill: Fill) -> Tensor:
    begin, end = entry.data_offsets
    try:
        flat = torch.empty(end - begin, dtype=torch.uint8)
        fill(flat.numpy().data)
        if entry.dtype == "BOOL" and len(flat) and int(flat.max()) > 1:
            raise Damaged(f"its tensor {name[:80]!r} has booleans other than 0 and 1")
        return flat.view(DTYPES[entry.dtype]).view(entry.shape)
    except RuntimeError as error:  # PyTorch: not enough memory, or an impossible shape
        reason = str(error).splitlines()[0]
        raise Damaged(f"its tensor {name[:80]!r} cannot be created: {reason}") from None


def _filled(size: int, fill: Fill) -> bytearray:
    data = bytearray(size)
    fill(memoryview(data))
    return data


def _check_memory(size: int) -> None:
    """Refuse tensors larger than the machine's memory: a sparse file takes no space on disk."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # the system does not tell
        return
    if 0 < there < size:
        raise Damaged(f"its tensors need {size} bytes of memory; this machine has {there}")
