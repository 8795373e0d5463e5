"""The zip around the members: one fixed layout, so that a reader can check every byte of it.

    local header, manifest.json, local header, state.json, local header, tensors.safetensors,
    directory of the three

Members are stored, never compressed, and in zip64 form whatever their size, so that all there is
of the zip follows from names, sizes and CRC-32s. Any zip tool can read it; one that writes it
anew gives another layout, which is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SIZES = struct.Struct("<2H2Q")  # of a local header: the zip64 field
_PLACE = struct.Struct("<2H3Q")  # of a directory entry: the zip64 field
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")

_NEEDED = 45  # the version of the zip format that has zip64
_STORED = 0
_DATE = 1 << 5 | 1  # 1 January 1980; a file of the same content is the same file
_IN_ZIP64 = 0xFFFFFFFF


class Member(NamedTuple):
    """What the zip says of a member."""

    name: str
    size: int
    crc32: int


def header_length(name: str) -> int:
    """Of the local header of a member of this name."""
    return _LOCAL.size + len(name) + _SIZES.size


def local_header(member: Member) -> bytes:
    """What stands before a member's bytes."""
    name = member.name.encode()
    common = (_NEEDED, 0, _STORED, 0, _DATE, member.crc32, _IN_ZIP64, _IN_ZIP64)
    sizes = _SIZES.pack(1, _SIZES.size - 4, member.size, member.size)
    return _LOCAL.pack(b"PK\3\4", *common, len(name), len(sizes)) + name + sizes


def read_local_header(data: bytes, name: str) -> Member | None:
    """The member that a header of this name describes; None if it is no such header."""
    if len(data) != header_length(name):
        return None
    crc32 = _LOCAL.unpack_from(data)[6]
    size = _SIZES.unpack_from(data, len(data) - _SIZES.size)[2]
    member = Member(name, size, crc32)
    return member if local_header(member) == data else None


def offsets(members: Sequence[Member]) -> list[int]:
    """Where the local headers of the members stand, and then the directory."""
    places = [0]
    for member in members:
        places.append(places[-1] + header_length(member.name) + member.size)
    return places


def directory(members: Sequence[Member]) -> bytes:
    """What stands after the last member."""
    *places, start = offsets(members)
    entries = b"".join(_entry(*pair) for pair in zip(members, places, strict=True))
    count, size = len(members), len(entries)
    end64 = _END64.pack(
        b"PK\6\6", _END64.size - 12, _NEEDED, _NEEDED, 0, 0, count, count, size, start
    )
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, size, _IN_ZIP64, 0)
    return entries + end64 + locator + end


def _entry(member: Member, place: int) -> bytes:
    name = member.name.encode()
    common = (_NEEDED, 0, _STORED, 0, _DATE, member.crc32, _IN_ZIP64, _IN_ZIP64)
    where = _PLACE.pack(1, _PLACE.size - 4, member.size, member.size, place)
    rest = (len(name), len(where), 0, 0, 0, 0, _IN_ZIP64)
    return _CENTRAL.pack(b"PK\1\2", _NEEDED, *common, *rest) + name + where
