"""Which images of a folder, or of a zip file of one, belong to which class.

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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from gradmix.data.image_folders.source import FileTree
from gradmix.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
_TEST_FOLDERS = ("test", "val")


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
