"""Which images of a folder, or of a zip file, belong to which class.

There are two layouts:

    train/<class>/*  test/<class>/*     the test folder may also be called val
    <class>/*                           the last images of every class become test images

A folder that holds images is a class; otherwise its subfolders are the classes. A single folder
around all others is therefore only a wrapper, and `train` is an ordinary class if it holds images
and no folder of test classes is beside it. The images of a class may be in folders below. Classes,
and the images of a class, are sorted by name.

A file counts as an image if it has the extension of one; see `is_image_name`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from gradmix.data.image_folders.decode import PhotoSource, is_image_name
from gradmix.data.image_folders.source import FileSource
from gradmix.errors import InputError

_TEST_FOLDERS = ("test", "val")
_EXAMPLES = ".jpg, .png or .tif"

_Images = Mapping[str, Sequence[str]]  # the image names of each class, by its folder
_Skipped = tuple[str, ...]  # a sentence for each reason why files are not used


@dataclass(frozen=True)
class Listing:
    """The images of a data set: first all training images, then all test images."""

    source: PhotoSource
    names: list[str]
    labels: list[int]
    num_train: int
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()  # a sentence for each reason why files are not used

    def keep(self, rows: Sequence[int]) -> Listing:
        """Return the listing with some rows only."""
        names, labels = [self.names[row] for row in rows], [self.labels[row] for row in rows]
        num_train = sum(row < self.num_train for row in rows)
        return replace(self, names=names, labels=labels, num_train=num_train)


def list_images(
    source: FileSource,
    *,
    test_fraction: float = 0.2,
    test_folders: Sequence[str] = _TEST_FOLDERS,
) -> Listing:
    """Return the training and test images; InputError describes a layout that does not fit."""
    source, entries = _inside_wrappers(source)
    if not _is_split(entries, test_folders):
        images, skipped = _class_folders(source, entries)
        return _listing(source, *_held_out(source, images, test_fraction), skipped)
    part = _test_part(source, entries, test_folders, "hold out test images")
    train, skipped = _class_folders(source, entries, "train")
    test, more = _class_folders(source, entries, part)
    _check_same_classes(source, train, test, part)
    return _listing(source, train, test, skipped + more)


def find_classes(source: FileSource, part: Literal["train", "test"] = "train") -> Listing:
    """Return all images as training images, of one part if the folder has train and test parts."""
    source, entries = _inside_wrappers(source)
    folder, test = "", _test_folder(entries, _TEST_FOLDERS)
    if _is_split(entries):
        folder = "train"
        if part == "test":
            folder = _test_part(source, entries, _TEST_FOLDERS, "measure on the training images")
    elif part == "test" and test is not None and _holds_classes(entries, test):
        folder = test
    images, skipped = _class_folders(source, entries, folder)
    return _listing(source, images, dict.fromkeys(images, ()), skipped)


def has_test_classes(source: FileSource) -> bool:
    """Return whether there are folders of test classes beside those of training classes."""
    _, entries = _inside_wrappers(source)
    test = _test_folder(entries, _TEST_FOLDERS)
    return _is_split(entries) and test is not None and bool(_folders(_below(entries, test)))


def image_names(source: FileSource) -> list[str]:
    """Return the sorted names of all images, in any folder."""
    return [entry for entry in source.names() if _is_image(entry)]


def _test_part(
    source: FileSource, entries: Sequence[str], test_folders: Sequence[str], purpose: str
) -> str:
    test = _test_folder(entries, test_folders)
    if test is None:
        raise InputError(
            f"{source.path_of('')}: has a folder train but none called "
            f"{' or '.join(test_folders)}; to {purpose}, give {source.path_of('train')}"
        )
    return test


def _is_split(entries: Sequence[str], test_folders: Sequence[str] = _TEST_FOLDERS) -> bool:
    """Return whether `train` contains the classes and is not a class itself."""
    return "train" in _folders(entries) and any(
        _holds_classes(entries, folder) for folder in ("train", *test_folders)
    )


def _test_folder(entries: Sequence[str], test_folders: Sequence[str]) -> str | None:
    """Return the first test folder with subfolders, or else the first that exists."""
    present = [folder for folder in test_folders if folder in _folders(entries)]
    with_folders = [folder for folder in present if _folders(_below(entries, folder))]
    return next(iter([*with_folders, *present]), None)


def _inside_wrappers(source: FileSource) -> tuple[FileSource, list[str]]:
    """Return the folder that holds the classes, inside folders that only hold one folder."""
    entries = source.names()
    while (
        len(only := _folders(entries)) == 1
        and only[0] != "train"
        and _holds_classes(entries, only[0])
    ):
        source = source.within(only[0])
        entries = _below(entries, only[0])
    return source, entries


def _listing(source: FileSource, train: _Images, test: _Images, skipped: _Skipped) -> Listing:
    classes = tuple(sorted(train))
    rows = [
        (name, label)
        for part in (train, test)
        for label, folder in enumerate(classes)
        for name in part[folder]
    ]
    names, labels = [name for name, _ in rows], [label for _, label in rows]
    return Listing(source, names, labels, sum(map(len, train.values())), classes, skipped)


def _folders(entries: Sequence[str]) -> list[str]:
    return sorted({entry.split("/", 1)[0] for entry in entries if "/" in entry})


def _holds_classes(entries: Sequence[str], folder: str) -> bool:
    """Return whether a folder has subfolders and holds no images itself."""
    below = _below(entries, folder)
    return bool(_folders(below)) and not any("/" not in name and _is_image(name) for name in below)


def _is_image(entry: str) -> bool:
    return not entry.endswith("/") and is_image_name(entry)


def _below(entries: Sequence[str], folder: str) -> list[str]:
    prefix = f"{folder}/" if folder else ""
    return [
        entry[len(prefix) :] for entry in entries if entry.startswith(prefix) and entry != prefix
    ]


def _class_folders(
    source: FileSource, entries: Sequence[str], part: str = ""
) -> tuple[dict[str, list[str]], _Skipped]:
    """Return the images of each class below the folder `part`, and what else is there."""
    entries, prefix = _below(entries, part), f"{part}/" if part else ""
    images: dict[str, list[str]] = {folder: [] for folder in _folders(entries)}
    loose, others = 0, []
    for entry in entries:
        if _is_image(entry) and "/" in entry:
            images[entry.split("/", 1)[0]].append(f"{prefix}{entry}")
        elif _is_image(entry):
            loose += 1
        elif "/" in entry and not entry.endswith("/"):
            others.append(PurePosixPath(entry).suffix.lower())
    _check_classes(source, prefix, images)
    return images, _skipped(source.path_of(prefix), loose, others)


def _skipped(where: str, loose: int, others: Sequence[str]) -> _Skipped:
    """Say how many files are not used and why."""
    reasons = []
    if others:
        kinds = ", ".join(f"{n} {end or 'without any'}" for end, n in Counter(others).most_common())
        files = "1 file" if len(others) == 1 else f"{len(others)} files"
        reasons.append(f"{where}: skipped {files} without an image extension: {kinds}")
    if loose:
        files = "1 image that is" if loose == 1 else f"{loose} images that are"
        reasons.append(f"{where}: skipped {files} beside the class folders and not in one")
    return tuple(reasons)


def _check_classes(source: FileSource, prefix: str, images: _Images) -> None:
    if not images:
        raise InputError(
            f"{source.path_of(prefix)}: has no class folders; put the images of each class into "
            "a folder with its name"
        )
    for folder, names in images.items():
        if not names:
            raise InputError(
                f"{source.path_of(prefix + folder)}: an empty class folder; it needs image files "
                f"such as {_EXAMPLES}"
            )


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


def _check_same_classes(source: FileSource, train: _Images, test: _Images, folder: str) -> None:
    for present, absent, classes in (
        ("train", folder, sorted(set(train) - set(test))),
        (folder, "train", sorted(set(test) - set(train))),
    ):
        if classes:
            raise InputError(
                f"{source.path_of('')}: class {classes[0]!r} is in {present} but not in "
                f"{absent}; both need the same folders"
            )
