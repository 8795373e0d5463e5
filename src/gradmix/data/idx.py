"""Reader of the IDX format of MNIST and Fashion-MNIST.

An IDX file has four magic bytes (0, 0, type, number of dimensions), one big-endian 32-bit
integer per dimension, and then the values. Only type 0x08 (unsigned bytes) is read. A file may be
compressed with gzip.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from gradmix.data.paths import existing_path
from gradmix.errors import CorruptFileError

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_CHUNK = 1 << 20  # bytes; a wrong header must not allocate memory


def read_idx(path: str | Path) -> Tensor:
    """Return the uint8 tensor in an IDX file, compressed with gzip or not.

    Args:
        path: The file. Its first bytes, not its name, tell whether it is compressed.

    Raises:
        CorruptFileError: The file is truncated, too long, damaged or in another format.
        DataNotFoundError: There is no such file.
    """
    path = existing_path(path)
    with open_unpacked(path) as stream:
        shape = _read_shape(stream, path)
        expected = math.prod(shape)
        content = _read_at_most(stream, expected + 1)
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else "more"
        raise CorruptFileError(
            f"{path}: the header announces {expected} bytes of shape {shape}, but {found} follow"
        )
    if expected == 0:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


def unpacked_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's content after gzip decompression.

    The same content can be compressed in many ways. Only this digest identifies a data file.
    """
    digest = hashlib.sha256()
    with open_unpacked(Path(path)) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, through gzip if it starts like a gzip file.

    Damaged gzip data raise CorruptFileError.
    """
    with path.open("rb") as raw:
        packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield cast(BinaryIO, stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorruptFileError(f"{path}: the gzip data are damaged: {error}") from error


def _read_shape(stream: BinaryIO, path: Path) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise CorruptFileError(
            f"{path}: not an IDX file: it starts with {magic.hex(' ') or 'nothing'}, not with 00 00"
        )
    kind, dimensions = magic[2], magic[3]
    if kind != _UNSIGNED_BYTE:
        raise CorruptFileError(f"{path}: holds IDX type 0x{kind:02x}; only 0x08 (bytes) is read")
    if dimensions == 0:
        raise CorruptFileError(f"{path}: the IDX header names no dimensions")
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise CorruptFileError(f"{path}: ends within the IDX header of {dimensions} dimensions")
    starts = range(0, len(header), 4)
    return tuple(int.from_bytes(header[start : start + 4], "big") for start in starts)


def _read_at_most(stream: BinaryIO, count: int) -> bytearray:
    """Read up to `count` bytes, and use memory only for bytes that exist."""
    content = bytearray()
    while len(content) < count:
        chunk = stream.read(min(_CHUNK, count - len(content)))
        if not chunk:
            break
        content += chunk
    return content
