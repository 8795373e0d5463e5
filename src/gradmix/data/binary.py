"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from their official binary files.

An IDX file (MNIST) has four magic bytes (0, 0, type, number of dimensions), one big-endian 32-bit
integer per dimension, and then the values. Only type 0x08 (unsigned bytes) is read. A file may be
compressed with gzip.

A record of CIFAR has one label byte (CIFAR-100: a coarse and a fine one) and 3,072 pixel bytes: the
red, green and blue planes of 32x32, row by row. These archives need no pickle. Their members are
read by their exact name; nothing is written to disk.
"""

from __future__ import annotations

import math
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet, in_bytes
from gradmix.data.locate import (
    CIFAR_10,
    CIFAR_100,
    FASHION_MNIST,
    MNIST,
    Archive,
    FileSet,
    locate,
    locate_archive,
    open_unpacked,
)
from gradmix.errors import CorruptFileError
from gradmix.paths import existing_path
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
    return DataSet(files.name, train, test, class_names, in_bytes(mean), in_bytes(std))


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
        while chunk := stream.read(min(_CHUNK, expected + 1 - len(content))):
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
    return struct.unpack(f">{dimensions}I", header)


# --- CIFAR --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CifarLayout:
    """The files of a CIFAR folder or archive, and the form of a record."""

    archive: Archive
    train: Mapping[str, int]  # file name -> number of records
    test: Mapping[str, int]
    class_names: str  # the file that lists them
    label_classes: tuple[int, ...]  # classes of each label byte; the last byte is used
    mean: tuple[float, ...]  # per channel, of bytes
    std: tuple[float, ...]

    @property
    def record(self) -> int:
        """Bytes per record."""
        return len(self.label_classes) + 3 * 32 * 32


CIFAR_10_LAYOUT = CifarLayout(
    archive=CIFAR_10,
    train={f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
    test={"test_batch.bin": 10_000},
    class_names="batches.meta.txt",
    label_classes=(10,),
    mean=in_bytes(0.4914, 0.4822, 0.4465),
    std=in_bytes(0.2470, 0.2435, 0.2615),
)

CIFAR_100_LAYOUT = CifarLayout(
    archive=CIFAR_100,
    train={"train.bin": 50_000},
    test={"test.bin": 10_000},
    class_names="fine_label_names.txt",
    label_classes=(20, 100),
    mean=in_bytes(0.5071, 0.4867, 0.4408),
    std=in_bytes(0.2675, 0.2565, 0.2761),
)


def cifar_10() -> DataSet:
    """Return CIFAR-10: 50,000 + 10,000 photos of 32x32, found by `gradmix.data.locate`."""
    return _official(CIFAR_10_LAYOUT)


def cifar_100() -> DataSet:
    """Return CIFAR-100 with its 100 fine labels: 50,000 + 10,000 photos of 32x32."""
    return _official(CIFAR_100_LAYOUT)


def _official(layout: CifarLayout) -> DataSet:
    path = locate_archive(layout.archive)
    data = read_cifar(path, layout)
    for part, samples in (("training", data.train), ("test", data.test)):
        counts = samples.y.bincount(minlength=len(data.class_names))
        if int(counts.min()) != int(counts.max()):
            raise CorruptFileError(
                f"{path}: not {data.name}: its classes have {int(counts.min())} to "
                f"{int(counts.max())} {part} images, not the same number; remove or replace it"
            )
    return data


def read_cifar(path: str | Path, layout: CifarLayout) -> DataSet:
    """Return a data set from the tar.gz archive or its unpacked folder; else CorruptFileError."""
    path = Path(path)
    counts = {**layout.train, **layout.test}
    content = _read_files(path, layout.archive.folder, (layout.class_names, *counts))
    for name, count in counts.items():
        size, expected = len(content[name]), count * layout.record
        if size != expected:
            cut = "truncated: " if size < expected else ""
            raise CorruptFileError(
                f"{path / name}: {cut}it has {size} bytes and should have {expected}"
            )
    lines = content[layout.class_names].decode("utf-8", errors="replace").split("\n")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != layout.label_classes[-1]:
        raise CorruptFileError(
            f"{path / layout.class_names}: lists {len(names)} classes and should list "
            f"{layout.label_classes[-1]}"
        )
    train, test = (
        _records(path, {name: content[name] for name in part}, layout)
        for part in (layout.train, layout.test)
    )
    return DataSet(layout.archive.name, train, test, names, layout.mean, layout.std)


def _read_files(path: Path, folder: str, names: Sequence[str]) -> dict[str, bytearray]:
    """Return the content of files of a folder, or of members of an archive read in one pass."""
    if path.is_dir():
        found = {name: path / name for name in names if (path / name).is_file()}
        content = {name: bytearray(file.read_bytes()) for name, file in found.items()}
    else:
        wanted = {f"{folder}/{name}": name for name in names}
        content = {}
        try:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    if member.name in wanted and member.isfile():
                        stream = archive.extractfile(member)
                        assert stream is not None  # a regular file
                        content[wanted[member.name]] = bytearray(stream.read())
        except (EOFError, zlib.error, tarfile.TarError) as error:
            raise CorruptFileError(f"{path}: the archive is damaged: {error}") from error
    missing = [name for name in names if name not in content]
    if missing:
        raise CorruptFileError(f"{path}: lacks {', '.join(missing)}; it is not complete")
    return content


def _records(path: Path, files: Mapping[str, bytearray], layout: CifarLayout) -> Samples:
    """Return the pixels and labels of the records in files; `path` is for messages."""
    parts = []
    for name, content in files.items():
        records = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, layout.record)
        for column, classes in enumerate(layout.label_classes):
            wrong = (records[:, column] >= classes).nonzero().flatten()
            if len(wrong):
                row = int(wrong[0])
                raise CorruptFileError(
                    f"{path / name}: record {row} has label {int(records[row, column])}; labels "
                    f"run from 0 to {classes - 1}"
                )
        parts.append(records)
    records, labels = torch.cat(parts), len(layout.label_classes)
    x = records[:, labels:].reshape(-1, 3, 32, 32)
    return Samples(x.contiguous(), records[:, labels - 1].long())
