"""Images in files as labelled samples, all of them: what a classifier learns from and predicts."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gradmix.data.image_folders.classes import find_classes, has_test_classes
from gradmix.data.image_folders.decode import THREADS, Failure, Header, ImageFiles, read_headers
from gradmix.data.image_folders.source import FileTree
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

IN_MEMORY = 8 << 30  # bytes of pixels that are read at most


def read_folder(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
) -> tuple[Tensor, list[int], tuple[str, ...]]:
    """All images of a folder with a folder for each class, or of a zip of one.

    Images uint8 (N, C, H, W), labels and the classes' names, sorted. Images become `shape`;
    without one `size` x `size`; without that they stay as they are if all have one size of at
    most `largest` pixels a side, else become `largest` x `largest`. Colours stay if there are any.
    With folders `train` and `test` (or `val`), the images are those of `part`. Those that cannot
    be read are a CorruptFileError, or left out if there is `skip`, which is told so in a sentence.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataNotFoundError(f"{path}: no such folder or zip file")
    tree, by_class = find_classes(FileTree(path), part)
    classes = tuple(sorted(by_class))
    names = [name for folder in classes for name in by_class[folder]]
    labels = [label for label, folder in enumerate(classes) for _ in by_class[folder]]
    unreadable: list[Failure] = []
    resize = True
    if shape is None:
        headers, unreadable = read_headers(tree, names)
        _refuse(unreadable, len(names), skip, headers_only=True)
        shape, resize = _shape_of(headers.values(), size, largest)
    failed = {failure.row for failure in unreadable}
    rows = [row for row in range(len(names)) if row not in failed]
    x, failures = _decode(tree, names, rows, shape, resize)
    unreadable += failures
    _refuse(unreadable, len(names), skip)
    if unreadable and skip is not None:
        skip(
            f"{len(unreadable)} of {len(names)} images cannot be read and are left out; "
            f"the first: {unreadable[0].message}"
        )
        failed = {failure.row for failure in unreadable}
        x = x[torch.tensor([row not in failed for row in rows])]
        labels = [label for row, label in enumerate(labels) if row not in failed]
    return x, labels, classes


def has_own_test(path: str | os.PathLike[str]) -> bool:
    """Whether a folder, or a zip of one, has classes to test on beside those to train on."""
    path = Path(path).expanduser()
    return (path.is_dir() or zipfile.is_zipfile(path)) and has_test_classes(FileTree(path))


def read_image_files(
    paths: Sequence[str | os.PathLike[str]], shape: tuple[int, int, int]
) -> Tensor:
    """These files as images of `shape`, uint8 (N, C, H, W)."""
    for path in paths:
        if not Path(path).is_file():
            raise DataNotFoundError(f"{os.fspath(path)}: no such file")
    names = [str(Path(path).absolute()) for path in paths]
    x, failures = _decode(FileTree("."), names, range(len(names)), shape, True)
    _refuse(failures, len(names))
    return x


def _shape_of(
    headers: Collection[Header], size: int | None, largest: int
) -> tuple[tuple[int, int, int], bool]:
    """The shape images get, and whether they have to be resized for that."""
    channels = 1 if all(header.grey for header in headers) else 3
    if size is not None:
        return (channels, size, size), True
    sizes = {header[:2] for header in headers}
    width, height = next(iter(sizes))
    if len(sizes) == 1 and max(width, height) <= largest:
        return (channels, height, width), False
    return (channels, largest, largest), True


def _decode(
    tree: FileTree, names: Sequence[str], rows: Sequence[int], shape: tuple[int, ...], resize: bool
) -> tuple[Tensor, list[Failure]]:
    """The images at `rows`, and what failed."""
    channels, height, width = shape
    if len(rows) * channels * height * width > IN_MEMORY:
        raise InputError(
            f"{tree.describe('')}: its {len(rows)} images would take more than "
            f"{IN_MEMORY >> 30} GiB at {width}x{height}; learn them in parts, or smaller"
        )
    files = ImageFiles(tree, names, (channels, height, width), "bilinear" if resize else None)
    return files.decode_rows(rows, threads=THREADS)


def _refuse(
    failures: Sequence[Failure],
    count: int,
    skip: Callable[[str], object] | None = None,
    *,
    headers_only: bool = False,
) -> None:
    """CorruptFileError if some have failed and may not be skipped, or all have."""
    if failures and (skip is None or len(failures) == count):
        known = "at least " if headers_only and len(failures) < count else ""
        hint = "; on the command line, --skip-unreadable leaves them out" if skip is None else ""
        raise CorruptFileError(
            f"{failures[0].message} ({known}{len(failures)} of {count} images cannot be read{hint})"
        )
