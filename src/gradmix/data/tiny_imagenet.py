"""Tiny ImageNet from its official zip file, or from its unpacked folder.

Classes are in the order of wnids.txt, which is not alphabetical. The official test images have no
labels. The validation images are therefore the test set, in the order of val_annotations.txt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet
from gradmix.data.image_folders.classes import Listing
from gradmix.data.image_folders.read import Form, load_images
from gradmix.data.image_folders.source import FileSource
from gradmix.data.locate import TINY_IMAGENET, locate_archive
from gradmix.errors import CorruptFileError
from gradmix.types import Samples

_SIDE = 64
_MEAN = (0.4802, 0.4480, 0.3975)  # of values scaled to 0..1
_STD = (0.2770, 0.2691, 0.2821)


def tiny_imagenet_200() -> DataSet:
    """Return Tiny ImageNet: 100,000 + 10,000 photos of 64x64 in 200 classes, 1.4 GB of memory.

    `gradmix.data.locate` finds it.
    """
    path = locate_archive(TINY_IMAGENET)
    return read_tiny_imagenet(path, num_classes=200, train_per_class=500, num_test=10_000)


def read_tiny_imagenet(
    path: str | Path, *, num_classes: int, train_per_class: int, num_test: int
) -> DataSet:
    """Return the data set in a zip file or unpacked folder.

    The name of a class is its first name in words.txt, or its wnid if there is none.

    Raises:
        CorruptFileError: A file or an image is missing or damaged; the message names it.
    """
    path = Path(path)
    source = FileSource(path) if path.is_dir() else FileSource(path, TINY_IMAGENET.folder)
    images = _images_by_folder(source.names())
    wnids = _wnids(source, num_classes)
    train = [_training_images(source, images, wnid, train_per_class) for wnid in wnids]
    test, labels = _test_images(source, images, wnids, num_test)
    y = torch.arange(num_classes).repeat_interleave(train_per_class)
    return DataSet(
        name=TINY_IMAGENET.name,
        train=Samples(_pixels(source, [name for one in train for name in one]), y),
        test=Samples(_pixels(source, test), torch.tensor(labels)),
        class_names=_class_names(source, wnids),
        mean=tuple(value * 255 for value in _MEAN),
        std=tuple(value * 255 for value in _STD),
    )


def _lines(source: FileSource, name: str) -> list[str]:
    try:
        text = source.read(name).decode("utf-8", errors="replace")
    except (KeyError, OSError, BadZipFile) as error:
        raise CorruptFileError(f"{source.path_of(name)}: cannot be read: {error}") from error
    return [line for line in text.splitlines() if line.strip()]


def _wnids(source: FileSource, num_classes: int) -> list[str]:
    wnids = [line.strip() for line in _lines(source, "wnids.txt")]
    if len(set(wnids)) != num_classes or len(wnids) != num_classes:
        raise CorruptFileError(
            f"{source.path_of('wnids.txt')}: lists {len(wnids)} classes, {len(set(wnids))} of them "
            f"different, and should list {num_classes}"
        )
    return wnids


def _images_by_folder(names: Sequence[str]) -> dict[str, list[str]]:
    images: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".JPEG"):
            images.setdefault(name.rpartition("/")[0], []).append(name)
    return images


def _training_images(
    source: FileSource, images: Mapping[str, list[str]], wnid: str, count: int
) -> list[str]:
    folder = f"train/{wnid}/images"
    found = images.get(folder, [])
    if len(found) != count:
        raise CorruptFileError(
            f"{source.path_of(folder)}: has {len(found)} images and should have {count}"
        )
    return found


def _test_images(
    source: FileSource, images: Mapping[str, list[str]], wnids: Sequence[str], count: int
) -> tuple[list[str], list[int]]:
    """Return the validation images and their labels, in the order of val_annotations.txt."""
    where = source.path_of("val/val_annotations.txt")
    present = set(images.get("val/images", []))
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(source, "val/val_annotations.txt"), start=1):
        file, wnid = (*line.split("\t"), "")[:2]
        name = f"val/images/{file}"
        if wnid not in label_of:
            raise CorruptFileError(f"{where}: line {number} has class {wnid!r}, not in wnids.txt")
        if name not in present or name in labels:
            wrong = "listed twice" if name in labels else "missing"
            raise CorruptFileError(f"{source.path_of(name)}: {wrong}, by line {number} of {where}")
        labels[name] = label_of[wnid]
    if len(labels) != count:
        raise CorruptFileError(f"{where}: lists {len(labels)} images and should list {count}")
    return list(labels), list(labels.values())


def _class_names(source: FileSource, wnids: Sequence[str]) -> tuple[str, ...]:
    try:
        lines = [line.partition("\t") for line in _lines(source, "words.txt")]
    except CorruptFileError:
        return tuple(wnids)
    words = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    return tuple(words.get(wnid) or wnid for wnid in wnids)


def _pixels(source: FileSource, names: Sequence[str]) -> Tensor:
    listing, form = Listing.unlabelled(source, names), Form((3, _SIDE, _SIDE))
    return load_images(listing, form, stream=False, skip=False, hint="").x
