"""Images in files as labelled samples, all of them: what a classifier learns from and predicts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from gradmix.data.file_tree import FileTree
from gradmix.data.image_folder import find_classes
from gradmix.data.images import Failure, ImageFiles, read_headers
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

IN_MEMORY = 8 << 30  # bytes of pixels that are read at most


def read_folder(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
) -> tuple[Tensor, list[int], tuple[str, ...]]:
    """All images of a folder with a folder for each class, or of a zip of one.

    Images uint8 (N, C, H, W), labels and the classes' names, sorted. Images become `shape`;
    without one `size` x `size`; without that they stay as they are if all have one size of at
    most `largest` pixels a side, else become `largest` x `largest`. Colours stay if there are any.
    With folders `train` and `test`, the images are those of `train`.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataNotFoundError(f"{path}: no such folder or zip file")
    tree, by_class = find_classes(FileTree(path))
    classes = tuple(sorted(by_class))
    names = [name for folder in classes for name in by_class[folder]]
    labels = [label for label, folder in enumerate(classes) for _ in by_class[folder]]
    if shape is None:
        shape, resize = _shape_of(tree, names, size, largest)
    else:
        resize = True
    return _decode(tree, names, shape, resize), labels, classes


def read_image_files(
    paths: Sequence[str | os.PathLike[str]], shape: tuple[int, int, int]
) -> Tensor:
    """These files as images of `shape`, uint8 (N, C, H, W)."""
    for path in paths:
        if not Path(path).is_file():
            raise DataNotFoundError(f"{os.fspath(path)}: no such file")
    return _decode(FileTree("."), [str(Path(path).absolute()) for path in paths], shape, True)


def _shape_of(
    tree: FileTree, names: Sequence[str], size: int | None, largest: int
) -> tuple[tuple[int, int, int], bool]:
    """The shape images get, and whether they have to be resized for that."""
    headers, failures = read_headers(tree, names)
    _refuse(failures, len(names))
    channels = 1 if all(header.grey for header in headers.values()) else 3
    if size is not None:
        return (channels, size, size), True
    sizes = {header[:2] for header in headers.values()}
    width, height = next(iter(sizes))
    if len(sizes) == 1 and max(width, height) <= largest:
        return (channels, height, width), False
    return (channels, largest, largest), True


def _decode(tree: FileTree, names: Sequence[str], shape: tuple[int, ...], resize: bool) -> Tensor:
    channels, height, width = shape
    if len(names) * channels * height * width > IN_MEMORY:
        raise InputError(
            f"{tree.describe('')}: its {len(names)} images would take more than "
            f"{IN_MEMORY >> 30} GiB at {width}x{height}; learn them in parts, or smaller"
        )
    files = ImageFiles(tree, names, (channels, height, width), "bilinear" if resize else None)
    x, failures = files.decode_all()
    _refuse(failures, len(names))
    return x


def _refuse(failures: Sequence[Failure], count: int) -> None:
    if failures:
        raise CorruptFileError(
            f"{failures[0].message} ({len(failures)} of {count} images cannot be read)"
        )
