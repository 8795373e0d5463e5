from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradmix.data import load_dataset
from gradmix.data.imagenet import read_imagenet, read_tiny_imagenet
from gradmix.errors import CorruptFileError

WNIDS = ["n02", "n03", "n01"]  # not sorted, as in the official list
VAL = [("val_1.JPEG", "n01"), ("val_0.JPEG", "n02"), ("val_2.JPEG", "n01"), ("val_3.JPEG", "n03")]
SIZES = {"num_classes": 3, "train_per_class": 2, "num_test": 4}


def jpeg(seed: int, *, grey: bool = False, side: int = 64) -> bytes:
    shape = (side, side) if grey else (side, side, 3)
    noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG")
    return stream.getvalue()


def decoded(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def tree() -> dict[str, bytes]:
    files = {
        "wnids.txt": "\n".join(WNIDS).encode() + b"\n",
        "words.txt": b"n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn03\t\n",
        "val/val_annotations.txt": "".join(f"{f}\t{w}\t0\t32\t44\t62\n" for f, w in VAL).encode(),
    }
    for label, wnid in enumerate(WNIDS):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for k in range(2):
            grey = (wnid, k) == ("n03", 1)
            files[f"train/{wnid}/images/{wnid}_{k}.JPEG"] = jpeg(10 * label + k, grey=grey)
    files |= {f"val/images/val_{k}.JPEG": jpeg(100 + k) for k in range(4)}
    files["test/images/test_0.JPEG"] = jpeg(7)
    return files


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_pixels_labels_and_order(tmp_path: Path, kind: str) -> None:
    files = tree()
    make = unpacked if kind == "folder" else packed
    data = read_tiny_imagenet(make(tmp_path / "tiny", files), **SIZES)
    assert data.name == "tiny-imagenet"
    assert data.class_names == ("bullfrog", "n03", "goldfish")
    assert data.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test.y.tolist() == [2, 0, 2, 1]
    names = [f"train/{wnid}/images/{wnid}_{k}.JPEG" for wnid in WNIDS for k in range(2)]
    for row, name in enumerate(names):
        assert np.array_equal(data.train.x[row].numpy(), decoded(files[name]))
    for row, (name, _) in enumerate(VAL):
        assert np.array_equal(data.test.x[row].numpy(), decoded(files[f"val/images/{name}"]))
    assert (data.train.x[3, 0] == data.train.x[3, 2]).all()  # the grey one
    assert data.mean == pytest.approx((0.4802 * 255, 0.4480 * 255, 0.3975 * 255))
    assert data.std == pytest.approx((0.2770 * 255, 0.2691 * 255, 0.2821 * 255))


def test_without_words_the_wnids_are_names(tmp_path: Path) -> None:
    files = tree()
    del files["words.txt"]
    data = read_tiny_imagenet(unpacked(tmp_path, files), **SIZES)
    assert data.class_names == tuple(WNIDS)


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wnids.txt", b"n01\nn02\n", "wnids.txt: lists 2 classes, 2 of them different, .* list 3"),
        ("wnids.txt", b"n01\nn02\nn01\n", "lists 3 classes, 2 of them different"),
        ("wnids.txt", None, "wnids.txt: cannot be read"),
        ("train/n03/images/n03_1.JPEG", None, "train/n03/images: has 1 images and should have 2"),
        ("train/n03/images/n03_9.JPEG", jpeg(0), "train/n03/images: has 3 images"),
        ("train/n03/images/n03_1.JPEG", jpeg(1)[:900], r"n03_1.JPEG: .*\(1 of 6 images"),
        ("train/n03/images/n03_1.JPEG", b"", "n03_1.JPEG: not an image file"),
        (
            "train/n03/images/n03_1.JPEG",
            jpeg(1, side=32),
            "n03_1.JPEG: the image is 32x32; expected",
        ),
        ("val/images/val_2.JPEG", None, "val_2.JPEG: missing, by line 3 of .*val_annotations.txt"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn09\t0\n", "line 1 has class 'n09'"),
        ("val/val_annotations.txt", b"val_0.JPEG\n", "line 1 has class ''"),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn01\n" * 2,
            "val_0.JPEG: listed twice, by line 2",
        ),
        ("val/val_annotations.txt", b"val_0.JPEG\tn01\n", "lists 1 images and should list 4"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, kind: str, name: str, content: bytes | None, message: str
) -> None:
    files = tree()
    if content is None:
        del files[name]
    else:
        files[name] = content
    make = unpacked if kind == "folder" else packed
    path = make(tmp_path / "tiny", files)
    with pytest.raises(CorruptFileError, match=message):
        read_tiny_imagenet(path, **SIZES)


def test_damaged_zip(tmp_path: Path) -> None:
    path = packed(tmp_path / "tiny.zip", tree())
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(CorruptFileError, match=r"tiny.zip: not a readable zip"):
        read_tiny_imagenet(path, **SIZES)
    path.write_bytes(content.replace(b"n02\nn03\n", b"n02\nn04\n"))
    with pytest.raises(CorruptFileError, match=r"wnids.txt: cannot be read: Bad CRC"):
        read_tiny_imagenet(path, **SIZES)


def test_only_the_official_sizes_are_loaded_by_name(cache: Path) -> None:
    unpacked(cache / "tiny-imagenet" / "tiny-imagenet-200", tree())
    with pytest.raises(CorruptFileError, match="should list 200"):
        load_dataset("tiny-imagenet")


def test_imagenet_is_tested_on_val_beside_unlabelled_test_images(tmp_path: Path) -> None:
    names = [f"{part}/{wnid}/0.JPEG" for part in ("train", "val") for wnid in WNIDS]
    files = {name: jpeg(k) for k, name in enumerate([*names, "test/images/0.JPEG"])}
    data = read_imagenet(unpacked(tmp_path, files), num_classes=3, size=8)
    assert data.class_names == ("n01", "n02", "n03")
    assert [len(part.y) for part in (data.train, data.test)] == [3, 3]
