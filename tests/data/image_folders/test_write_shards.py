"""Shards of a folder are read like the folder, and appear completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix.data import dataset_version, from_folder, load_dataset
from gradmix.data.image_folders.write_shards import write_shards
from gradmix.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with 3 classes of 10 different photos."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    for number, photo in enumerate(pixels):
        path = tmp_path / "photos" / f"class {number % 3}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo).save(path)
    (tmp_path / "photos" / "class 0" / "notes.txt").write_text("not a photo")
    return tmp_path / "photos"


@pytest.mark.filterwarnings("ignore:.*without an image extension")
def test_the_data_set_of_the_shards_is_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    to = tmp_path / "new" / "shards"
    shards = write_shards(folder, to, size=4000, progress=lambda *done: seen.append(done))
    assert [shard.name for shard in shards] == sorted(os.listdir(to))
    assert len(shards) > 3
    assert shards[0].name == "000000.tar"
    assert seen == [(done, 30) for done in range(1, 31)]
    ours, theirs = load_dataset(f"folder:{to}"), from_folder(folder)
    assert not isinstance(ours.train.x, torch.Tensor)
    assert (ours.class_names, ours.mean, ours.std) == (
        theirs.class_names,
        theirs.mean,
        theirs.std,
    )
    for mine, its in ((ours.train, theirs.train), (ours.test, theirs.test)):
        assert torch.equal(mine.y, its.y)
        assert torch.equal(torch.cat(list(mine.x.split(7))), its.x)


def test_equal_folders_give_equal_shards(folder: Path, tmp_path: Path) -> None:
    first = write_shards(folder, tmp_path / "a", size=5000)
    os.utime(next(folder.glob("*/*.png")), (1, 1))
    second = write_shards(folder, tmp_path / "b", size=5000)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    (again,) = write_shards(tmp_path / "a", tmp_path / "c")  # shards can be written anew
    (whole,) = write_shards(folder, tmp_path / "d")
    assert again.read_bytes() == whole.read_bytes()


def test_the_version_changes_with_a_shard(folder: Path, tmp_path: Path) -> None:
    write_shards(folder, tmp_path / "s", size=5000)
    name = f"folder:{tmp_path / 's'}"
    before = dataset_version(name)
    assert dataset_version(name) == before
    os.utime(tmp_path / "s" / "000001.tar", (1, 1))
    assert dataset_version(name) != before


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for to, message in (
        (tmp_path / "s", "exists already; give a new folder"),
        (folder / "shards", "is inside"),
    ):
        with pytest.raises(InputError, match=message):
            write_shards(folder, to)
    with pytest.raises(InputError, match="size is 0"):
        write_shards(folder, tmp_path / "t", size=0)
    with pytest.raises(InputError, match="has no class folders"):
        write_shards(tmp_path / "s", tmp_path / "t")
    assert sorted(os.listdir(tmp_path)) == ["photos", "s"]


def test_a_stop_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))

    def stop(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(folder, tmp_path / "s", size=2000, progress=stop)
    assert sorted(os.listdir(tmp_path)) == before
    (tmp_path / ".s.partial").mkdir()  # as after a kill
    (tmp_path / ".s.partial" / "000000.tar").write_bytes(b"half")
    write_shards(folder, tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "s"])
