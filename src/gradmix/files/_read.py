"""A state from a file that may be anything: every byte is checked, sizes before memory is taken."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any

from torch import Tensor
from xxhash import xxh3_128

from gradmix.errors import FileError
from gradmix.files import _manifest as manifests
from gradmix.files._manifest import MANIFEST, MANIFEST_LIMIT, Manifest
from gradmix.files._tensors import Fill, read_tensors
from gradmix.files._values import Damaged, decode
from gradmix.files._zip_layout import (
    Member,
    directory,
    header_length,
    local_header,
    offsets,
    read_local_header,
)

CHUNK = 1 << 20  # bytes read and hashed at a time


def read_archive(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The state in a file of this kind; FileError says what is wrong with any other."""
    with _opened(path) as (file, size):
        own, manifest = _read_manifest(file, size)
        if manifest.kind != kind:
            raise Damaged(f"it is of the kind {manifest.kind!r}, not {kind!r}")
        members = (own, *manifest.members)
        _check_layout(file, size, members)
        values, tensors = _read_members(file, members, manifest.digests)
        state = decode(values, tensors)
        if tensors or not isinstance(state, dict):
            raise Damaged("its tensors are not those of its state")
        return state


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """What a file says of itself; the rest is not read."""
    with _opened(path) as (file, size):
        return _read_manifest(file, size)[1]


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[FileIO, int]]:
    """A file and its size; whatever turns out to be wrong with it becomes a FileError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise Damaged("it is no file")
        with open(path, "rb", buffering=0) as file:
            yield file, os.fstat(file.fileno()).st_size
    except Damaged as problem:
        raise FileError(
            f"{os.fspath(path)} cannot be used: {problem}; give a whole file as gradmix wrote it"
        ) from None
    except MemoryError:
        raise FileError(f"{os.fspath(path)} cannot be used: not enough memory") from None
    except (OSError, ValueError) as error:  # ValueError: there is no such name
        raise FileError(f"{os.fspath(path)!r} cannot be read: {error}") from error


def _read_manifest(file: FileIO, size: int) -> tuple[Member, Manifest]:
    if size == 0:
        raise Damaged("it is empty")
    length = header_length(MANIFEST)
    header = file.read(length)
    own = read_local_header(header, MANIFEST)
    if own is None:
        what = "is a zip of another program" if header[:2] == b"PK" else f"begins {header[:8]!r}"
        raise Damaged(f"it is no gradmix file or damaged (it {what})")
    if own.size > min(MANIFEST_LIMIT, size - length):
        raise Damaged(f"its manifest claims {own.size} bytes; it is truncated or damaged")
    text = file.read(own.size)
    if zlib.crc32(text) != own.crc32:
        raise Damaged(f"its {MANIFEST} is damaged: the checksum differs")
    return own, manifests.parse(text)


def _check_layout(file: FileIO, size: int, members: tuple[Member, ...]) -> None:
    """All of the zip but the members' bytes is as the manifest has it, and the size is right."""
    *places, end = offsets(members)
    closing = directory(members)
    if size != end + len(closing):
        raise Damaged(
            f"it has {size} bytes where its manifest says {end + len(closing)}: it is truncated, "
            "damaged or changed by another program"
        )
    headers = [*map(local_header, members), closing]
    for place, expected in zip([*places, end], headers, strict=True):
        file.seek(place)
        if file.read(len(expected)) != expected:
            raise Damaged(f"its zip structure is damaged at byte {place}, or of another program")


def _read_members(
    file: FileIO, members: tuple[Member, ...], digests: tuple[str, ...]
) -> tuple[Any, dict[str, Tensor]]:
    _, state, tensors = members
    _, state_at, tensors_at, _ = offsets(members)
    text = bytearray(state.size)
    with _checked(file, state_at, state, digests[0]) as fill:
        fill(memoryview(text))
    with _checked(file, tensors_at, tensors, digests[1]) as fill:
        found = read_tensors(tensors.size, fill)
    return manifests.from_json(bytes(text), "state"), found


@contextmanager
def _checked(file: FileIO, place: int, member: Member, digest: str) -> Iterator[Fill]:
    """Something that reads the member piece by piece; at the end its checksum must be right."""
    file.seek(place + header_length(member.name))
    result = xxh3_128()

    def fill(buffer: memoryview) -> None:
        for start in range(0, len(buffer), CHUNK):
            piece = buffer[start : start + CHUNK]
            done = file.readinto(piece)
            while done < len(piece):
                count = file.readinto(piece[done:])
                if not count:
                    raise Damaged(f"it ends within {member.name}")
                done += count
            result.update(piece)

    yield fill
    if result.hexdigest() != digest:
        raise Damaged(f"its {member.name} is damaged: the checksum differs")
