"""Which images belong to which class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gradmix.data import from_folder
from gradmix.data.image_folders.classes import find_classes, image_names, list_images
from gradmix.data.image_folders.source import FileSource
from gradmix.errors import InputError


def test_the_last_fifth_of_each_class_is_held_out(make: Any, tmp_path: Path) -> None:
    files = {f"many/{k:02}.png": make.png(k) for k in range(10)} | {
        f"few/{k}.png": make.png(50 + k) for k in range(2)
    }
    listing = list_images(FileSource(make.unpacked(tmp_path, files)))
    assert listing.classes == ("few", "many")
    assert listing.names[: listing.num_train] == [
        "few/0.png",
        *(f"many/{k:02}.png" for k in range(8)),
    ]
    assert listing.names[listing.num_train :] == ["few/1.png", "many/08.png", "many/09.png"]
    assert listing.labels == [0, *[1] * 8, 0, 1, 1]
    data = from_folder(tmp_path, test_fraction=0.5)
    assert data.test.y.tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["unpacked", "packed"])
@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ("cat/0 cat/1 cat/more/2", {"cat": 3}),
        ("photos/cat/0 photos/cat/1 photos/cat/more/2", {"cat": 3}),
        ("cat/2023/0 cat/2023/1 cat/2024/2 cat/2024/3", {"2023": 2, "2024": 2}),
        ("bus/0 bus/1 train/2 train/3", {"bus": 2, "train": 2}),
        ("train/0 train/1 train/more/2", {"train": 3}),
        ("bus/0 bus/1 train/2 train/3 test/4 test/5", {"bus": 2, "test": 2, "train": 2}),
    ],
)
def test_what_is_a_class(
    tmp_path: Path, make: Any, kind: str, names: str, classes: dict[str, int]
) -> None:
    tree = FileSource(
        getattr(make, kind)(tmp_path / "f", {f"{name}.png": b"" for name in names.split()})
    )
    found = find_classes(tree)
    assert Counter(found.classes[label] for label in found.labels) == classes
    assert found.num_train == len(found.names)
    assert list_images(tree).classes == tuple(classes)


@pytest.mark.parametrize(
    ("names", "images"),
    [
        ("train/a/0 test/a/1 val/a/2", ["test/a/1.png"]),
        ("train/a/0 val/a/2", ["val/a/2.png"]),
        ("train/a/0 test/1 val/a/2", ["val/a/2.png"]),  # of ImageNet: test has no labels
        ("train/a/0 train/loose test/a/1", ["test/a/1.png"]),
        ("test/a/1 val/a/2", ["test/a/1.png"]),
        ("test/a/1", ["test/a/1.png"]),
        ("a/0", ["a/0.png"]),
    ],
)
def test_the_part_to_test_on(make: Any, tmp_path: Path, names: str, images: list[str]) -> None:
    files = {f"{name}.png": b"" for name in names.split()}
    for tree in (make.unpacked(tmp_path / "f", files), make.packed(tmp_path / "f.zip", files)):
        found = find_classes(FileSource(tree), "test")
        assert (found.names, found.classes) == (images, ("a",))


def test_no_part_to_test_on(make: Any, tmp_path: Path) -> None:
    path = make.unpacked(tmp_path / "f", {"train/a/0.png": b"", "train/b/0.png": b""})
    with pytest.raises(InputError, match=r"none called test or val; .* give .*f/train"):
        find_classes(FileSource(path), "test")


def test_all_images_in_whatever_folders(make: Any, tmp_path: Path) -> None:
    names = ("0.png", "a/._0.png", "a/0.png", "a/b/1.JPG", "a/x.txt", ".thumbs/0.png")
    path = make.unpacked(tmp_path / "f", dict.fromkeys(names, b""))
    (path / "linked").symlink_to(make.unpacked(tmp_path / "g", {"2.png": b""}), True)
    assert image_names(FileSource(path)) == ["0.png", "a/0.png", "a/b/1.JPG", "linked/2.png"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/b/x.txt": b"", "test/a/1.png": b""}, "train/b: the class folder is empty"),
        ({"train/a/0.png": b""}, "has a folder train but none called test or val; .*give .*train"),
        ({"train/a/0.png": b"", "test/b/1.png": b""}, "class 'a' is in train but not in test"),
        (
            {"train/a/0.png": b"", "test/a/1.png": b"", "test/b/1.png": b""},
            "class 'b' is in test but not in train",
        ),
        ({"train/0.png": b"", "test/a/1.png": b""}, "train: has no class folders"),
        ({"0.png": b""}, "has no class folders"),
        ({"a/0.png": b"", "b/0.png": b""}, "a: has 1 image; without a test folder"),
    ],
)
def test_bad_layouts(make: Any, tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_folder(make.unpacked(tmp_path / "f", files))
    with pytest.raises(InputError, match=message):
        from_folder(make.packed(tmp_path / "f.zip", files))


@pytest.mark.parametrize("kind", ["unpacked", "packed"])
def test_files_that_are_not_used_are_counted(tmp_path: Path, make: Any, kind: str) -> None:
    names = ["a/0.png", "a/1.png", "b/2.gif", "b/3.jp2"]
    names += [
        "a/x.txt",
        "a/y.TXT",
        "b/below/z.txt",
        "b/film.mp4",
        "b/drawing.eps",
        "b/no_extension",
    ]
    names += ["loose.png", "README.md"]
    names += ["a/Thumbs.db", "a/.DS_Store", "b/desktop.ini", ".cache/x.txt", "__MACOSX/a/0.png"]
    path = getattr(make, kind)(tmp_path / "f", dict.fromkeys(names, b""))
    found = find_classes(FileSource(path))
    assert found.names == ["a/0.png", "a/1.png", "b/2.gif", "b/3.jp2"]
    assert (found.labels, found.classes) == ([0, 0, 1, 1], ("a", "b"))
    assert found.skipped == (
        f"{path}: skipped 6 files without an image extension: "
        "3 .txt, 1 .eps, 1 .mp4, 1 without any",
        f"{path}: skipped 1 image outside the class folders",
    )
    assert list_images(FileSource(path)).skipped == found.skipped


def test_both_parts_count_their_files(tmp_path: Path, make: Any) -> None:
    names = ["train/a/0.png", "train/a/x.txt", "test/a/1.png", "test/a/y.csv"]
    path = make.unpacked(tmp_path / "f", dict.fromkeys(names, b""))
    assert list_images(FileSource(path)).skipped == (
        f"{path}/train: skipped 1 file without an image extension: 1 .txt",
        f"{path}/test: skipped 1 file without an image extension: 1 .csv",
    )


@pytest.mark.parametrize("kind", ["unpacked", "packed"])
def test_folders_without_images_are_skipped(make: Any, tmp_path: Path, kind: str) -> None:
    names = ["a/0.png", "b/1.png", "cow/x.txt", "emu/x.txt"]
    path = getattr(make, kind)(tmp_path / "f", dict.fromkeys(names, b""))
    found = find_classes(FileSource(path))
    assert (found.names, found.classes) == (["a/0.png", "b/1.png"], ("a", "b"))
    assert found.skipped[0] == f"{path}: skipped 2 folders without images: cow, emu"


def test_an_empty_test_folder_of_a_class_with_training_images(make: Any, tmp_path: Path) -> None:
    make.unpacked(tmp_path, {"train/cow/0.png": b"", **make.two_classes()})
    (tmp_path / "test" / "cow").mkdir()
    with pytest.raises(InputError, match="class 'cow' is in train but not in test"):
        list_images(FileSource(tmp_path))


def test_only_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "cow").mkdir()
    with pytest.raises(InputError, match="cow: the class folder is empty; add image files"):
        find_classes(FileSource(tmp_path))


def test_all_real_photos_are_listed(real_photos: Path) -> None:
    listing = list_images(FileSource(real_photos))
    assert (len(listing.names), listing.num_train, len(listing.classes)) == (25000, 20000, 10)
