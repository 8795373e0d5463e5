"""A state into a file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from xxhash import xxh3_128

from gradmix.errors import FileError, InputError
from gradmix.files._manifest import (
    HERE,
    MANIFEST,
    STATE,
    STATE_LIMIT,
    TENSORS,
    VERSION,
    Manifest,
    compose,
    to_json,
)
from gradmix.files._tensors import to_buffers
from gradmix.files._values import Encoder
from gradmix.files._zip_layout import Member, directory, local_header
from gradmix.files.atomic_write import replacing

Buffers = Sequence[memoryview]


def write_archive(path: str | os.PathLike[str], kind: str, state: Mapping[str, Any]) -> int:
    """Write a state to a file of this kind, whole or not at all; how many bytes these are."""
    encoder = Encoder()
    text = to_json(encoder.encode(state))
    if len(text) > STATE_LIMIT:
        raise InputError(
            f"the state has {len(text)} bytes of values other than tensors, of {STATE_LIMIT} "
            "allowed; put long lists of numbers into tensors"
        )
    held: dict[str, Buffers] = {STATE: [memoryview(text)], TENSORS: to_buffers(encoder.tensors)}
    members = tuple(_member(name, buffers) for name, buffers in held.items())
    digests = tuple(_digest(buffers) for buffers in held.values())
    about = [memoryview(compose(Manifest(kind, VERSION, HERE, members, digests)))]
    return _write_zip(path, {MANIFEST: about, **held}, [_member(MANIFEST, about), *members])


def _write_zip(
    path: str | os.PathLike[str], held: Mapping[str, Buffers], members: Sequence[Member]
) -> int:
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
