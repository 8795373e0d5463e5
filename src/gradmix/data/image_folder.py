"""Folders of images, one folder per class, and zip files of them; ImageNet is one.

Two layouts, at the top or in a single folder at the top:

    train/<class>/*  test/<class>/*     the test folder may also be called val
    <class>/*                           the last images of every class become test images

A single folder that has folders and no images of its own is taken for a wrapper, and the folders
in it for classes; with images of its own it is a class. Likewise `train` is a class like others
if it has images of its own and no test folder with folders of classes is beside it.
Classes are sorted by name, images within a class too, and may lie in folders below. Files with
other extensions than `EXTENSIONS` and hidden ones are not looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, cast

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet, channel_statistics
from gradmix.data.file_tree import FileTree
from gradmix.data.images import (
    RESAMPLING,
    Failure,
    Header,
    ImageFiles,
    read_headers,
)
from gradmix.data.locate import DATA_VARIABLE, not_found, search_path
from gradmix.data.stream import StreamedImages
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError, UnknownNameError
from gradmix.types import Samples

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
_TEST_FOLDERS = ("test", "val")
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
        path: The folder or zip; its layout is described at the top of this module.
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


@dataclass(frozen=True)
class Listing:
    """The images of a folder: first all training images, then all test images."""

    tree: FileTree
    names: list[str]
    labels: list[int]
    num_train: int
    classes: tuple[str, ...]

    def keep(self, rows: Sequence[int]) -> Listing:
        """Only some rows; InputError if a class loses all of its images."""
        names, labels = [self.names[row] for row in rows], [self.labels[row] for row in rows]
        num_train = sum(row < self.num_train for row in rows)
        for part, present in (("training", labels[:num_train]), ("test", labels[num_train:])):
            lost = sorted(set(range(len(self.classes))) - set(present))
            if lost:
                raise InputError(
                    f"{self.tree.describe('')}: no readable {part} image of class "
                    f"{self.classes[lost[0]]!r} is left"
                )
        return Listing(self.tree, names, labels, num_train, self.classes)


def list_images(
    tree: FileTree,
    *,
    test_fraction: float = 0.2,
    test_folders: Sequence[str] = _TEST_FOLDERS,
) -> Listing:
    """Find the classes and images of a folder; InputError says what is not as it should be."""
    tree, entries = _innermost(tree)
    if not _is_split(entries, test_folders):
        by_class = _images_by_class(tree, entries, "")
        return _hold_out(tree, by_class, test_fraction)
    test = _test_folder(entries, test_folders)
    if test is None:
        raise InputError(
            f"{tree.describe('')}: has a folder train but none called "
            f"{' or '.join(test_folders)}; to hold out test images, give {tree.describe('train')}"
        )
    train_images, test_images = (
        _images_by_class(tree, _below(entries, part), f"{part}/") for part in ("train", test)
    )
    _check_same_classes(tree, train_images, test_images, test)
    return _listing(tree, train_images, test_images)


def find_classes(
    tree: FileTree, part: Literal["train", "test"] = "train"
) -> tuple[FileTree, dict[str, list[str]]]:
    """The images of each class, by the name of its folder; of that part if there are parts."""
    tree, entries = _innermost(tree)
    folder = _part_folder(tree, entries, part)
    if folder is None:
        return tree, _images_by_class(tree, entries, "")
    return tree, _images_by_class(tree, _below(entries, folder), f"{folder}/")


def has_test_classes(tree: FileTree) -> bool:
    """Whether there are folders of classes to test on, beside those to train on."""
    _, entries = _innermost(tree)
    test = _test_folder(entries, _TEST_FOLDERS)
    return _is_split(entries) and test is not None and bool(_folders(_below(entries, test)))


def image_names(tree: FileTree) -> list[str]:
    """All images, in whatever folders, sorted."""
    return [entry for entry in tree.names() if _is_image(entry)]


def _part_folder(tree: FileTree, entries: Sequence[str], part: str) -> str | None:
    """The folder of the part for training or for testing; None if there are no such parts."""
    if part == "train":
        return "train" if _is_split(entries) else None
    test = _test_folder(entries, _TEST_FOLDERS)
    if _is_split(entries):
        if test is None:
            raise InputError(
                f"{tree.describe('')}: has a folder train but none called "
                f"{' or '.join(_TEST_FOLDERS)}; to measure on what is for training, give "
                f"{tree.describe('train')}"
            )
        return test
    return test if test is not None and _holds_classes(entries, test) else None


def _is_split(entries: Sequence[str], test_folders: Sequence[str] = _TEST_FOLDERS) -> bool:
    """Whether `train` has the classes, instead of being one."""
    return "train" in _folders(entries) and any(
        _holds_classes(entries, folder) for folder in ("train", *test_folders)
    )


def _test_folder(entries: Sequence[str], test_folders: Sequence[str]) -> str | None:
    """The first of the test folders that has folders, else the first that is there."""
    present = [folder for folder in test_folders if folder in _folders(entries)]
    with_folders = [folder for folder in present if _folders(_below(entries, folder))]
    return next(iter([*with_folders, *present]), None)


def _innermost(tree: FileTree) -> tuple[FileTree, list[str]]:
    """The folder that has the classes, if all lies in one folder in another, and its entries."""
    entries = tree.names()
    while (
        len(only := _folders(entries)) == 1
        and only[0] != "train"
        and _holds_classes(entries, only[0])
    ):
        tree = tree.within(only[0])
        entries = _below(entries, only[0])
    return tree, entries


def _listing(tree: FileTree, train: dict[str, list[str]], test: dict[str, list[str]]) -> Listing:
    classes = tuple(sorted(train))
    names: list[str] = []
    labels: list[int] = []
    counts: list[int] = []
    for part in (train, test):
        for label, folder in enumerate(classes):
            names += part[folder]
            labels += [label] * len(part[folder])
        counts.append(len(names))
    return Listing(tree, names, labels, counts[0], classes)


def _folders(entries: Sequence[str]) -> list[str]:
    return sorted({entry.split("/", 1)[0] for entry in entries if "/" in entry})


def _holds_classes(entries: Sequence[str], folder: str) -> bool:
    """Whether a folder has folders, and no images of its own."""
    below = _below(entries, folder)
    return bool(_folders(below)) and not any("/" not in name and _is_image(name) for name in below)


def _is_image(entry: str) -> bool:
    return PurePosixPath(entry).suffix.lower() in EXTENSIONS and not entry.endswith("/")


def _below(entries: Sequence[str], folder: str) -> list[str]:
    prefix = f"{folder}/"
    return [
        entry[len(prefix) :] for entry in entries if entry.startswith(prefix) and entry != prefix
    ]


def _images_by_class(tree: FileTree, entries: Sequence[str], prefix: str) -> dict[str, list[str]]:
    """The images of each class folder, with `prefix` before their names."""
    images: dict[str, list[str]] = {folder: [] for folder in _folders(entries)}
    for entry in entries:
        if "/" in entry and _is_image(entry):
            images[entry.split("/", 1)[0]].append(f"{prefix}{entry}")
    if not images:
        raise InputError(
            f"{tree.describe(prefix)}: has no folders of classes; the images of a class belong "
            "into a folder with its name"
        )
    for folder, names in images.items():
        if not names:
            raise InputError(
                f"{tree.describe(prefix + folder)}: an empty class folder; it needs images, "
                f"with extensions {' '.join(EXTENSIONS)}"
            )
    return images


def _hold_out(tree: FileTree, images: dict[str, list[str]], fraction: float) -> Listing:
    test = {}
    for folder, names in images.items():
        if len(names) < 2:
            raise InputError(
                f"{tree.describe(folder)}: has 1 image; with no test folder a class needs 2, "
                "one of them to be held out"
            )
        test[folder] = names[-min(max(1, round(len(names) * fraction)), len(names) - 1) :]
    train = {folder: names[: -len(test[folder])] for folder, names in images.items()}
    return _listing(tree, train, test)


def _check_same_classes(
    tree: FileTree, train: dict[str, list[str]], test: dict[str, list[str]], folder: str
) -> None:
    for there, lacking, classes in (
        ("train", folder, sorted(set(train) - set(test))),
        (folder, "train", sorted(set(test) - set(train))),
    ):
        if classes:
            raise InputError(
                f"{tree.describe('')}: {there} has a class {classes[0]!r} that {lacking} lacks; "
                "both need the same folders"
            )


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
