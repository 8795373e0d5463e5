"""Write a state to a file, and read it back from a file that may contain anything.

The reader checks every byte, and it checks sizes before it allocates memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

from xxhash import xxh3_128

from gradmix.errors import FileError, InputError
from gradmix.files import _container
from gradmix.files._container import MANIFEST, STATE, STATE_LIMIT, TENSORS, Manifest, Member
from gradmix.files._encoding import Encoder, Fill, decode, read_tensors, to_buffers
from gradmix.files.atomic_write import replacing
from gradmix.files.schema import Path, open_regular, parse_json

CHUNK = 1 << 20  # bytes to read and hash at a time

# --- writing --------------------------------------------------------------------------------


def write_state_file(path: Path, kind: str, state: Mapping[str, Any]) -> int:
    """Write a state to a file, completely or not at all.

    Args:
        path: The file; an existing file is replaced.
        kind: The kind of file, for example "classifier"; the reader asks for it.
        state: Nested dicts, lists and tuples of tensors, numbers, text, booleans and None.

    Returns:
        The size of the file in bytes.

    Raises:
        InputError: If the state contains something else, or is too large.
        FileError: If the file cannot be written, for example because the disk is full.
    """
    encoder = Encoder()
    text = _container.to_json(encoder.encode(state))
    if len(text) > STATE_LIMIT:
        raise InputError(
            f"the state has {len(text)} bytes of values other than tensors; the limit is "
            f"{STATE_LIMIT}: put long lists of numbers into tensors"
        )
    state_part, tensors = [memoryview(text)], to_buffers(encoder.tensors)
    members = [_member(STATE, state_part), _member(TENSORS, tensors)]
    about = [memoryview(_container.compose(kind, members))]
    members.insert(0, _member(MANIFEST, about))
    try:
        with replacing(path) as file:
            for member, buffers in zip(members, (about, state_part, tensors), strict=True):
                file.write(_container.local_header(member))
                file.writelines(buffers)
            file.write(_container.directory(members))
            return file.tell()
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{os.fspath(path)!r} cannot be written: {reason}") from error


def _member(name: str, buffers: Sequence[memoryview]) -> Member:
    crc32, xxh3 = 0, xxh3_128()
    for buffer in buffers:
        crc32 = zlib.crc32(buffer, crc32)
        xxh3.update(buffer)
    return Member(name=name, size=sum(map(len, buffers)), crc32=crc32, xxh3=xxh3.hexdigest())


# --- reading --------------------------------------------------------------------------------


def read_state_file(path: Path, kind: str) -> dict[str, Any]:
    """Return the state in a file of this kind.

    Raises:
        FileError: If the file is missing, damaged or of another kind; the message says what is
            wrong.
    """
    with _opened(path) as (file, size):
        own, manifest = _read_manifest(file, size)
        if manifest.kind != kind:
            raise FileError(f"it is of the kind {manifest.kind[:40]!r}, not {kind!r}")
        members = [own, *manifest.members]
        _check_layout(file, size, members)
        _, state_at, tensors_at, _ = _container.offsets(members)
        text = bytearray(members[1].size)
        with _checked(file, state_at, members[1]) as fill:
            fill(memoryview(text))
        values = parse_json(bytes(text), "its state")
        with _checked(file, tensors_at, members[2]) as fill:
            tensors = read_tensors(members[2].size, fill)
        state = decode(values, tensors)
        if tensors or not isinstance(state, dict):
            raise FileError("its tensors do not belong to its state")
        return state


def read_manifest(path: Path) -> Manifest:
    """Return what a file says about itself, without reading the rest."""
    with _opened(path) as (file, size):
        return _read_manifest(file, size)[1]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file and return it with its size; a FileError of the block names the file."""
    name, opened = os.fspath(path), open_regular(path)
    try:
        with opened as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileError as problem:
        raise FileError(
            f"{name} cannot be used: {problem}; give a complete file written by gradmix"
        ) from None
    except MemoryError:
        raise FileError(f"{name} cannot be used: there is not enough memory to read it") from None
    except OSError as error:
        raise FileError(f"{name!r} cannot be read: {error}") from error


def _read_manifest(file: BufferedReader, size: int) -> tuple[Member, Manifest]:
    if size == 0:
        raise FileError("it is empty")
    length = _container.header_length(MANIFEST)
    header = file.read(length)
    own = _container.read_local_header(header, MANIFEST)
    if own is None:
        other = header[:2] == b"PK"
        what = "it is a zip of another program" if other else f"it starts with {header[:8]!r}"
        raise FileError(f"it is not a gradmix file, or damaged ({what})")
    if own.size > min(_container.MANIFEST_LIMIT, size - length):
        raise FileError(f"its manifest claims {own.size} bytes; it is truncated or damaged")
    text = file.read(own.size)
    if zlib.crc32(text) != own.crc32:
        raise FileError(f"its {MANIFEST} is damaged: the checksum differs")
    return own, _container.parse(text)


def _check_layout(file: BufferedReader, size: int, members: Sequence[Member]) -> None:
    """Check the size and all zip structures against the manifest."""
    places, closing = _container.offsets(members), _container.directory(members)
    expected_size = places[-1] + len(closing)
    if size != expected_size:
        raise FileError(
            f"it has {size} bytes where its manifest says {expected_size}: it is truncated, "
            "damaged or changed by another program"
        )
    headers = [*map(_container.local_header, members), closing]
    for place, expected in zip(places, headers, strict=True):
        file.seek(place)
        if file.read(len(expected)) != expected:
            raise FileError(
                f"its zip structure at byte {place} is damaged or written by another program"
            )


@contextmanager
def _checked(file: BufferedReader, place: int, member: Member) -> Iterator[Fill]:
    """Return a function that reads the member piece by piece; check the digest at the end."""
    file.seek(place + _container.header_length(member.name))
    digest = xxh3_128()

    def fill(buffer: memoryview) -> None:
        for start in range(0, len(buffer), CHUNK):
            piece = buffer[start : start + CHUNK]
            if file.readinto(piece) < len(piece):
                raise FileError(f"it ends within {member.name}")
            digest.update(piece)

    yield fill
    if digest.hexdigest() != member.xxh3:
        raise FileError(f"its {member.name} is damaged: the checksum differs")
