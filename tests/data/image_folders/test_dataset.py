from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folder_cases import Files, encoded, packed, picture, png, two_classes, unpacked
from PIL import Image

from gradmix.data import StreamedImages, from_folder, load_dataset, split_into_tasks
from gradmix.data.image_folders.classes import list_images
from gradmix.data.image_folders.dataset import read_imagenet
from gradmix.data.image_folders.source import FileTree
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError, UnknownNameError


def pixels(image: Image.Image) -> np.ndarray:
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("prefix", ["", "photos/", "a/b/"])
@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test_folders(tmp_path: Path, kind: str, prefix: str, test: str) -> None:
    files = {f"{prefix}{k.replace('test', test)}": v for k, v in two_classes().items()}
    files["README.txt"] = b"beside"
    make = unpacked if kind == "folder" else packed
    data = from_folder(make(tmp_path / "mine.zip", files))
    assert data.name == ("mine.zip" if kind == "folder" else "mine")
    assert data.class_names == ("cat", "dog")
    assert data.train.y.tolist() == [0, 0, 0, 1, 1]
    assert data.test.y.tolist() == [0, 1]
    assert data.skipped == ()
    for row, seed in enumerate([10, 11, 12, 0, 1]):
        assert np.array_equal(data.train.x[row].numpy(), pixels(picture(seed)))
    assert np.array_equal(data.test.x[0].numpy(), pixels(picture(21)))
    assert data.mean == pytest.approx(data.train.x.double().mean(dim=(0, 2, 3)).tolist())
    assert data.std == pytest.approx(
        data.train.x.double().std(dim=(0, 2, 3), correction=0).tolist()
    )


def test_what_counts_as_an_image(tmp_path: Path) -> None:
    files = {
        "a/1.jpg": encoded(picture(1), "JPEG"),
        "a/2.JPEG": encoded(picture(2), "JPEG"),
        "a/3.png": png(3),
        "a/below/4.bmp": encoded(picture(4), "BMP"),
        "a/5.webp": encoded(picture(5), "WEBP", lossless=True),
        "a/6.ppm": encoded(picture(6), "PPM"),
        **{f"b/{k}.PNG": png(10 + k) for k in range(2)},
        "a/.hidden.png": b"",
        "a/notes.txt": b"",
        ".git/x.png": b"",
        "__MACOSX/a/1.jpg": b"",
    }
    listing = list_images(FileTree(unpacked(tmp_path / "f", files)))
    assert list_images(FileTree(packed(tmp_path / "f.zip", files))).names == listing.names
    assert [name for name, k in zip(listing.names, listing.labels, strict=True) if k == 0] == [
        *("a/1.jpg", "a/2.JPEG", "a/3.png", "a/5.webp", "a/6.ppm", "a/below/4.bmp"),
    ]
    data = from_folder(tmp_path / "f")
    for row, seed in ((2, 3), (3, 5), (4, 6)):
        assert np.array_equal(data.train.x[row].numpy(), pixels(picture(seed)))
    assert np.array_equal(data.test.x[0].numpy(), pixels(picture(4)))


def one_each(first: bytes, second: bytes, third: bytes | None = None) -> Files:
    third = second if third is None else third
    return {"train/a/0.png": first, "train/b/1.png": second, "test/a/2.png": third} | {
        "test/b/3.png": third
    }


def test_grey_only_if_all_are(tmp_path: Path) -> None:
    grey, colour = picture(1, mode="L"), picture(2)
    alone = from_folder(unpacked(tmp_path / "1", one_each(encoded(grey), encoded(grey))))
    assert alone.train.x.shape == (2, 1, 4, 4)
    assert len(alone.mean) == 1
    mixed_path = unpacked(tmp_path / "2", one_each(encoded(grey), encoded(colour)))
    mixed = from_folder(mixed_path)
    assert mixed.train.x.shape == (2, 3, 4, 4)
    assert np.array_equal(mixed.train.x[0].numpy(), np.repeat(pixels(grey), 3, axis=0))
    told = from_folder(mixed_path, channels=1)
    assert np.array_equal(told.train.x[1].numpy(), pixels(colour.convert("L")))
    assert from_folder(tmp_path / "1", channels=3).train.x.shape == (2, 3, 4, 4)


def test_uncommon_modes(tmp_path: Path) -> None:
    deep = np.array([[0, 256], [0x1234, 0xFFFF]], dtype=np.uint16)
    palette = picture(1, 2, 2).quantize(4)
    palette.info["transparency"] = bytes([0, 255, 255, 255])
    files = one_each(
        encoded(Image.fromarray(deep)),
        encoded(palette, transparency=bytes([0, 255, 255, 255])),
        encoded(picture(3, 2, 2, mode="CMYK"), "JPEG"),
    )
    files["train/a/1.png"] = png(4, 2, 2, mode="RGBA")
    data = from_folder(unpacked(tmp_path, files))
    assert data.train.x[0].tolist() == [[[0, 1], [0x12, 0xFF]]] * 3
    assert np.array_equal(data.train.x[1].numpy(), pixels(picture(4, 2, 2, mode="RGBA"))[:3])
    assert np.array_equal(data.train.x[2].numpy(), pixels(palette.convert("RGBA"))[:3])


def test_sizes_must_be_alike_or_given(tmp_path: Path) -> None:
    path = unpacked(tmp_path, one_each(png(1, 6, 4), png(2, 4, 8)))
    with pytest.raises(InputError) as caught:
        from_folder(path)
    for part in ("train/a/0.png is 6x4", "train/b/1.png is 4x8", "give a size"):
        assert part in str(caught.value)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_shorter_side_then_centre(tmp_path: Path, resample: str) -> None:
    wide, tall = picture(1, 60, 40), picture(2, 20, 30)
    path = unpacked(tmp_path, one_each(encoded(wide), encoded(tall)))
    data = from_folder(path, size=10, resample=resample)
    how = Image.Resampling[resample.upper()]
    first = wide.resize((15, 10), how).crop((2, 0, 12, 10))
    second = tall.resize((10, 15), how).crop((0, 2, 10, 12))
    assert np.array_equal(data.train.x[0].numpy(), pixels(first))
    assert np.array_equal(data.train.x[1].numpy(), pixels(second))


def test_antialiased(tmp_path: Path) -> None:
    board = Image.fromarray((np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8))
    path = unpacked(tmp_path, one_each(encoded(board), encoded(board)))
    small = from_folder(path, size=8).train.x[:, :, 1:-1, 1:-1]
    assert 120 <= int(small.min()) <= int(small.max()) <= 135  # grey, not black or white


def damaged() -> Files:
    photo = encoded(picture(3, 32, 32), "JPEG")
    files = {f"train/{c}/{k}.jpg": photo for c in "ab" for k in range(3)}
    files |= {f"test/{c}/{k}.jpg": photo for c in "ab" for k in range(2)}
    files["train/b/1.jpg"] = photo[: len(photo) // 2]
    files["train/b/2.jpg"] = b"no image"
    files["test/a/0.jpg"] = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n"
    return files


@pytest.mark.parametrize("options", [{}, {"size": 16}, {"size": 16, "channels": 3}])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_corrupt_images_are_refused(tmp_path: Path, options: dict[str, int], kind: str) -> None:
    make = unpacked if kind == "folder" else packed
    path = make(tmp_path / "f", damaged())
    count = "3" if "channels" in options else "at least 3"  # else only headers are read by then
    with pytest.raises(CorruptFileError, match=rf"\({count} of 10 .*corrupt='skip'") as caught:
        from_folder(path, **options)  # type: ignore[arg-type]
    assert str(path / "train" / "b") in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"size": 16, "channels": 3}])
def test_corrupt_images_are_skipped(tmp_path: Path, options: dict[str, Any], stream: bool) -> None:
    path = unpacked(tmp_path / "f", damaged())
    with pytest.warns(UserWarning, match="3 images cannot be read and are left out; the first is"):
        data = from_folder(path, corrupt="skip", stream=stream, **options)
    assert data.train.y.tolist() == [0, 0, 0, 1]
    assert data.test.y.tolist() == [0, 1, 1]
    assert len(data.train.x) == 4
    assert len(data.skipped) == 3
    for name in ("train/b/1.jpg", "train/b/2.jpg", "test/a/0.jpg"):
        assert sum(str(path / name) in message for message in data.skipped) == 1
    batch = data.train.x.index_select(0, torch.arange(4))
    assert all(torch.equal(batch[0], other) for other in batch)
    assert int(batch.max()) > 0


def test_a_class_of_corrupt_images_only(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "f", one_each(png(1), b"", png(2)))
    with pytest.raises(InputError, match="no readable training image of class 'b' is left"):
        from_folder(path, corrupt="skip")
    with pytest.raises(CorruptFileError, match="no other image can be read either"):
        from_folder(unpacked(tmp_path / "g", one_each(b"", b"")), corrupt="skip")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": 0}, InputError, "size is 0"),
        ({"size": 2.5}, InputError, "size is 2.5"),
        ({"size": 10**8}, InputError, "size is 100000000; .* from 1 to 16384"),
        ({"channels": 4}, InputError, "channels is 4; it must be 1 or 3"),
        ({"resample": "nearest"}, UnknownNameError, "unknown resampling 'nearest'"),
        ({"corrupt": "skipp"}, UnknownNameError, "did you mean 'skip'"),
        ({"test_fraction": 1}, InputError, "test_fraction is 1"),
        ({"mean": [1.0]}, InputError, "mean is .* it must be 3 finite"),
    ],
)
def test_bad_options(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = unpacked(tmp_path, two_classes())
    with pytest.raises(error, match=message):
        from_folder(path, **options)


def test_no_such_folder_and_no_zip(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="nowhere: no such folder or zip"):
        from_folder(tmp_path / "nowhere")
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(CorruptFileError, match=r"text.zip: not a readable zip"):
        from_folder(tmp_path / "text.zip")


def test_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked(tmp_path / "photos", two_classes())
    monkeypatch.chdir(tmp_path)
    assert load_dataset("folder:photos").train.x.shape == (5, 3, 4, 4)
    assert load_dataset(f"folder:{tmp_path}/photos@8").train.x.shape == (5, 3, 8, 8)
    unpacked(tmp_path / "photos@8", one_each(png(1), png(2)))
    assert load_dataset("folder:photos@8").train.x.shape == (2, 3, 4, 4)
    assert load_dataset("folder:photos@8@2").train.x.shape == (2, 3, 2, 2)
    with pytest.raises(InputError, match="lacks a path"):
        load_dataset("folder:")
    with pytest.raises(UnknownNameError, match="folder:PATH"):
        load_dataset("photos")


def test_streamed_is_the_same(tmp_path: Path) -> None:
    path = unpacked(tmp_path, two_classes())
    whole, lazy = (from_folder(path, size=3, stream=stream) for stream in (False, True))
    assert isinstance(lazy.train.x, StreamedImages)
    assert (lazy.mean, lazy.std) == (whole.mean, whole.std)
    for part in ("train", "test"):
        x, y = getattr(lazy, part)
        assert torch.equal(x.index_select(0, torch.arange(len(x))), getattr(whole, part).x)
        assert torch.equal(y, getattr(whole, part).y)
    tasks = [split_into_tasks(data.hold_out(1), 1, [1, 0]).tasks for data in (whole, lazy)]
    for one, other in zip(*tasks, strict=True):
        assert torch.equal(one.train.y, other.train.y)
        rows = torch.arange(len(one.train.y))
        assert torch.equal(one.train.x, other.train.x.index_select(0, rows))


def test_large_folders_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpacked(tmp_path, two_classes())
    monkeypatch.setattr("gradmix.data.image_folders.dataset._IN_MEMORY", 7 * 48 - 1)
    assert isinstance(from_folder(path).train.x, StreamedImages)
    monkeypatch.setattr("gradmix.data.image_folders.dataset._IN_MEMORY", 7 * 48)
    assert isinstance(from_folder(path).train.x, torch.Tensor)


def test_imagenet(cache: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"image-net.org, where you must register"):
        load_dataset("imagenet")
    files = {
        f"{part}/{wnid}/{wnid}_{k}.JPEG": encoded(picture(k, 30, 20), "JPEG")
        for part, count in (("train", 3), ("val", 1))
        for wnid in ("n02", "n01")
        for k in range(count)
    }
    files["test/ILSVRC2012_test_00000001.JPEG"] = b""  # without labels
    folder = unpacked(cache / "imagenet", files)
    with pytest.raises(InputError, match=r"has 2 classes, and ImageNet 1000; .*folder:.*@224"):
        load_dataset("imagenet")
    data = read_imagenet(folder, num_classes=2)
    assert data.class_names == ("n01", "n02")
    assert data.train.x.shape == (6, 3, 224, 224)
    assert data.test.y.tolist() == [0, 1]
    assert data.mean == pytest.approx((0.485 * 255, 0.456 * 255, 0.406 * 255))
    assert data.train.x.index_select(0, torch.tensor([5])).shape == (1, 3, 224, 224)


def test_real_photos(real_photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(real_photos) as archive:
        names = [
            f"cifar10-jpeg/{part}/{name}/{k:04}.jpg"
            for part, count in (("train", 200), ("test", 50))
            for name in ("ship", "airplane")
            for k in range(count)
        ]
        path = packed(tmp_path / "some.zip", {name: archive.read(name) for name in names})
    data = load_dataset(f"folder:{path}")
    assert data.class_names == ("airplane", "ship")
    assert data.train.x.shape == (400, 3, 32, 32)
    assert data.test.y.bincount().tolist() == [50, 50]
    assert all(100 < value < 160 for value in data.mean)  # daylight, and bluer than green or red
    assert data.mean[2] > data.mean[0]
    assert all(40 < value < 80 for value in data.std)
