from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradmix.data import binary, load_dataset
from gradmix.data.binary import CIFAR_10_LAYOUT, CIFAR_100_LAYOUT, CifarLayout, read_cifar
from gradmix.errors import CorruptFileError

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SMALL_10 = replace(
    CIFAR_10_LAYOUT,
    train={f"data_batch_{number}.bin": 2 for number in range(1, 6)},
    test={"test_batch.bin": 10},
)
SMALL_100 = replace(CIFAR_100_LAYOUT, train={"train.bin": 3}, test={"test.bin": 1})


def pixels(seed: int) -> bytes:
    return bytes((seed + 7 * k) % 251 for k in range(3072))


def record(*labels: int, seed: int) -> bytes:
    return bytes(labels) + pixels(seed)


def ten() -> dict[str, bytes]:
    """A CIFAR-10 of one training and one test image per class; the seed is the row."""
    files = {
        f"data_batch_{number + 1}.bin": record(9 - 2 * number, seed=2 * number)
        + record(8 - 2 * number, seed=2 * number + 1)
        for number in range(5)
    }
    files["test_batch.bin"] = b"".join(record(k, seed=100 + k) for k in range(10))
    files["batches.meta.txt"] = ("\n".join(TEN) + "\n\n").encode()
    return files


def hundred() -> dict[str, bytes]:
    return {
        "train.bin": record(19, 99, seed=0) + record(4, 0, seed=1) + record(0, 50, seed=2),
        "test.bin": record(11, 19, seed=3),
        "fine_label_names.txt": "".join(f"fine {k}\n" for k in range(100)).encode(),
        "coarse_label_names.txt": b"not read\n",
    }


def unpacked(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def packed(path: Path, folder: str, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}" if folder else name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_cifar_10(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        path = unpacked(tmp_path / "anything", ten())
    else:
        files = dict(reversed(ten().items()))  # the order of the members does not count
        path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", files)
    data = read_cifar(path, SMALL_10)
    assert data.name == "cifar-10"
    assert data.class_names == tuple(TEN)
    assert data.train.x.shape == (10, 3, 32, 32)
    assert data.train.y.tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert data.test.y.tolist() == list(range(10))
    for row in range(10):
        assert bytes(data.train.x[row].flatten().tolist()) == pixels(row)
        assert bytes(data.test.x[row].flatten().tolist()) == pixels(100 + row)
    assert data.train.x[0, 1, 2, 3] == pixels(0)[1024 + 2 * 32 + 3]  # green, row 2, column 3
    assert data.mean == pytest.approx((0.4914 * 255, 0.4822 * 255, 0.4465 * 255))
    assert data.std == pytest.approx((0.2470 * 255, 0.2435 * 255, 0.2615 * 255))


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_cifar_100_has_fine_labels(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        path = unpacked(tmp_path / "anything", hundred())
    else:
        path = packed(tmp_path / "c.tar.gz", "cifar-100-binary", hundred())
    data = read_cifar(path, SMALL_100)
    assert data.name == "cifar-100"
    assert data.class_names == tuple(f"fine {k}" for k in range(100))
    assert data.train.y.tolist() == [99, 0, 50]
    assert data.test.y.tolist() == [19]
    assert bytes(data.train.x[2].flatten().tolist()) == pixels(2)
    assert data.mean[0] == pytest.approx(0.5071 * 255)


def refused(path: Path, layout: CifarLayout, *parts: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        read_cifar(path, layout)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "archive"])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_3.bin", lambda c: c[:-1], "truncated: it has 6145 bytes and should have 6146"),
        ("test_batch.bin", lambda c: c + b"x", "it has 30731 bytes and should have 30730"),
        ("data_batch_2.bin", lambda c: c[:3073] + b"\x0a" + c[3074:], "record 1 has label 10"),
        ("batches.meta.txt", lambda c: c[:40], "lists 7 classes and should list 10"),
        ("batches.meta.txt", lambda c: c * 1200, "classes and should list 10"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, kind: str, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    files = ten()
    files[name] = change(files[name])
    if kind == "folder":
        path = unpacked(tmp_path / "anything", files)
    else:
        path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", files)
    refused(path, SMALL_10, name, message)


@pytest.mark.parametrize(
    ("labels", "message"),
    [((20, 0), "record 1 has label 20; labels run from 0 to 19"), ((0, 100), "0 to 99")],
)
def test_bad_labels_of_cifar_100(tmp_path: Path, labels: tuple[int, int], message: str) -> None:
    files = hundred()
    files["train.bin"] = record(0, 0, seed=0) + record(*labels, seed=0) + record(0, 0, seed=0)
    refused(unpacked(tmp_path / "c", files), SMALL_100, "train.bin", message)


def test_missing_files_are_named(tmp_path: Path) -> None:
    files = ten()
    del files["data_batch_5.bin"]
    refused(unpacked(tmp_path / "c", files), SMALL_10, "lacks data_batch_5.bin")
    path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", files)
    refused(path, SMALL_10, "c.tar.gz", "lacks data_batch_5.bin")


@pytest.mark.parametrize("folder", ["", "..", "/cifar-10-batches-bin", "x/cifar-10-batches-bin"])
def test_members_count_by_exact_name_only(tmp_path: Path, folder: str) -> None:
    path = packed(tmp_path / "in" / "c.tar.gz", folder, ten())
    refused(path, SMALL_10, "lacks batches.meta.txt")
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["c.tar.gz"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", {})
    with tarfile.open(path, "w:gz") as archive:
        for name in ten():
            link = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(link)
    refused(path, SMALL_10, "lacks")


@pytest.mark.parametrize("cut", [0, 5, 100, 500])
def test_truncated_archive(tmp_path: Path, cut: int) -> None:
    path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", ten())
    path.write_bytes(path.read_bytes()[:cut])
    refused(path, SMALL_10, "c.tar.gz")


def test_flipped_bytes_in_the_archive(tmp_path: Path) -> None:
    path = packed(tmp_path / "c.tar.gz", "cifar-10-batches-bin", ten())
    content = bytearray(path.read_bytes())
    content[300:320] = bytes(20)
    path.write_bytes(content)
    refused(path, SMALL_10, "c.tar.gz")


def test_loaded_by_name(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(cache / "cifar-10" / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", ten())
    with pytest.raises(CorruptFileError, match="the content is wrong"):
        load_dataset("cifar-10")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    archive = replace(SMALL_10.archive, sha256=digest)
    monkeypatch.setattr(binary, "CIFAR_10_LAYOUT", replace(SMALL_10, archive=archive))
    assert len(load_dataset("cifar-10").train.y) == 10
    unpacked(tmp_path / "cifar-10" / "cifar-10-batches-bin", ten())
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path))
    assert torch.equal(load_dataset("cifar-10").train.y, torch.arange(9, -1, -1))


def test_only_the_official_sizes_are_loaded_by_name(cache: Path) -> None:
    unpacked(cache / "cifar-100", hundred())
    with pytest.raises(CorruptFileError, match=r"train.bin: truncated: .* have 153700000"):
        load_dataset("cifar-100")


def test_classes_of_different_size_are_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ten()
    files["test_batch.bin"] = record(1, seed=0) * 10
    unpacked(cache / "cifar-10", files)
    monkeypatch.setattr(binary, "CIFAR_10_LAYOUT", SMALL_10)
    with pytest.raises(CorruptFileError, match=r"classes have 0 to 10 test images, not the same"):
        load_dataset("cifar-10")
