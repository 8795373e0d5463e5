"""Data sets of folders of images, one folder per class; ImageNet is one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet, channel_statistics
from gradmix.data.image_folders.classes import Listing, list_images
from gradmix.data.image_folders.decode import (
    RESAMPLING,
    Failure,
    Header,
    ImageFiles,
    read_headers,
)
from gradmix.data.image_folders.source import FileTree
from gradmix.data.locate import DATA_VARIABLE, not_found, search_path
from gradmix.data.stream import StreamedImages
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError, UnknownNameError
from gradmix.types import Samples

_IN_MEMORY = 8 << 30  # bytes of pixels beyond which images are streamed unless told otherwise
_CORRUPT = ("refuse", "skip")
LARGEST = 2**14  # pixels of a side to which images are resized


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
    """Make a data set of a folder of images, or of a zip file of one.

    Args:
        path: The folder or zip; its layout is described at the top of `class_folders`.
        size: Resize the shorter side to this, with antialiasing, and cut out the centre square.
            Needed if the images differ in size. Photos are turned upright as their EXIF data say.
        channels: 1 for grey or 3 for colours; by default 1 if all images are grey, else 3.
        resample: "bilinear" or "bicubic".
        corrupt: What to do with images that cannot be read: "refuse" raises a CorruptFileError
            that names the first and says how many at least, "skip" leaves them out with a
            warning and lists them in `skipped` of the data set. Streamed images are not read
            beforehand to be refused; a bad one then raises when it is its turn.
        test_fraction: Without a test folder, the share of each class, the last by name, that
            becomes test images, at least one; 0.2 is the last 20 %.
        stream: Leave the images in their files and decode them when needed, see
            `StreamedImages`; by default if their pixels would take more than 8 GiB.
        mean: Per channel, of values from 0 to 255; by default that of the training images,
            for which all of them are decoded once.
        std: Likewise.
        name: Of the data set; by default the name of the folder.
    """
    path = Path(path).expanduser()
    _check_options(size, channels, resample, corrupt, test_fraction)
    if not path.exists():
        raise DataNotFoundError(f"{path}: no such folder or zip file")
    listing = list_images(FileTree(path), test_fraction=test_fraction)
    shape, failures = _common_shape(listing, size, channels)
    listing, skipped = _without(listing, failures, corrupt, headers_only=True)
    files = ImageFiles(listing.tree, listing.names, shape, None if size is None else resample)
    x: Tensor | StreamedImages = StreamedImages(files)
    if stream or (stream is None and x.shape.numel() > _IN_MEMORY):
        failures = files.check_all() if corrupt == "skip" else []
    else:
        x, failures = files.decode_all()
    listing, more = _without(listing, failures, corrupt)
    if failures:
        bad = {failure.row for failure in failures}
        x = x[torch.tensor([row for row in range(len(files)) if row not in bad])]
    skipped += more
    if skipped:
        warnings.warn(
            f"{path}: {len(skipped)} images cannot be read and are left out; the first is "
            f"{skipped[0]}",
            stacklevel=2,
        )
    data = _data_set(name or _name_of(path), listing, x, mean, std)
    return replace(data, skipped=tuple(skipped))


def imagenet() -> DataSet:
    """Open ImageNet-1K (ILSVRC 2012) at 224x224, streamed from its files; val is the test set.

    It is looked for as `train/<wnid>/` and `val/<wnid>/` in the folders of
    `gradmix.data.locate`. Classes are named by wnid, in their order.
    """
    for folder in search_path("imagenet"):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return read_imagenet(folder, num_classes=1000)
    raise not_found(
        "ILSVRC 2012",
        "imagenet",
        [
            "get ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from image-net.org, where "
            "you must register, unpack them as <folder>/imagenet/train/<wnid>/*.JPEG and "
            "<folder>/imagenet/val/<wnid>/*.JPEG (val by its ground truth), then "
            f"export {DATA_VARIABLE}=<folder>"
        ],
    )


def read_imagenet(folder: Path, *, num_classes: int, size: int = 224) -> DataSet:
    """Open a folder of the layout of ImageNet; an InputError unless it has so many classes."""
    listing = list_images(FileTree(folder), test_folders=("val",))
    if len(listing.classes) != num_classes:
        raise InputError(
            f"{folder}: has {len(listing.classes)} classes, and ImageNet {num_classes}; "
            f"as a data set of its own it is called folder:{folder}@{size}"
        )
    x = StreamedImages(ImageFiles(listing.tree, listing.names, (3, size, size), "bilinear"))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    scaled = [tuple(value * 255 for value in values) for values in (mean, std)]
    return _data_set("imagenet", listing, x, *scaled)


def _check_options(
    size: int | None, channels: int | None, resample: str, corrupt: str, test_fraction: float
) -> None:
    whole = isinstance(size, int) and not isinstance(size, bool)
    if size is not None and not (whole and 1 <= size <= LARGEST):
        raise InputError(f"size is {size!r}; it must be a number of pixels from 1 to {LARGEST}")
    if channels not in (None, 1, 3):
        raise InputError(f"channels is {channels!r}; it must be 1 or 3")
    if resample not in RESAMPLING:
        raise UnknownNameError("resampling", resample, RESAMPLING)
    if corrupt not in _CORRUPT:
        raise UnknownNameError("way with corrupt images", corrupt, _CORRUPT)
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction is {test_fraction}; it must lie between 0 and 1")


def _common_shape(
    listing: Listing, size: int | None, channels: int | None
) -> tuple[tuple[int, int, int], list[Failure]]:
    """The shape (C, H, W) of all images, and the images whose header cannot be read."""
    if size is not None and channels is not None:
        return (channels, size, size), []
    headers, failures = read_headers(listing.tree, listing.names)
    if not headers:
        raise CorruptFileError(f"{failures[0].message} (and no other image can be read either)")
    if channels is None:
        channels = 1 if all(header.grey for header in headers.values()) else 3
    if size is not None:
        return (channels, size, size), failures
    first = min(headers)
    for row in sorted(headers):
        _check_same_size(listing, headers, first, row)
    return (channels, headers[first].height, headers[first].width), failures


def _check_same_size(listing: Listing, headers: dict[int, Header], first: int, row: int) -> None:
    if headers[row][:2] != headers[first][:2]:
        one, other = (
            f"{listing.tree.describe(listing.names[k])} is {headers[k].width}x{headers[k].height}"
            for k in (first, row)
        )
        raise InputError(f"{one} and {other}; give a size to which all images are resized")


def _without(
    listing: Listing, failures: Sequence[Failure], corrupt: str, *, headers_only: bool = False
) -> tuple[Listing, list[str]]:
    """The listing without what failed, and the messages; CorruptFileError if that is refused."""
    if not failures:
        return listing, []
    if corrupt == "refuse":
        raise CorruptFileError(
            f"{failures[0].message} ({'at least ' if headers_only else ''}{len(failures)} of "
            f"{len(listing.names)} images cannot be read; mend or remove them, or load the folder "
            "by from_folder(…, corrupt='skip'), which leaves them out)"
        )
    bad = {failure.row for failure in failures}
    kept = listing.keep([row for row in range(len(listing.names)) if row not in bad])
    return kept, [failure.message for failure in failures]


def _data_set(
    name: str,
    listing: Listing,
    x: Tensor | StreamedImages,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> DataSet:
    stand_in = cast(Tensor, x)  # StreamedImages does what is asked of a tensor of samples
    y = torch.tensor(listing.labels)
    cut = listing.num_train
    train, test = Samples(stand_in[:cut], y[:cut]), Samples(stand_in[cut:], y[cut:])
    if mean is None or std is None:
        computed = channel_statistics(train.x)
        mean = computed[0] if mean is None else mean
        std = computed[1] if std is None else std
    return DataSet(name, train, test, listing.classes, tuple(mean), tuple(std))


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.name if path.is_dir() else path.stem
