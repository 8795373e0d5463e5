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

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from gradmix.data.image_folders.decode import PhotoSource, is_image_name
from gradmix.data.image_folders.source import FileSource
from gradmix.errors import InputError

_TEST_FOLDERS = ("test", "val")

_Images = Mapping[str, Sequence[str]]  # the image names of each class, by its folder


@dataclass(frozen=True)
class Listing:
    """The images of a data set: first all training images, then all test images."""

    source: PhotoSource
    names: list[str]
    labels: list[int]
    num_train: int
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()  # a sentence for each reason why files are not used

    @classmethod
    def unlabelled(cls, source: PhotoSource, names: Sequence[str]) -> Listing:
        """Return a listing of images without classes."""
        return cls(source, list(names), [0] * len(names), len(names), ())

    def keep(self, rows: Sequence[int]) -> Listing:
        """Return the listing with some rows only."""
        names, labels = [self.names[row] for row in rows], [self.labels[row] for row in rows]
        num_train = sum(row < self.num_train for row in rows)
        return replace(self, names=names, labels=labels, num_train=num_train)


class _Folder:
    """The files and folders below a folder of a source."""

    def __init__(self, source: FileSource, entries: Sequence[str], path: str = "") -> None:
        self.source, self.entries, self.path = source, entries, path
        self.folders = sorted({entry.split("/", 1)[0] for entry in entries if "/" in entry})

    def below(self, folder: str) -> _Folder:
        start = f"{folder}/"
        inside = [entry[len(start) :] for entry in self.entries if entry.startswith(start)]
        return _Folder(self.source, [entry for entry in inside if entry], f"{self.path}{start}")

    @property
    def holds_classes(self) -> bool:
        """Whether it has subfolders and holds no images itself."""
        images = ("/" not in entry and _is_image(entry) for entry in self.entries)
        return bool(self.folders) and not any(images)

    def is_split(self, test_folders: Sequence[str]) -> bool:
        """Whether `train` contains the classes and is not a class itself."""
        parts = ("train", *test_folders)
        return "train" in self.folders and any(self.below(part).holds_classes for part in parts)

    def test_part(self, test_folders: Sequence[str]) -> _Folder | None:
        """Return the first test folder with subfolders, or else the first that exists."""
        present = [self.below(folder) for folder in test_folders if folder in self.folders]
        return next((part for part in present if part.folders), present[0] if present else None)


def list_images(
    source: FileSource,
    *,
    test_fraction: float = 0.2,
    test_folders: Sequence[str] = _TEST_FOLDERS,
) -> Listing:
    """Return the training and test images; InputError describes a layout that does not fit."""
    top = _inside_wrappers(source)
    if not top.is_split(test_folders):
        images, skipped = _class_folders(top)
        return _listing(top.source, *_held_out(top.source, images, test_fraction), skipped)
    part = _required_test_part(top, test_folders, "hold out test images")
    train, skipped = _class_folders(top.below("train"))
    test, more = _class_folders(part)
    folder = part.path.rstrip("/")
    unmatched = sorted(set(train) ^ set(test))
    if unmatched:
        present, absent = ("train", folder) if unmatched[0] in train else (folder, "train")
        raise InputError(
            f"{top.source.path_of('')}: class {unmatched[0]!r} is in {present} but not in "
            f"{absent}; both need the same folders"
        )
    return _listing(top.source, train, test, skipped + more)


def find_classes(source: FileSource, part: Literal["train", "test"] = "train") -> Listing:
    """Return all images as training images, of one part if the folder has train and test parts."""
    top = _inside_wrappers(source)
    chosen, test = top, top.test_part(_TEST_FOLDERS)
    if top.is_split(_TEST_FOLDERS):
        chosen = top.below("train")
        if part == "test":
            chosen = _required_test_part(top, _TEST_FOLDERS, "measure on the training images")
    elif part == "test" and test is not None and test.holds_classes:
        chosen = test
    images, skipped = _class_folders(chosen)
    return _listing(top.source, images, dict.fromkeys(images, ()), skipped)


def has_test_classes(source: FileSource) -> bool:
    """Return whether there are folders of training classes and folders of test classes."""
    top = _inside_wrappers(source)
    test = top.test_part(_TEST_FOLDERS)
    return top.is_split(_TEST_FOLDERS) and test is not None and bool(test.folders)


def image_names(source: FileSource) -> list[str]:
    """Return the sorted names of all images, in any folder."""
    return [entry for entry in source.names() if _is_image(entry)]


def _inside_wrappers(source: FileSource) -> _Folder:
    """Return the folder that holds the classes, inside folders that only hold one folder."""
    top = _Folder(source, source.names())
    while len(top.folders) == 1 and top.folders != ["train"]:
        inner = top.below(top.folders[0])
        if not inner.holds_classes:
            break
        top = _Folder(top.source.within(top.folders[0]), inner.entries)
    return top


def _required_test_part(top: _Folder, test_folders: Sequence[str], purpose: str) -> _Folder:
    test = top.test_part(test_folders)
    if test is None:
        raise InputError(
            f"{top.source.path_of('')}: has a folder train but none called "
            f"{' or '.join(test_folders)}; to {purpose}, give {top.source.path_of('train')}"
        )
    return test


def _listing(
    source: FileSource, train: _Images, test: _Images, skipped: tuple[str, ...]
) -> Listing:
    classes = tuple(sorted(train))
    names: list[str] = []
    labels: list[int] = []
    for part in (train, test):
        for label, folder in enumerate(classes):
            names += part[folder]
            labels += [label] * len(part[folder])
    return Listing(source, names, labels, sum(map(len, train.values())), classes, skipped)


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
    where = top.source.path_of(top.path)
    if not images:
        raise InputError(
            f"{where}: has no class folders; put the images of each class into a folder with its "
            "name"
        )
    empty = [folder for folder, names in images.items() if not names]
    if len(empty) == len(images):
        raise InputError(
            f"{Path(where, empty[0])}: an empty class folder; it needs image files such as "
            ".jpg, .png or .tif"
        )
    skipped = []
    if empty:
        folders = "1 folder" if len(empty) == 1 else f"{len(empty)} folders"
        skipped.append(f"{where}: skipped {folders} without images: {', '.join(empty)}")
    if others:
        kinds = ", ".join(f"{n} {end or 'without any'}" for end, n in Counter(others).most_common())
        files = "1 file" if len(others) == 1 else f"{len(others)} files"
        skipped.append(f"{where}: skipped {files} without an image extension: {kinds}")
    if loose:
        files = "1 image that is" if loose == 1 else f"{loose} images that are"
        skipped.append(f"{where}: skipped {files} beside the class folders and not in one")
    return {folder: names for folder, names in images.items() if names}, tuple(skipped)


def _held_out(source: FileSource, images: _Images, fraction: float) -> tuple[_Images, _Images]:
    """Return the first images of each class, and the last ones as test images."""
    train, test = {}, {}
    for folder, names in images.items():
        if len(names) < 2:
            raise InputError(
                f"{source.path_of(folder)}: has 1 image; without a test folder a class needs 2, "
                "one of them to hold out"
            )
        cut = len(names) - min(max(1, round(len(names) * fraction)), len(names) - 1)
        train[folder], test[folder] = names[:cut], names[cut:]
    return train, test
