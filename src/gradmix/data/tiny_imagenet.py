"""Tiny ImageNet from its official zip, or from the folder it unpacks to.

The classes stand in the order of wnids.txt, which is not that of their names. The official test
images have no labels, so the validation images are the test set, in the order of their list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from gradmix.data.datasets import DataSet
from gradmix.data.image_folders.decode import ImageFiles
from gradmix.data.image_folders.source import FileTree
from gradmix.data.locate import TINY_IMAGENET, locate_archive
from gradmix.errors import CorruptFileError
from gradmix.types import Samples

_SIDE = 64
_MEAN = (0.4802, 0.4480, 0.3975)  # of values scaled to 0..1
_STD = (0.2770, 0.2691, 0.2821)


def tiny_imagenet_200() -> DataSet:
    """Load Tiny ImageNet, 100,000 + 10,000 photos of 64x64 in 200 classes.

    See `gradmix.data.locate` for where from. It takes 1.4 GB of memory.
    """
    path = locate_archive(TINY_IMAGENET)
    return read_tiny_imagenet(path, num_classes=200, train_per_class=500, num_test=10_000)


def read_tiny_imagenet(
    path: str | Path, *, num_classes: int, train_per_class: int, num_test: int
) -> DataSet:
    """Read the zip or the unpacked folder; CorruptFileError names what is not as it should be.

    Classes are called by the first of their names in words.txt, or by their wnid without it.
    """
    path = Path(path)
    tree = FileTree(path) if path.is_dir() else FileTree(path, TINY_IMAGENET.folder)
    images = _images_by_folder(tree.names())
    wnids = _wnids(tree, num_classes)
    train = [_training_images(tree, images, wnid, train_per_class) for wnid in wnids]
    test, labels = _test_images(tree, images, wnids, num_test)
    y = torch.arange(num_classes).repeat_interleave(train_per_class)
    return DataSet(
        name=TINY_IMAGENET.name,
        train=Samples(_pixels(tree, [name for one in train for name in one]), y),
        test=Samples(_pixels(tree, test), torch.tensor(labels)),
        class_names=_class_names(tree, wnids),
        mean=tuple(value * 255 for value in _MEAN),
        std=tuple(value * 255 for value in _STD),
    )


def _lines(tree: FileTree, name: str) -> list[str]:
    try:
        text = tree.read(name).decode("utf-8", errors="replace")
    except (KeyError, OSError, BadZipFile) as error:
        raise CorruptFileError(f"{tree.describe(name)}: cannot be read: {error}") from error
    return [line for line in text.splitlines() if line.strip()]


def _wnids(tree: FileTree, num_classes: int) -> list[str]:
    wnids = [line.strip() for line in _lines(tree, "wnids.txt")]
    if len(set(wnids)) != num_classes or len(wnids) != num_classes:
        raise CorruptFileError(
            f"{tree.describe('wnids.txt')}: lists {len(wnids)} classes, {len(set(wnids))} of them "
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
    tree: FileTree, images: Mapping[str, list[str]], wnid: str, count: int
) -> list[str]:
    folder = f"train/{wnid}/images"
    found = images.get(folder, [])
    if len(found) != count:
        raise CorruptFileError(
            f"{tree.describe(folder)}: has {len(found)} images and should have {count}"
        )
    return found


def _test_images(
    tree: FileTree, images: Mapping[str, list[str]], wnids: Sequence[str], count: int
) -> tuple[list[str], list[int]]:
    """The validation images and their labels, in the order of val_annotations.txt."""
    where = tree.describe("val/val_annotations.txt")
    present = set(images.get("val/images", []))
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(tree, "val/val_annotations.txt"), start=1):
        file, wnid = (*line.split("\t"), "")[:2]
        name = f"val/images/{file}"
        if wnid not in label_of:
            raise CorruptFileError(f"{where}: line {number} has class {wnid!r}, not in wnids.txt")
        if name not in present or name in labels:
            wrong = "listed twice" if name in labels else "missing"
            raise CorruptFileError(f"{tree.describe(name)}: {wrong}, by line {number} of {where}")
        labels[name] = label_of[wnid]
    if len(labels) != count:
        raise CorruptFileError(f"{where}: lists {len(labels)} images and should list {count}")
    return list(labels), list(labels.values())


def _class_names(tree: FileTree, wnids: Sequence[str]) -> tuple[str, ...]:
    try:
        lines = [line.partition("\t") for line in _lines(tree, "words.txt")]
    except CorruptFileError:
        return tuple(wnids)
    words = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    return tuple(words.get(wnid) or wnid for wnid in wnids)


def _pixels(tree: FileTree, names: Sequence[str]) -> Tensor:
    pixels, failures = ImageFiles(tree, names, (3, _SIDE, _SIDE)).decode_all()
    if failures:
        raise CorruptFileError(
            f"{failures[0].message} ({len(failures)} of {len(names)} images cannot be read)"
        )
    return pixels
