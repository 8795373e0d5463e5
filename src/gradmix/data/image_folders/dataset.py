"""Data sets from folders of images, one folder per class; ImageNet is one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet, complete_statistics
from gradmix.data.image_folders.classes import Listing, list_images
from gradmix.data.image_folders.decode import RESAMPLING, Header
from gradmix.data.image_folders.read import Form, channels_of, load_images
from gradmix.data.image_folders.source import FileSource, existing_path
from gradmix.data.locate import DATA_VARIABLE, not_found, search_path
from gradmix.errors import DataWarning, InputError, UnknownNameError
from gradmix.types import Samples

_CORRUPT = ("refuse", "skip")
_LARGEST = 2**14  # pixels of a side to which images are resized


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
            `<class>/*`; the details are in `gradmix.data.image_folders.classes` and `shards`.
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
    _check_options(size, channels, resample, corrupt, test_fraction)
    found = existing_path(path)
    source = FileSource(found)
    stream = True if stream is None and source.in_shards else stream
    listing = list_images(source, test_fraction=test_fraction)

    def choose(listing: Listing, headers: Sequence[Header]) -> Form:
        depth = channels or channels_of(headers)
        if size is not None:
            return Form((depth, size, size), resample)
        _check_same_size(listing, headers)
        return Form((depth, headers[0].height, headers[0].width))

    form = choose if size is None or channels is None else Form((channels, size, size), resample)
    hint = (
        "; repair or remove them, or skip them: --skip-unreadable yes for runs, "
        "from_folder(…, corrupt='skip') in Python"
    )
    listing, x, unreadable = load_images(
        listing, form, stream=stream, skip=corrupt == "skip", hint=hint
    )
    _check_classes_left(listing)
    data = _data_set(name or _name_of(found), listing, x, mean, std)
    warned = list(listing.skipped)
    if unreadable:
        many = f"{len(unreadable)} unreadable images; the first: {unreadable[0]}"
        warned.insert(0, f"{found}: skipped {many}")
    for text in warned:
        warnings.warn(text, DataWarning, stacklevel=2)
    return replace(data, skipped=(*unreadable, *listing.skipped))


def imagenet() -> DataSet:
    """Return ImageNet-1K (ILSVRC 2012) at 224x224, streamed from its files; val is the test set.

    `gradmix.data.locate` lists the folders that are searched for `train/<wnid>/` and
    `val/<wnid>/`. Classes are named and sorted by wnid.
    """
    for folder in search_path("imagenet"):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return read_imagenet(folder, num_classes=1000)
    raise not_found(
        "ILSVRC 2012",
        "imagenet",
        [
            "register at image-net.org, download ILSVRC2012_img_train.tar and "
            "ILSVRC2012_img_val.tar, unpack them as <folder>/imagenet/train/<wnid>/*.JPEG and "
            "<folder>/imagenet/val/<wnid>/*.JPEG (val by its ground truth), then "
            f"export {DATA_VARIABLE}=<folder>"
        ],
    )


def read_imagenet(folder: Path, *, num_classes: int, size: int = 224) -> DataSet:
    """Return a folder with ImageNet's layout; InputError unless it has `num_classes` classes."""
    listing = list_images(FileSource(folder), test_folders=("val",))
    if len(listing.classes) != num_classes:
        raise InputError(
            f"{folder}: has {len(listing.classes)} classes, but ImageNet has {num_classes}; "
            f"to use it as it is, give folder:{folder}@{size} as the data set"
        )
    form = Form((3, size, size), "bilinear")
    x = load_images(listing, form, stream=True, skip=False, hint="").x
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    scaled = [tuple(value * 255 for value in values) for values in (mean, std)]
    return _data_set("imagenet", listing, x, *scaled)


def _check_options(
    size: int | None, channels: int | None, resample: str, corrupt: str, test_fraction: float
) -> None:
    whole = isinstance(size, int) and not isinstance(size, bool)
    if size is not None and not (whole and 1 <= size <= _LARGEST):
        raise InputError(f"size is {size!r}; it must be a number of pixels from 1 to {_LARGEST}")
    if channels not in (None, 1, 3):
        raise InputError(f"channels is {channels!r}; it must be 1 or 3")
    if resample not in RESAMPLING:
        raise UnknownNameError("resampling", resample, RESAMPLING)
    if corrupt not in _CORRUPT:
        raise UnknownNameError("value of corrupt", corrupt, _CORRUPT)
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction is {test_fraction}; it must be between 0 and 1")


def _check_same_size(listing: Listing, headers: Sequence[Header]) -> None:
    for name, header in zip(listing.names, headers, strict=True):
        if header[:2] != headers[0][:2]:
            one, other = (
                f"{listing.source.path_of(file)} is {about.width}x{about.height}"
                for file, about in ((listing.names[0], headers[0]), (name, header))
            )
            raise InputError(f"{one} and {other}; give a size to which all images are resized")


def _check_classes_left(listing: Listing) -> None:
    cut = listing.num_train
    for part, labels in (("training", listing.labels[:cut]), ("test", listing.labels[cut:])):
        lost = sorted(set(range(len(listing.classes))) - set(labels))
        if lost:
            raise InputError(
                f"{listing.source.path_of('')}: no {part} image of class "
                f"{listing.classes[lost[0]]!r} can be read"
            )


def _data_set(
    name: str,
    listing: Listing,
    x: Tensor,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> DataSet:
    y, cut = torch.tensor(listing.labels), listing.num_train
    train, test = Samples(x[:cut], y[:cut]), Samples(x[cut:], y[cut:])
    return DataSet(name, train, test, listing.classes, *complete_statistics(mean, std, train.x))


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.name if path.is_dir() else path.stem
