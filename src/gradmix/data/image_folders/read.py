"""Images in files as labelled samples: what a classifier learns from and predicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from gradmix.data.image_folders.classes import Listing, find_classes, has_test_classes
from gradmix.data.image_folders.decode import (
    Header,
    ImageFiles,
    UnreadableImage,
    read_headers,
)
from gradmix.data.image_folders.source import FileSource, existing_path, is_archive
from gradmix.data.stream import StreamedImages
from gradmix.errors import CorruptFileError, DataNotFoundError

IN_MEMORY = 8 << 30  # bytes of pixels that are held in memory

HINT = "; on the command line, --skip-unreadable skips such images"


class Form(NamedTuple):
    """The pixels that images become."""

    shape: tuple[int, int, int]  # (C, H, W)
    resample: str | None = None  # how images are resized; None: all have the size already


_ChooseForm = Callable[[Listing, Sequence[Header]], Form]


class LoadedImages(NamedTuple):
    """The readable images of a listing."""

    listing: Listing
    x: Tensor  # uint8 (N, C, H, W); `StreamedImages` take its place
    unreadable: list[str]  # a sentence for each image that is skipped


class LabelledPhotos(NamedTuple):
    """The photos of a folder."""

    x: Tensor  # uint8 (N, C, H, W); `StreamedImages` take its place
    labels: list[int]  # of each photo, an index into `classes`
    classes: tuple[str, ...]  # sorted
    skipped: tuple[str, ...] = ()  # a sentence for each reason why other files are not used


def load_images(
    listing: Listing,
    form: Form | _ChooseForm,
    *,
    stream: bool | None,
    skip: bool,
    hint: str,
) -> LoadedImages:
    """Return the images of a listing, decoded or streamed.

    Args:
        listing: The images.
        form: Their form, or a function that chooses it from the headers of the readable images.
        stream: Leave the images in their files; None: if they do not fit into `IN_MEMORY`.
        skip: Skip images that cannot be read; otherwise they are refused. Streamed images are
            checked before use only if `skip` is true.
        hint: End of the message that refuses images.

    Raises:
        CorruptFileError: Images cannot be read and `skip` is false, or no image can be read.
    """
    count = len(listing.names)
    skipped: list[str] = []

    def readable(unreadable: Sequence[UnreadableImage], known: str = "") -> list[int]:
        """Return the rows of the readable images; note the others, or refuse them."""
        skipped.extend(image.message for image in unreadable)
        if unreadable and (not skip or len(skipped) == count):
            known = known if len(skipped) < count else ""
            raise CorruptFileError(
                f"{skipped[0]} ({known}{len(skipped)} of {count} images cannot be read"
                f"{'' if skip else hint})"
            )
        bad = {image.row for image in unreadable}
        return [row for row in range(len(listing.names)) if row not in bad]

    if not isinstance(form, Form):
        headers, unreadable = read_headers(listing.source, listing.names)
        listing = listing.keep(readable(unreadable, "at least "))
        form = form(listing, list(headers.values()))
    files = ImageFiles(listing.source, listing.names, *form)
    x = cast(Tensor, StreamedImages(files))  # it offers what callers need of a tensor
    if stream or (stream is None and x.shape.numel() > IN_MEMORY):
        unreadable = files.check_all() if skip else []
    else:
        x, unreadable = files.decode_all()
    if unreadable:
        rows = readable(unreadable)
        listing, x = listing.keep(rows), x[torch.tensor(rows)]
    return LoadedImages(listing, x, skipped)


def read_folder(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
    stream: bool = False,
) -> LabelledPhotos:
    """Return all photos of a folder, zip file or shards with a folder for each class.

    Photos are grey if all are grey, and RGB otherwise.

    Args:
        path: The folder, zip file or shards; see `classes` for the layout.
        shape: Resize photos to this (C, H, W).
        size: Without a shape, resize photos to `size` x `size`.
        largest: Without both, photos keep their size if all have the same one, at most `largest`
            pixels a side. Otherwise they become `largest` x `largest`.
        skip: Skip photos that cannot be read, and call this with a sentence that says so.
        part: Read this part of a folder that has a train and a test part.
        stream: Leave the photos in their files and decode them when needed; always so in shards,
            and if they do not fit into `IN_MEMORY`.

    Returns:
        The photos, and in `skipped` the files that are not photos or not in a class folder.

    Raises:
        DataNotFoundError: There is no such folder.
        InputError: The folder has no class folders.
        CorruptFileError: Photos cannot be read and `skip` is None, or no photo can be read.
    """
    source = FileSource(existing_path(path))
    listing = find_classes(source, part)
    count = len(listing.names)
    form = form_for(shape, size, largest)
    listing, x, unreadable = load_images(
        listing, form, stream=stream or source.in_shards or None, skip=skip is not None, hint=HINT
    )
    if unreadable and skip is not None:
        skip(
            f"skipped {len(unreadable)} of {count} images that cannot be read; "
            f"the first: {unreadable[0]}"
        )
    return LabelledPhotos(x, listing.labels, listing.classes, listing.skipped)


def has_own_test(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder or archive has test classes beside the training classes."""
    try:
        found = existing_path(path)
    except DataNotFoundError:
        return False
    return (found.is_dir() or is_archive(found)) and has_test_classes(FileSource(found))


def channels_of(headers: Collection[Header]) -> int:
    """Return 1 if all images are grey, else 3."""
    return 1 if all(header.grey for header in headers) else 3


def form_for(shape: tuple[int, ...] | None, size: int | None, largest: int) -> Form | _ChooseForm:
    """Return the form of `shape`, or a function that chooses one; see `read_folder`."""
    if shape is not None:
        channels, height, width = shape
        return Form((channels, height, width), "bilinear")

    def choose(_: Listing, headers: Sequence[Header]) -> Form:
        channels, sizes = channels_of(headers), {header[:2] for header in headers}
        width, height = next(iter(sizes))
        if size is None and len(sizes) == 1 and max(width, height) <= largest:
            return Form((channels, height, width))
        side = largest if size is None else size
        return Form((channels, side, side), "bilinear")

    return choose
