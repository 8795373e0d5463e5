"""Shards contain what a folder would, whichever layout and whatever damage they have."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradmix.data import from_folder
from gradmix.data.image_folders.classes import find_classes, has_own_test
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import _OPEN_SHARDS, FileSource, is_archive
from gradmix.data.stream import StreamedImages
from gradmix.errors import CorruptFileError, InputError


def png(shade: int, side: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, files: dict[str, bytes], **options: int) -> Path:
    """Write a tar file independently of `write_shards`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def names(path: Path) -> list[str]:
    return [name for name in FileSource(path).names() if not name.endswith("/")]


def test_folders_in_shards_are_classes(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "b.tar", {"dog/1.png": png(3)})
    write_tar(tmp_path / "s" / "a.tar", {"./cat/1.png": png(1), "cat/2.png": png(2)})
    (tmp_path / "s" / "README.txt").write_text("about the shards")
    source = FileSource(tmp_path / "s")
    assert source.in_shards
    assert source.names() == ["cat/", "cat/1.png", "cat/2.png", "dog/", "dog/1.png"]
    assert source.read("dog/1.png") == png(3)
    assert source.read("cat/2.png") == png(2)
    x, listing = read_folder(tmp_path / "s")
    assert isinstance(x, StreamedImages)
    assert listing.classes == ("cat", "dog")
    assert listing.labels == [0, 0, 1]
    assert [int(image[0, 0, 0]) for image in next(x.split(3))] == [1, 2, 3]


def test_webdataset_samples_have_the_class_of_their_label(tmp_path: Path) -> None:
    def about(**values: object) -> bytes:
        return json.dumps(values).encode()

    files = {
        **{"000.jpg": png(0), "000.cls": b"7\n", "000.json": about(label="overruled")},
        **{"001.txt": b"a caption", "001.png": png(1), "001.json": about(width=4, label="cat")},
        **{"x/002.png": png(2), "x/002.cls": b"7", "x/002.seg.png": png(9)},
        **{"003.png": png(3), "003.json": about(width=4)},
        **{"dog/004.png": png(4), "dog/004.json": about(**{"class": 12})},
        **{"dog/005.v2.png": png(5), "dog/005.json": b"[]"},
    }
    write_tar(tmp_path / "s" / "part-0.tar", files)
    assert names(tmp_path / "s") == [
        "003.json",  # no label: an ordinary file
        "003.png",
        "12/part-0/dog/004.png",
        "7/part-0/000.jpg",
        "7/part-0/x/002.png",
        "cat/part-0/001.png",
        "dog/005.json",
        "dog/005.v2.png",
    ]
    listing = find_classes(FileSource(tmp_path / "s"))
    assert listing.classes == ("12", "7", "cat", "dog")
    assert any("1 image outside the class folders" in text for text in listing.skipped)
    assert FileSource(tmp_path / "s").read("cat/part-0/001.png") == png(1)


def test_equal_keys_in_two_shards_are_two_samples(tmp_path: Path) -> None:
    for shard, shade in (("a", 1), ("b", 2)):
        write_tar(tmp_path / "s" / f"{shard}.tar", {"0.png": png(shade), "0.cls": b"cat"})
    assert names(tmp_path / "s") == ["cat/a/0.png", "cat/b/0.png"]


def test_equal_names_in_two_shards_are_refused(tmp_path: Path) -> None:
    for shard in "ab":
        write_tar(tmp_path / "s" / f"{shard}.tar", {"cat/0.png": png(1)})
    with pytest.raises(InputError, match=r"cat/0\.png is in .*a\.tar and in .*b\.tar"):
        FileSource(tmp_path / "s")


def test_parts_in_folders_and_in_names_are_the_same(tmp_path: Path) -> None:
    apart, joint = tmp_path / "apart", tmp_path / "joint"
    train, test = {"cat/1.png": png(1), "dog/2.png": png(2)}, {"cat/3.png": png(3)}
    test["dog/4.png"] = png(4)
    write_tar(apart / "train" / "0.tar", train)
    write_tar(apart / "test" / "0.tar", test)
    whole = {f"train/{k}": v for k, v in train.items()} | {f"test/{k}": v for k, v in test.items()}
    write_tar(joint / "0.tar", whole)
    for path in (apart, joint, joint / "0.tar"):
        assert has_own_test(path)
        data = from_folder(path)
        assert data.class_names == ("cat", "dog")
        assert [len(part.x) for part in (data.train, data.test)] == [2, 2]
        assert int(data.test.x.index_select(0, data.test.y[1:])[0, 0, 0, 0]) == 4


@pytest.mark.parametrize("beside", ["cat/1.png", "notes/a.txt"])
def test_a_tar_file_beside_folders_is_not_a_shard(tmp_path: Path, beside: str) -> None:
    write_tar(tmp_path / "backup.tar", {"dog/1.png": png(1)})
    (tmp_path / beside).parent.mkdir()
    (tmp_path / beside).write_bytes(png(2))
    assert not FileSource(tmp_path).in_shards
    assert "dog/1.png" not in names(tmp_path)


def test_an_archive_is_a_zip_file_or_a_tar_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    assert not is_archive(tmp_path / "a.png")
    assert is_archive(write_tar(tmp_path / "a.tar", {"cat/1.png": png(1)}))


def test_links_and_hidden_files_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name in ("cat/._1.png", "../out.png", "cat/../../out.png", "/cat/1.png"):
            about = tarfile.TarInfo(name)
            about.size = len(png(1))
            archive.addfile(about, io.BytesIO(png(1)))
        archive.addfile(link)
    assert names(path) == ["cat/1.png"]


def test_long_names_and_large_offsets_are_found(tmp_path: Path) -> None:
    files = {f"{'é' * 120}/{k}{'x' * 90}.png": png(k) for k in range(5)}
    for number, kind in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        path = write_tar(tmp_path / f"{number}.tar", files, format=kind)
        assert {name: FileSource(path).read(name) for name in names(path)} == files


@pytest.mark.parametrize("cut", [10, 600, 512 * 4 + 5])
def test_a_truncated_shard_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "s.tar", {f"cat/{k}.png": png(k) for k in range(3)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptFileError, match=r"s\.tar: not a readable tar file"):
        FileSource(path)


def test_a_damaged_header_is_no_early_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {f"cat/{k}.png": png(k) for k in range(3)})
    content = bytearray(path.read_bytes())
    content[1024 + 5] ^= 1  # in the name of the second file
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="damaged after byte"):
        FileSource(path)


@pytest.mark.parametrize("label", [b"", b"a/b", b"..", b"\xff", b"a\0b"])
def test_a_label_that_is_no_name_is_refused(tmp_path: Path, label: bytes) -> None:
    path = write_tar(tmp_path / "s.tar", {"0.png": png(1), "0.cls": label})
    with pytest.raises(CorruptFileError, match=r"s\.tar: "):
        FileSource(path)


def test_compressed_shards_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w:gz") as archive:
        archive.add(__file__, "cat/1.png")
    with pytest.raises(CorruptFileError, match="without compression"):
        FileSource(tmp_path / "s.tar")


def test_a_shard_that_became_shorter_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {f"cat/{k}.png": png(k) for k in range(9)})
    source = pickle.loads(pickle.dumps(FileSource(path)))
    path.write_bytes(path.read_bytes()[:1100])
    assert source.read("cat/0.png") == png(0)
    with pytest.raises(CorruptFileError, match=r"s\.tar: the file ends within cat/8\.png"):
        source.read("cat/8.png")


def test_a_changed_shard_is_indexed_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {"cat/1.png": png(1)})
    assert names(path) == ["cat/1.png"]
    write_tar(path, {"cat/2.png": png(1), "dog/1.png": png(2)})
    assert names(path) == ["cat/2.png", "dog/1.png"]


def test_a_replaced_shard_is_read_anew(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {"cat/1.png": png(1)})
    before = FileSource(path)
    assert before.read("cat/1.png") == png(1)
    write_tar(tmp_path / "new", {"cat/0.png": png(3), "cat/1.png": png(2)}).replace(path)
    assert FileSource(path).read("cat/1.png") == png(2)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are not listed here")
def test_few_shards_stay_open(tmp_path: Path) -> None:
    many = _OPEN_SHARDS + 40
    for k in range(many):
        write_tar(tmp_path / "s" / f"{k:03}.tar", {f"cat/{k}.png": png(k)})
    source, before = FileSource(tmp_path / "s"), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert [source.read(f"cat/{k}.png") for k in range(many)] == [png(k) for k in range(many)]
    assert len(os.listdir("/proc/self/fd")) <= before + _OPEN_SHARDS
