"""Images in files as labelled samples: what a classifier learns from and predicts."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradmix.data.image_folders.classes import find_classes, has_test_classes
from gradmix.data.image_folders.decode import (
    THREADS,
    Header,
    ImageFiles,
    PhotoSource,
    UnreadableImage,
    read_headers,
)
from gradmix.data.image_folders.source import FileSource
from gradmix.data.paths import existing_path
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

IN_MEMORY = 8 << 30  # bytes of pixels that are read at most


class LabelledPhotos(NamedTuple):
    """The photos of a folder."""

    x: Tensor  # uint8 (N, C, H, W)
    labels: list[int]  # of each photo, an index into `classes`
    classes: tuple[str, ...]  # sorted
    skipped: tuple[str, ...] = ()  # a sentence for each reason why other files are not used


def read_folder(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
) -> LabelledPhotos:
    """Return all photos of a folder, or of a zip file, that has a folder for each class.

    Photos are grey if all are grey, and RGB otherwise.

    Args:
        path: The folder or zip file; see `classes` for its layout.
        shape: Resize photos to this (C, H, W).
        size: Without a shape, resize photos to `size` x `size`.
        largest: Without both, photos keep their size if all have the same one, at most `largest`
            pixels a side. Otherwise they become `largest` x `largest`.
        skip: Skip photos that cannot be read, and call this with a sentence that says so.
        part: Read this part of a folder that has a train and a test part.

    Returns:
        The photos, and in `skipped` the files that are not photos or not in a class folder.

    Raises:
        DataNotFoundError: There is no such folder.
        InputError: The folder has no class folders, or the photos need too much memory.
        CorruptFileError: Photos cannot be read and `skip` is None, or no photo can be read.
    """
    source, by_class, other_files = find_classes(FileSource(existing_path(path)), part)
    classes = tuple(sorted(by_class))
    names = [name for folder in classes for name in by_class[folder]]
    labels = [label for label, folder in enumerate(classes) for _ in by_class[folder]]
    unreadable: list[UnreadableImage] = []
    resize = True
    if shape is None:
        headers, unreadable = read_headers(source, names)
        _refuse(unreadable, len(names), skip, headers_only=True)
        shape, resize = _shape_of(headers.values(), size, largest)
    rows = _other_rows(len(names), unreadable)
    x, found = _decode(source, names, rows, shape, resize)
    unreadable += found
    _refuse(unreadable, len(names), skip)
    if unreadable and skip is not None:
        skip(
            f"skipped {len(unreadable)} of {len(names)} images that cannot be read; "
            f"the first: {unreadable[0].message}"
        )
        kept = _other_rows(len(names), unreadable)
        x = x[torch.isin(torch.tensor(rows), torch.tensor(kept))]
        labels = [labels[row] for row in kept]
    return LabelledPhotos(x, labels, classes, other_files)


def has_own_test(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder or zip file has test classes beside the training classes."""
    try:
        found = existing_path(path)
    except DataNotFoundError:
        return False
    return (found.is_dir() or zipfile.is_zipfile(found)) and has_test_classes(FileSource(found))


def read_all(
    source: PhotoSource,
    names: Sequence[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
) -> Tensor:
    """Return photos of a source as uint8 (N, C, H, W); see `read_folder` for the arguments.

    Raises:
        CorruptFileError: A photo cannot be read.
    """
    resize = True
    if shape is None:
        headers, unreadable = read_headers(source, names)
        refuse_any(unreadable)
        shape, resize = _shape_of(headers.values(), size, largest)
    x, unreadable = _decode(source, names, range(len(names)), shape, resize)
    refuse_any(unreadable)
    return x


def refuse_any(unreadable: Sequence[UnreadableImage]) -> None:
    """Raise CorruptFileError, which names the first, if there are unreadable photos."""
    if unreadable:
        more = f" and {len(unreadable) - 1} more cannot be read" if len(unreadable) > 1 else ""
        raise CorruptFileError(f"{unreadable[0].message}{more}")


def _other_rows(count: int, unreadable: Sequence[UnreadableImage]) -> list[int]:
    bad = {image.row for image in unreadable}
    return [row for row in range(count) if row not in bad]


def _shape_of(
    headers: Collection[Header], size: int | None, largest: int
) -> tuple[tuple[int, int, int], bool]:
    """Return the shape that images get, and whether they must be resized."""
    channels = 1 if all(header.grey for header in headers) else 3
    if size is not None:
        return (channels, size, size), True
    sizes = {header[:2] for header in headers}
    width, height = next(iter(sizes))
    if len(sizes) == 1 and max(width, height) <= largest:
        return (channels, height, width), False
    return (channels, largest, largest), True


def _decode(
    source: PhotoSource,
    names: Sequence[str],
    rows: Sequence[int],
    shape: tuple[int, ...],
    resize: bool,
) -> tuple[Tensor, list[UnreadableImage]]:
    channels, height, width = shape
    if len(rows) * channels * height * width > IN_MEMORY:
        raise InputError(
            f"{source.path_of('')}: {len(rows)} images of {width}x{height} need more than "
            f"{IN_MEMORY >> 30} GiB; learn them in parts, or use a smaller size"
        )
    files = ImageFiles(source, names, (channels, height, width), "bilinear" if resize else None)
    return files.decode_rows(rows, threads=THREADS)


def _refuse(
    unreadable: Sequence[UnreadableImage],
    count: int,
    skip: Callable[[str], object] | None = None,
    *,
    headers_only: bool = False,
) -> None:
    """Raise CorruptFileError if images are unreadable and must not be skipped, or all are."""
    if unreadable and (skip is None or len(unreadable) == count):
        known = "at least " if headers_only and len(unreadable) < count else ""
        hint = "; on the command line, --skip-unreadable skips them" if skip is None else ""
        raise CorruptFileError(
            f"{unreadable[0].message} "
            f"({known}{len(unreadable)} of {count} images cannot be read{hint})"
        )
