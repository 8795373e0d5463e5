"""Which images of a folder, a zip file or shards belong to which class.

There are two layouts:

    train/<class>/*  test/<class>/*     the test folder may also be called val
    <class>/*                           the last images of every class become test images

A folder that holds images is a class; otherwise its subfolders are the classes. A single folder
around all others is therefore only a wrapper, and `train` is an ordinary class if it holds images
and no folder of test classes is beside it. The images of a class may be in folders below. Folders
without images are skipped. Classes, and the images of a class, are sorted by name.

A file counts as an image if it has the extension of one; see `is_image_name`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from gradmix.data.image_folders.decode import is_image_name
from gradmix.data.image_folders.source import FileSource, is_archive
from gradmix.errors import InputError
from gradmix.paths import checked_path

_TEST_FOLDERS = ("test", "val")

_Images = Mapping[str, Sequence[str]]  # the image names of each class, by its folder


@dataclass(frozen=True)
class Listing:
    """The images of a data set: first all training images, then all test images."""

    where: str  # the folder of the classes, for messages
    names: list[str]
    labels: list[int]
    num_train: int
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()  # a sentence for each reason why files are not used

    def without(self, unreadable: Collection[int]) -> Listing:
        """Return the listing without some rows."""
        rows = [row for row in range(len(self.names)) if row not in unreadable]
        names, labels = [self.names[row] for row in rows], [self.labels[row] for row in rows]
        num_train = sum(row < self.num_train for row in rows)
        return replace(self, names=names, labels=labels, num_train=num_train)


class _Folder:
    """A folder of a source: its path, which ends with a slash, and all entries below it."""

    def __init__(self, source: FileSource, entries: Sequence[str], path: str = "") -> None:
        self.source, self.entries, self.path = source, entries, path
        self.folders = sorted({entry.split("/", 1)[0] for entry in entries if "/" in entry})
        self.where = source.path_of(path)  # for messages

    def below(self, folder: str) -> _Folder:
        start = f"{folder}/"
        inside = [entry[len(start) :] for entry in self.entries if entry.startswith(start)]
        return _Folder(self.source, [entry for entry in inside if entry], f"{self.path}{start}")

    @property
    def holds_classes(self) -> bool:
        """Whether it has subfolders and holds no images itself."""
        images = ("/" not in entry and _is_image(entry) for entry in self.entries)
        return bool(self.folders) and not any(images)


class _Layout(NamedTuple):
    """Where the classes of a source are."""

    top: _Folder  # inside folders that only hold one folder
    train: _Folder | None  # the folder `train`, if it holds classes and is not a class itself
    test: _Folder | None  # the first test folder with subfolders, or else the first that exists


def _layout(source: FileSource, test_folders: Sequence[str] = _TEST_FOLDERS) -> _Layout:
    top = _Folder(source, source.names())
    while len(top.folders) == 1 and top.folders != ["train"]:
        inner = top.below(top.folders[0])
        if not inner.holds_classes:
            break
        top = inner
    tests = [top.below(folder) for folder in test_folders if folder in top.folders]
    test = next((part for part in tests if part.folders), tests[0] if tests else None)
    train = top.below("train")
    is_split = "train" in top.folders and any(part.holds_classes for part in (train, *tests))
    return _Layout(top, train if is_split else None, test)


def list_images(
    source: FileSource,
    *,
    test_fraction: float = 0.2,
    test_folders: Sequence[str] = _TEST_FOLDERS,
) -> Listing:
    """Return the training and test images; InputError describes a layout that does not fit."""
    top, train, test = _layout(source, test_folders)
    if train is None:
        images, skipped = _class_folders(top)
        return _listing(top.where, *_held_out(top, images, test_fraction), skipped)
    if test is None:
        raise _no_test_folder(top, test_folders, "hold out test images")
    of_train, skipped = _class_folders(train)
    of_test, more = _class_folders(test)
    unmatched = sorted(set(of_train) ^ set(of_test))
    if unmatched:
        folders = ["train", Path(test.path).name]
        present, absent = folders if unmatched[0] in of_train else reversed(folders)
        raise InputError(
            f"{top.where}: class {unmatched[0]!r} is in {present} but not in {absent}; both need "
            "the same folders"
        )
    return _listing(top.where, of_train, of_test, skipped + more)


def find_classes(source: FileSource, part: Literal["train", "test"] = "train") -> Listing:
    """Return all images as training images, of one part if the folder has train and test parts."""
    top, train, test = _layout(source)
    chosen = top if train is None else train
    if part == "test":
        if train is not None and test is None:
            raise _no_test_folder(top, _TEST_FOLDERS, "measure on the training images")
        if test is not None and (train is not None or test.holds_classes):
            chosen = test
    images, skipped = _class_folders(chosen)
    return _listing(top.where, images, dict.fromkeys(images, ()), skipped)


def has_own_test(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder or archive has test classes beside the training classes."""
    found = checked_path(path)
    if not os.path.isdir(found) and not (os.path.isfile(found) and is_archive(found)):
        return False
    _, train, test = _layout(FileSource(found))
    return train is not None and test is not None and bool(test.folders)


def image_names(source: FileSource) -> list[str]:
    """Return the sorted names of all images, in any folder."""
    return [entry for entry in source.names() if _is_image(entry)]


def show_kinds(endings: Sequence[str]) -> str:
    """Return how many files have each ending, with a remedy for the photos of iPhones.

    >>> show_kinds([".txt", ".heic", ".txt", ""])
    '2 .txt, 1 .heic, 1 without any (convert .heic photos to .jpg)'
    """
    counts = Counter(endings).most_common()
    shown = ", ".join(f"{number} {ending or 'without any'}" for ending, number in counts)
    apple = sorted({".heic", ".heif"} & {*endings})
    return f"{shown} (convert {' and '.join(apple)} photos to .jpg)" if apple else shown


def _no_test_folder(top: _Folder, test_folders: Sequence[str], purpose: str) -> InputError:
    return InputError(
        f"{top.where}: has a folder train but none called {' or '.join(test_folders)}; "
        f"to {purpose}, give {Path(top.where, 'train')}"
    )


def _listing(where: str, train: _Images, test: _Images, skipped: tuple[str, ...]) -> Listing:
    classes = tuple(sorted(train))
    names: list[str] = []
    labels: list[int] = []
    for part in (train, test):
        for label, folder in enumerate(classes):
            names += part[folder]
            labels += [label] * len(part[folder])
    return Listing(where, names, labels, sum(map(len, train.values())), classes, skipped)


def _is_image(entry: str) -> bool:
    return not entry.endswith("/") and is_image_name(entry)


def _class_folders(top: _Folder) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the images of each class in a folder, and a sentence for each reason to skip files."""
    images: dict[str, list[str]] = {folder: [] for folder in top.folders}
    loose, others = 0, []
    for entry in top.entries:
        if _is_image(entry) and "/" in entry:
            images[entry.split("/", 1)[0]].append(f"{top.path}{entry}")
        elif _is_image(entry):
            loose += 1
        elif "/" in entry and not entry.endswith("/"):
            others.append(PurePosixPath(entry).suffix.lower())
    if not images:
        raise InputError(
            f"{top.where}: has no class folders; put the images of each class into a folder with "
            "its name"
        )
    empty = [folder for folder, names in images.items() if not names]
    if len(empty) == len(images):
        raise InputError(
            f"{Path(top.where, empty[0])}: the class folder is empty; add image files such as "
            ".jpg, .png or .tif"
        )
    reasons = (
        (len(empty), "folder", f"without images: {', '.join(empty)}"),
        (len(others), "file", f"without an image extension: {show_kinds(others)}"),
        (loose, "image", "outside the class folders"),
    )
    skipped = tuple(
        f"{top.where}: skipped {count} {noun}{'s' if count > 1 else ''} {why}"
        for count, noun, why in reasons
        if count
    )
    return {folder: names for folder, names in images.items() if names}, skipped


def _held_out(top: _Folder, images: _Images, fraction: float) -> tuple[_Images, _Images]:
    """Return the first images of each class, and the last ones as test images."""
    train, test = {}, {}
    for folder, names in images.items():
        if len(names) < 2:
            raise InputError(
                f"{Path(top.where, folder)}: has 1 image; without a test folder a class needs 2, "
                "one of them to hold out"
            )
        cut = len(names) - min(max(1, round(len(names) * fraction)), len(names) - 1)
        train[folder], test[folder] = names[:cut], names[cut:]
    return train, test
