"""Folders of images as data sets for runs, and as photos that a classifier learns and predicts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from gradmix._setting_types import is_whole
from gradmix.data.datasets import DataSet, complete_statistics
from gradmix.data.image_folders.classes import Listing, find_classes, list_images
from gradmix.data.image_folders.decode import (
    RESAMPLING,
    Header,
    ImageFiles,
    PhotoSource,
    read_headers,
)
from gradmix.data.image_folders.source import FileSource
from gradmix.data.stream import StreamedImages
from gradmix.errors import CorruptFileError, DataWarning, InputError, UnknownNameError
from gradmix.paths import existing_path
from gradmix.types import Samples

IN_MEMORY = 8 << 30  # bytes of pixels that are held in memory
_LARGEST = 2**14  # pixels of a side to which images are resized
_NAMED = 5  # unreadable images that a message names
HINT = "; on the command line, --skip-unreadable skips such images"


class Form(NamedTuple):
    """The pixels that images become."""

    shape: tuple[int, int, int]  # (C, H, W)
    resample: str | None = None  # how images are resized; None: all have the size already


_ChooseForm = Callable[[Mapping[int, Header]], Form]  # from the headers of readable images, by row


def load_images(
    source: PhotoSource,
    names: Sequence[str],
    form: Form | _ChooseForm,
    *,
    stream: bool | None = False,
    skip: bool = False,
    hint: str = "",
) -> tuple[Tensor, dict[int, str]]:
    """Return the readable images of a source, and why the others are skipped, by row of `names`.

    Images are uint8 (N, C, H, W), or `StreamedImages` in place of such a tensor.

    Args:
        source: Where the images are.
        names: The images.
        form: Their form, or a function that chooses it from the headers of the readable images.
        stream: Leave the images in their files; None: if they do not fit into `IN_MEMORY`.
        skip: Skip images that cannot be read; otherwise, or if none can be read, CorruptFileError
            refuses them. Streamed images are checked before use only if `skip` is true.
        hint: End of the message that refuses images.
    """

    def refuse(unreadable: Mapping[int, str], at_least: str = "") -> None:
        count = len(unreadable)
        if unreadable and (not skip or count == len(names)):
            at_least = at_least if count < len(names) else ""
            raise CorruptFileError(
                f"{next(iter(unreadable.values()))} ({at_least}{count} of {len(names)} images "
                f"cannot be read{'' if skip else hint})"
            )

    if not isinstance(form, Form):
        headers, unreadable = read_headers(source, names)
        refuse(unreadable, "at least ")
        form = form(headers)
    files = ImageFiles(source, names, *form)
    x = cast(Tensor, StreamedImages(files))  # it offers what callers need of a tensor
    if stream or (stream is None and x.shape.numel() > IN_MEMORY):
        unreadable = files.decode_all() if skip else {}
    else:
        x = torch.zeros(x.shape, dtype=torch.uint8)
        unreadable = files.decode_all(x.numpy())
    refuse(unreadable)
    if unreadable:
        x = x[torch.tensor([row for row in range(len(names)) if row not in unreadable])]
    return x, unreadable


def read_folder(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
    skip: Callable[[str], object] | None = None,
    part: Literal["train", "test"] = "train",
    stream: bool = False,
) -> tuple[Tensor, Listing]:
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
        The photos, uint8 (N, C, H, W) or `StreamedImages`, and their listing.

    Raises:
        DataNotFoundError: There is no such folder.
        InputError: The folder has no class folders.
        CorruptFileError: Photos cannot be read and `skip` is None, or no photo can be read.
    """
    source = FileSource(existing_path(path))
    listing = find_classes(source, part)
    x, unreadable = load_images(
        source,
        listing.names,
        form_for(shape, size, largest),
        stream=stream or source.in_shards or None,
        skip=skip is not None,
        hint=HINT,
    )
    if unreadable and skip is not None:
        skip(_skipped(unreadable, len(listing.names)))
    return x, listing.without(unreadable)


def _skipped(unreadable: Mapping[int, str], total: int) -> str:
    """Return how many images are skipped, the first reasons, and the number of others."""
    reasons = list(unreadable.values())
    more = [f"and {len(reasons) - _NAMED} more"] if len(reasons) > _NAMED else []
    head = f"skipped {len(reasons)} of {total} images that cannot be read:"
    return "\n  ".join([head, *reasons[:_NAMED], *more])


def channels_of(headers: Mapping[int, Header]) -> int:
    """Return 1 if all images are grey, else 3."""
    return 1 if all(header.grey for header in headers.values()) else 3


def form_for(shape: tuple[int, ...] | None, size: int | None, largest: int) -> Form | _ChooseForm:
    """Return the form of `shape`, or a function that chooses one; see `read_folder`."""
    if shape is not None:
        channels, height, width = shape
        return Form((channels, height, width), "bilinear")

    def choose(headers: Mapping[int, Header]) -> Form:
        channels, sizes = channels_of(headers), {header[:2] for header in headers.values()}
        width, height = next(iter(sizes))
        if size is None and len(sizes) == 1 and max(width, height) <= largest:
            return Form((channels, height, width))
        side = largest if size is None else size
        return Form((channels, side, side), "bilinear")

    return choose


# --- data sets -----------------------------------------------------------------------------------


def from_folder(
    path: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    resample: str = "bilinear",
    corrupt: Literal["refuse", "skip"] = "refuse",
    test_fraction: float = 0.2,
    stream: bool | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
) -> DataSet:
    """Return a data set from a folder of images, or from a zip file or shards of one.

    Args:
        path: The folder, zip file or shards: `train/<class>/*` and `test/<class>/*`, or
            `<class>/*`; the details are in `gradmix.data.image_folders.classes` and `source`.
        size: Resize the shorter side to this, with antialiasing, and cut out the centre square.
            Required if the images have different sizes. Photos are turned upright by EXIF data.
        channels: 1 for grey or 3 for RGB. Default: 1 if all images are grey, else 3.
        resample: "bilinear" or "bicubic".
        corrupt: "refuse" raises CorruptFileError if images cannot be read; "skip" skips them with
            a warning. Streamed images are checked before use only with "skip".
        test_fraction: Without a test folder, the last images of each class become test images:
            this fraction, at least one.
        stream: Leave the images in their files and decode them when needed, see `StreamedImages`.
            Default: if they are in shards, or their pixels take more than 8 GiB.
        mean: Per channel, for values from 0 to 255. Default: computed from the training images.
        std: The standard deviation, like `mean`.
        name: Name of the data set. Default: the name of the folder.

    Returns:
        The data set. Its `skipped` names unreadable images and counts other files.

    Raises:
        DataNotFoundError: There is no such folder or zip file.
        InputError: An option or the layout is invalid, or sizes differ and `size` is None.
        CorruptFileError: Images cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for animal, shade in (("cat", 50), ("dog", 200)):
        ...     (folder / animal).mkdir()
        ...     for number in range(3):
        ...         Image.new("RGB", (40, 30), (shade,) * 3).save(folder / animal / f"{number}.png")
        >>> data = from_folder(folder, size=16)
        >>> data.class_names, data.train.x.shape, data.test.y.tolist()
        (('cat', 'dog'), torch.Size([4, 3, 16, 16]), [0, 1])
    """
    if size is not None and not (is_whole(size) and 1 <= size <= _LARGEST):
        raise InputError(f"size is {size!r}; it must be a number of pixels from 1 to {_LARGEST}")
    if channels not in (None, 1, 3):
        raise InputError(f"channels is {channels!r}; it must be 1 or 3")
    if resample not in RESAMPLING:
        raise UnknownNameError("resampling", resample, RESAMPLING)
    if corrupt not in ("refuse", "skip"):
        raise UnknownNameError("value of corrupt", corrupt, ("refuse", "skip"))
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction is {test_fraction}; it must be between 0 and 1")
    source = FileSource(existing_path(path))
    stream = True if stream is None and source.in_shards else stream
    listing = list_images(source, test_fraction=test_fraction)

    def choose(headers: Mapping[int, Header]) -> Form:
        depth = channels or channels_of(headers)
        if size is not None:
            return Form((depth, size, size), resample)
        first = next(iter(headers))
        width, height, _ = headers[first]
        for row, header in headers.items():
            if header[:2] != (width, height):
                one, other = (
                    f"{source.path_of(listing.names[k])} is {headers[k].width}x{headers[k].height}"
                    for k in (first, row)
                )
                raise InputError(f"{one} and {other}; give a size to which all images are resized")
        return Form((depth, height, width))

    form = choose if size is None or channels is None else Form((channels, size, size), resample)
    hint = (
        "; repair or remove them, or skip them: --skip-unreadable yes for runs, "
        "from_folder(…, corrupt='skip') in Python"
    )
    x, unreadable = load_images(
        source, listing.names, form, stream=stream, skip=corrupt == "skip", hint=hint
    )
    listing = listing.without(unreadable)
    cut = listing.num_train
    for part, labels in (("training", listing.labels[:cut]), ("test", listing.labels[cut:])):
        lost = sorted(set(range(len(listing.classes))) - set(labels))
        if lost:
            raise InputError(
                f"{listing.where}: no {part} image of class {listing.classes[lost[0]]!r} can be "
                "read"
            )
    whole_path = source.path.resolve()
    own_name = whole_path.name if whole_path.is_dir() else whole_path.stem
    data = make_data_set(name or own_name, listing, x, mean, std)
    total = len(listing.names) + len(unreadable)
    warned = [f"{source.path}: {_skipped(unreadable, total)}"] if unreadable else []
    for text in (*warned, *listing.skipped):
        warnings.warn(text, DataWarning, stacklevel=2)
    return replace(data, skipped=(*unreadable.values(), *listing.skipped))


def make_data_set(
    name: str,
    listing: Listing,
    x: Tensor,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> DataSet:
    """Return the images of a listing as a data set; statistics that are None are computed."""
    y, cut = torch.tensor(listing.labels), listing.num_train
    train, test = Samples(x[:cut], y[:cut]), Samples(x[cut:], y[cut:])
    return DataSet(name, train, test, listing.classes, *complete_statistics(mean, std, train.x))
