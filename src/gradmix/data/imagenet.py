"""ImageNet from its folder, and Tiny ImageNet from its official zip file or unpacked folder.

The classes of Tiny ImageNet are in the order of wnids.txt, which is not alphabetical. Its official
test images have no labels. The validation images are therefore the test set, in the order of
val_annotations.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import torch

from gradmix.data.datasets import DataSet, in_bytes
from gradmix.data.image_folders.classes import list_images
from gradmix.data.image_folders.read import Form, load_images, make_data_set
from gradmix.data.image_folders.source import FileSource
from gradmix.data.locate import DATA_VARIABLE, TINY_IMAGENET, locate_archive, not_found, search_path
from gradmix.errors import CorruptFileError, InputError
from gradmix.types import Samples

_ANNOTATIONS = "val_annotations.txt"  # lists the validation images and their classes


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
    source = FileSource(folder)
    listing = list_images(source, test_folders=("val",))  # test may hold unlabelled images
    if len(listing.classes) != num_classes:
        raise InputError(
            f"{folder}: has {len(listing.classes)} classes, but ImageNet has {num_classes}; "
            f"to use it as it is, give folder:{folder}@{size} as the data set"
        )
    form = Form((3, size, size), "bilinear")
    x, _ = load_images(source, listing.names, form, stream=True)
    mean, std = in_bytes(0.485, 0.456, 0.406), in_bytes(0.229, 0.224, 0.225)
    return make_data_set("imagenet", listing, x, mean, std)


def tiny_imagenet_200() -> DataSet:
    """Return Tiny ImageNet: 100,000 + 10,000 photos of 64x64 in 200 classes, 1.4 GB of memory."""
    path = locate_archive(TINY_IMAGENET)
    return read_tiny_imagenet(path, num_classes=200, train_per_class=500, num_test=10_000)


def read_tiny_imagenet(
    path: str | Path, *, num_classes: int, train_per_class: int, num_test: int
) -> DataSet:
    """Return the data set in a zip file or unpacked folder; CorruptFileError names a bad file.

    The name of a class is its first name in words.txt, or its wnid if there is none.
    """
    source = FileSource(path)
    top = "" if source.path.is_dir() else f"{TINY_IMAGENET.folder}/"  # of all names in the zip file
    images: dict[str, list[str]] = {}  # by folder
    for name in source.names():
        if name.endswith(".JPEG"):
            images.setdefault(name.rpartition("/")[0], []).append(name)
    wnids = [line.strip() for line in _lines(source, f"{top}wnids.txt")]
    if len(set(wnids)) != num_classes or len(wnids) != num_classes:
        raise CorruptFileError(
            f"{source.path_of(f'{top}wnids.txt')}: lists {len(wnids)} classes, {len(set(wnids))} "
            f"of them different, and should list {num_classes}"
        )
    train: list[str] = []
    for folder in (f"{top}train/{wnid}/images" for wnid in wnids):
        found = images.get(folder, [])
        if len(found) != train_per_class:
            raise CorruptFileError(
                f"{source.path_of(folder)}: has {len(found)} images and should have "
                f"{train_per_class}"
            )
        train += found
    test = _test_labels(source, f"{top}val/", images.get(f"{top}val/images", []), wnids)
    if len(test) != num_test:
        where = source.path_of(f"{top}val/{_ANNOTATIONS}")
        raise CorruptFileError(f"{where}: lists {len(test)} images and should list {num_test}")
    x_train, x_test = (load_images(source, part, Form((3, 64, 64)))[0] for part in (train, [*test]))
    y_train = torch.arange(num_classes).repeat_interleave(train_per_class)
    return DataSet(
        TINY_IMAGENET.name,
        Samples(x_train, y_train),
        Samples(x_test, torch.tensor(list(test.values()))),
        _class_names(source, top, wnids),
        in_bytes(0.4802, 0.4480, 0.3975),
        in_bytes(0.2770, 0.2691, 0.2821),
    )


def _lines(source: FileSource, name: str) -> list[str]:
    try:
        text = source.read(name).decode("utf-8", errors="replace")
    except (KeyError, OSError, BadZipFile) as error:
        raise CorruptFileError(f"{source.path_of(name)}: cannot be read: {error}") from error
    return [line for line in text.splitlines() if line.strip()]


def _test_labels(
    source: FileSource, folder: str, present: Sequence[str], wnids: Sequence[str]
) -> dict[str, int]:
    """Return the labels of the validation images, in the order of their list."""
    where = source.path_of(f"{folder}{_ANNOTATIONS}")
    images = set(present)
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(source, f"{folder}{_ANNOTATIONS}"), start=1):
        file, wnid = (*line.split("\t"), "")[:2]
        name = f"{folder}images/{file}"
        if wnid not in wnids:
            raise CorruptFileError(f"{where}: line {number} has class {wnid!r}, not in wnids.txt")
        if name not in images or name in labels:
            wrong = "listed twice" if name in labels else "missing"
            raise CorruptFileError(f"{source.path_of(name)}: {wrong}, by line {number} of {where}")
        labels[name] = wnids.index(wnid)
    return labels


def _class_names(source: FileSource, top: str, wnids: Sequence[str]) -> tuple[str, ...]:
    try:
        lines = [line.partition("\t") for line in _lines(source, f"{top}words.txt")]
    except CorruptFileError:
        return tuple(wnids)
    words = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    return tuple(words.get(wnid) or wnid for wnid in wnids)
