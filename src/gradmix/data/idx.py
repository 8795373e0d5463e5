"""MNIST and Fashion-MNIST, and the IDX format of their files.

An IDX file has four magic bytes (0, 0, type, number of dimensions), one big-endian 32-bit
integer per dimension, and then the values. Only type 0x08 (unsigned bytes) is read. A file may be
compressed with gzip.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet
from gradmix.data.image_folders.source import existing_path
from gradmix.data.locate import FASHION_MNIST, MNIST, FileSet, locate, open_unpacked
from gradmix.errors import CorruptFileError
from gradmix.types import Samples

_UNSIGNED_BYTE = 0x08
_CHUNK = 1 << 20  # bytes
_FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def mnist() -> DataSet:
    """Return MNIST: 60,000 + 10,000 images of 28x28, found by `gradmix.data.locate`."""
    return _from_idx(MNIST, tuple("0123456789"), mean=0.1307, std=0.3081)


def fashion_mnist() -> DataSet:
    """Return Fashion-MNIST: 60,000 + 10,000 images of 28x28, found by `gradmix.data.locate`."""
    return _from_idx(FASHION_MNIST, _FASHION_NAMES, mean=0.2860, std=0.3530)


def _from_idx(files: FileSet, class_names: tuple[str, ...], mean: float, std: float) -> DataSet:
    """Read four IDX files; `mean` and `std` are for values scaled to 0 … 1."""
    paths = locate(files)
    train, test = (
        Samples(
            read_idx(paths[f"{part}-images-idx3-ubyte"]).unsqueeze(1),  # (N, 1, 28, 28)
            read_idx(paths[f"{part}-labels-idx1-ubyte"]).long(),  # (N,)
        )
        for part in ("train", "t10k")
    )
    return DataSet(files.name, train, test, class_names, mean=(mean * 255,), std=(std * 255,))


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
        content = bytearray()  # it grows with the bytes that exist, whatever the header says
        while len(content) <= expected:
            chunk = stream.read(min(_CHUNK, expected + 1 - len(content)))
            if not chunk:
                break
            content += chunk
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else "more"
        raise CorruptFileError(
            f"{path}: the header announces {expected} bytes of shape {shape}, but {found} follow"
        )
    if expected == 0:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


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
