"""Write a state to a file, and read it back from a file that may contain anything.

The reader checks every byte, and it checks sizes before it allocates memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import Any

from torch import Tensor
from xxhash import xxh3_128

from gradmix.errors import FileError, InputError
from gradmix.files._container import (
    HERE,
    MANIFEST,
    MANIFEST_LIMIT,
    STATE,
    STATE_LIMIT,
    TENSORS,
    VERSION,
    Manifest,
    Member,
    compose,
    directory,
    from_json,
    header_length,
    local_header,
    offsets,
    parse,
    read_local_header,
    to_json,
)
from gradmix.files._tensors import Fill, read_tensors, to_buffers
from gradmix.files._values import Damaged, Encoder, decode
from gradmix.files.atomic_write import replacing
from gradmix.files.json_file import open_regular

CHUNK = 1 << 20  # bytes to read and hash at a time

Path = str | os.PathLike[str]
Buffers = Sequence[memoryview]

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
    text = to_json(encoder.encode(state))
    if len(text) > STATE_LIMIT:
        raise InputError(
            f"the state has {len(text)} bytes of values other than tensors; the limit is "
            f"{STATE_LIMIT}: put long lists of numbers into tensors"
        )
    held: dict[str, Buffers] = {STATE: [memoryview(text)], TENSORS: to_buffers(encoder.tensors)}
    members = tuple(_member(name, buffers) for name, buffers in held.items())
    digests = tuple(_digest(buffers) for buffers in held.values())
    about = [memoryview(compose(Manifest(kind, VERSION, HERE, members, digests)))]
    return _write_zip(path, {MANIFEST: about, **held}, [_member(MANIFEST, about), *members])


def _write_zip(path: Path, held: Mapping[str, Buffers], members: Sequence[Member]) -> int:
    try:
        with replacing(path) as file:
            for member in members:
                file.write(local_header(member))
                for buffer in held[member.name]:
                    file.write(buffer)
            file.write(directory(members))
            return file.tell()
    except OSError as error:
        raise FileError(
            f"{os.fspath(path)} cannot be written: {error.strerror or error}"
        ) from error
    except ValueError as error:  # the name contains a NUL character
        raise FileError(f"{os.fspath(path)!r} cannot be written: {error}") from error


def _member(name: str, buffers: Buffers) -> Member:
    crc32 = 0
    for buffer in buffers:
        crc32 = zlib.crc32(buffer, crc32)
    return Member(name, sum(map(len, buffers)), crc32)


def _digest(buffers: Buffers) -> str:
    result = xxh3_128()
    for buffer in buffers:
        result.update(buffer)
    return result.hexdigest()


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
            raise Damaged(f"it is of the kind {manifest.kind[:40]!r}, not {kind!r}")
        members = (own, *manifest.members)
        _check_layout(file, size, members)
        values, tensors = _read_members(file, members, manifest.digests)
        state = decode(values, tensors)
        if tensors or not isinstance(state, dict):
            raise Damaged("its tensors do not belong to its state")
        return state


def read_manifest(path: Path) -> Manifest:
    """Return what a file says about itself, without reading the rest."""
    with _opened(path) as (file, size):
        return _read_manifest(file, size)[1]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file and return it with its size; turn every problem into a FileError."""
    name = os.fspath(path)
    try:
        with open_regular(path) as file:
            yield file, os.fstat(file.fileno()).st_size
    except Damaged as problem:
        raise FileError(
            f"{name} cannot be used: {problem}; give a complete file written by gradmix"
        ) from None
    except MemoryError:
        raise FileError(f"{name} cannot be used: there is not enough memory to read it") from None
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{name!r} cannot be read: {error}") from error


def _read_manifest(file: FileIO, size: int) -> tuple[Member, Manifest]:
    if size == 0:
        raise Damaged("it is empty")
    length = header_length(MANIFEST)
    header = file.read(length)
    own = read_local_header(header, MANIFEST)
    if own is None:
        what = (
            "it is a zip of another program"
            if header[:2] == b"PK"
            else f"it starts with {header[:8]!r}"
        )
        raise Damaged(f"it is not a gradmix file, or damaged ({what})")
    if own.size > min(MANIFEST_LIMIT, size - length):
        raise Damaged(f"its manifest claims {own.size} bytes; it is truncated or damaged")
    text = file.read(own.size)
    if zlib.crc32(text) != own.crc32:
        raise Damaged(f"its {MANIFEST} is damaged: the checksum differs")
    return own, parse(text)


def _check_layout(file: FileIO, size: int, members: tuple[Member, ...]) -> None:
    """Check the size and all zip structures against the manifest."""
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
            raise Damaged(
                f"its zip structure at byte {place} is damaged or written by another program"
            )


def _read_members(
    file: FileIO, members: tuple[Member, ...], digests: tuple[str, ...]
) -> tuple[Any, dict[str, Tensor]]:
    _, state, tensors = members
    _, state_at, tensors_at, _ = offsets(members)
    text = bytearray(state.size)
    with _checked(file, state_at, state, digests[0]) as fill:
        fill(memoryview(text))
    values = from_json(bytes(text), "state")
    with _checked(file, tensors_at, tensors, digests[1]) as fill:
        found = read_tensors(tensors.size, fill)
    return values, found


@contextmanager
def _checked(file: FileIO, place: int, member: Member, digest: str) -> Iterator[Fill]:
    """Return a function that reads the member piece by piece; check the digest at the end."""
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
