"""The zip around a state, and its manifest: one fixed layout, so that a reader can check each byte.

    local header, manifest.json, local header, state.json, local header, tensors.safetensors,
    directory of the three

Members are stored without compression and always in zip64 form. The zip structure therefore
follows from the names, sizes and CRC-32s of the members. Any zip tool can read the file; a file
that another tool rewrites has another layout and is refused.

Every version of the format starts with the zip header of a stored `manifest.json`. Any version of
gradmix can therefore read the version and kind of a file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gradmix.errors import FileError, InputError
from gradmix.files.schema import MOST_CONTAINERS, Schema, first_violation, parse_json, refuse

HERE = version_of("gradmix")
VERSION = 2
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
MANIFEST_LIMIT = 1 << 16  # bytes
STATE_LIMIT = 16 << 20

# --- the manifest ---------------------------------------------------------------------------


class Member(Schema):
    """A member of the zip and its checksums."""

    name: str
    size: Annotated[int, Field(ge=0, lt=2**63)]
    crc32: Annotated[int, Field(ge=0, lt=2**32)]
    xxh3: str = ""  # 128 bits; the manifest itself has none


class _Versioned(Schema):
    """The part of a manifest that every version of the format has."""

    model_config = ConfigDict(extra="ignore")
    format: Literal["gradmix"]
    kind: str  # for example "classifier" or "checkpoint"
    version: Annotated[int, Field(ge=1)]  # of the format
    gradmix: Annotated[str, Field(max_length=40)]  # the version that wrote the file


class Manifest(_Versioned):
    """The description that a file contains of itself."""

    members: Annotated[list[Member], Field(min_length=2, max_length=2)]  # state and tensors

    @model_validator(mode="after")
    def _check(self) -> Manifest:
        if [member.name for member in self.members] != [STATE, TENSORS]:
            refuse(f"members are not {STATE} and {TENSORS}")
        if self.members[0].size > STATE_LIMIT:
            refuse(f"{STATE} has more than {STATE_LIMIT} bytes")
        return self


def compose(kind: str, members: Sequence[Member]) -> bytes:
    """Return the manifest of a new file."""
    own = {"format": "gradmix", "kind": kind, "version": VERSION, "gradmix": HERE}
    return to_json({**own, "members": [member.model_dump() for member in members]})


def parse(text: bytes) -> Manifest:
    """Return the manifest; FileError if it is invalid or has another version."""
    values = parse_json(text, "its manifest")
    try:
        about = _Versioned.model_validate(values)
        if about.version != VERSION:
            newer = f"install gradmix {about.gradmix} or later"
            older = f"learn again, or read it with gradmix {about.gradmix}"
            raise FileError(
                f"it has version {about.version} of the format, and this is gradmix {HERE}, which "
                f"reads version {VERSION}: {newer if about.version > VERSION else older}"
            )
        return Manifest.model_validate(values)
    except ValidationError as error:
        reason = first_violation(error)[:200]
        raise FileError(f"its manifest is not that of a gradmix file: {reason}") from None


def to_json(value: Any) -> bytes:
    """Return strict, compact JSON that `parse_json` accepts."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise InputError(f"the state cannot be stored in a file: {error}") from error
    if text.count(b"[") + text.count(b"{") > MOST_CONTAINERS:
        raise InputError(
            f"the state has more than {MOST_CONTAINERS} lists and dicts; "
            "put long lists of numbers into tensors"
        )
    return text


# --- the zip --------------------------------------------------------------------------------

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SIZES = struct.Struct("<2H2Q")  # zip64 field of a local header
_PLACE = struct.Struct("<2H3Q")  # zip64 field of a directory entry
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")

_NEEDED = 45  # the first version of the zip format with zip64
_STORED = 0
_DATE = 1 << 5 | 1  # 1 January 1980: equal content gives equal files
_IN_ZIP64 = 0xFFFFFFFF


def header_length(name: str) -> int:
    """Return the length of the local header of a member."""
    return _LOCAL.size + len(name) + _SIZES.size


def local_header(member: Member) -> bytes:
    """Return the bytes before a member's content."""
    name, sizes = member.name.encode(), _SIZES.pack(1, _SIZES.size - 4, member.size, member.size)
    return _LOCAL.pack(b"PK\3\4", *_common(member), len(name), len(sizes)) + name + sizes


def _common(member: Member) -> tuple[int, ...]:
    return (_NEEDED, 0, _STORED, 0, _DATE, member.crc32, _IN_ZIP64, _IN_ZIP64)


def read_local_header(data: bytes, name: str) -> Member | None:
    """Return the member that a local header describes; None if `data` is not such a header."""
    if len(data) != header_length(name):
        return None
    size = _SIZES.unpack_from(data, len(data) - _SIZES.size)[2]
    if size >= 2**63:
        return None
    member = Member(name=name, size=size, crc32=_LOCAL.unpack_from(data)[6])
    return member if local_header(member) == data else None


def offsets(members: Sequence[Member]) -> list[int]:
    """Return the positions of the members' local headers, and then of the directory."""
    places = [0]
    for member in members:
        places.append(places[-1] + header_length(member.name) + member.size)
    return places


def directory(members: Sequence[Member]) -> bytes:
    """Return the bytes after the last member."""
    *places, start = offsets(members)
    entries = b""
    for member, place in zip(members, places, strict=True):
        name = member.name.encode()
        where = _PLACE.pack(1, _PLACE.size - 4, member.size, member.size, place)
        rest = (len(name), len(where), 0, 0, 0, 0, _IN_ZIP64)
        entries += _CENTRAL.pack(b"PK\1\2", _NEEDED, *_common(member), *rest) + name + where
    count, size = len(members), len(entries)
    length = _END64.size - 12
    end64 = _END64.pack(b"PK\6\6", length, _NEEDED, _NEEDED, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, size, _IN_ZIP64, 0)
    return entries + end64 + locator + end
