from __future__ import annotations

import gc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix.data import StreamedImages, from_folder, load_dataset, split_into_tasks
from gradmix.data.image_folders.classes import list_images
from gradmix.data.image_folders.source import FileSource
from gradmix.data.imagenet import read_imagenet
from gradmix.errors import (
    CorruptFileError,
    DataNotFoundError,
    DataWarning,
    InputError,
    UnknownNameError,
)


def pixels(image: Image.Image) -> np.ndarray:
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("prefix", ["", "photos/", "a/b/"])
@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test_folders(
    make: Any, tmp_path: Path, kind: str, prefix: str, test: str
) -> None:
    files = {f"{prefix}{k.replace('test', test)}": v for k, v in make.two_classes().items()}
    files["README.txt"] = b"beside"
    write = make.unpacked if kind == "folder" else make.packed
    data = from_folder(write(tmp_path / "mine.zip", files))
    assert data.name == ("mine.zip" if kind == "folder" else "mine")
    assert data.class_names == ("cat", "dog")
    assert data.train.y.tolist() == [0, 0, 0, 1, 1]
    assert data.test.y.tolist() == [0, 1]
    assert data.skipped == ()
    for row, seed in enumerate([10, 11, 12, 0, 1]):
        assert np.array_equal(data.train.x[row].numpy(), pixels(make.picture(seed)))
    assert np.array_equal(data.test.x[0].numpy(), pixels(make.picture(21)))
    assert data.mean == pytest.approx(data.train.x.double().mean(dim=(0, 2, 3)).tolist())
    assert data.std == pytest.approx(
        data.train.x.double().std(dim=(0, 2, 3), correction=0).tolist()
    )


def test_what_counts_as_an_image(make: Any, tmp_path: Path) -> None:
    files = {
        "a/1.jpg": make.encoded(make.picture(1), "JPEG"),
        "a/2.JPEG": make.encoded(make.picture(2), "JPEG"),
        "a/3.png": make.png(3),
        "a/below/4.bmp": make.encoded(make.picture(4), "BMP"),
        "a/5.webp": make.encoded(make.picture(5), "WEBP", lossless=True),
        "a/6.ppm": make.encoded(make.picture(6), "PPM"),
        **{f"b/{k}.PNG": make.png(10 + k) for k in range(2)},
        "a/.hidden.png": b"",
        "a/notes.txt": b"",
        ".git/x.png": b"",
        "__MACOSX/a/1.jpg": b"",
    }
    listing = list_images(FileSource(make.unpacked(tmp_path / "f", files)))
    assert list_images(FileSource(make.packed(tmp_path / "f.zip", files))).names == listing.names
    assert [name for name, k in zip(listing.names, listing.labels, strict=True) if k == 0] == [
        *("a/1.jpg", "a/2.JPEG", "a/3.png", "a/5.webp", "a/6.ppm", "a/below/4.bmp"),
    ]
    with pytest.warns(DataWarning, match=r"f: skipped 1 file without an image extension: 1 \.txt"):
        data = from_folder(tmp_path / "f")
    (reason,) = data.skipped
    assert reason.endswith("1 .txt")
    for row, seed in ((2, 3), (3, 5), (4, 6)):
        assert np.array_equal(data.train.x[row].numpy(), pixels(make.picture(seed)))
    assert np.array_equal(data.test.x[0].numpy(), pixels(make.picture(4)))


def test_grey_only_if_all_are(make: Any, tmp_path: Path) -> None:
    grey, colour = make.picture(1, mode="L"), make.picture(2)
    alone = from_folder(
        make.unpacked(tmp_path / "1", make.one_each(make.encoded(grey), make.encoded(grey)))
    )
    assert alone.train.x.shape == (2, 1, 4, 4)
    assert len(alone.mean) == 1
    mixed_path = make.unpacked(
        tmp_path / "2", make.one_each(make.encoded(grey), make.encoded(colour))
    )
    mixed = from_folder(mixed_path)
    assert mixed.train.x.shape == (2, 3, 4, 4)
    assert np.array_equal(mixed.train.x[0].numpy(), np.repeat(pixels(grey), 3, axis=0))
    told = from_folder(mixed_path, channels=1)
    assert np.array_equal(told.train.x[1].numpy(), pixels(colour.convert("L")))
    assert from_folder(tmp_path / "1", channels=3).train.x.shape == (2, 3, 4, 4)


def test_uncommon_modes(make: Any, tmp_path: Path) -> None:
    deep = np.array([[0, 256], [0x1234, 0xFFFF]], dtype=np.uint16)
    palette = make.picture(1, 2, 2).quantize(4)
    palette.info["transparency"] = bytes([0, 255, 255, 255])
    files = make.one_each(
        make.encoded(Image.fromarray(deep)),
        make.encoded(palette, transparency=bytes([0, 255, 255, 255])),
        make.encoded(make.picture(3, 2, 2, mode="CMYK"), "JPEG"),
    )
    files["train/a/1.png"] = make.png(4, 2, 2, mode="RGBA")
    data = from_folder(make.unpacked(tmp_path, files))
    assert data.train.x[0].tolist() == [[[0, 1], [0x12, 0xFF]]] * 3
    assert np.array_equal(data.train.x[1].numpy(), pixels(make.picture(4, 2, 2, mode="RGBA"))[:3])
    assert np.array_equal(data.train.x[2].numpy(), pixels(palette.convert("RGBA"))[:3])


def test_sizes_must_be_alike_or_given(make: Any, tmp_path: Path) -> None:
    path = make.unpacked(tmp_path, make.one_each(make.png(1, 6, 4), make.png(2, 4, 8)))
    with pytest.raises(InputError) as caught:
        from_folder(path)
    for part in ("train/a/0.png is 6x4", "train/b/1.png is 4x8", "give a size"):
        assert part in str(caught.value)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_shorter_side_then_centre(make: Any, tmp_path: Path, resample: str) -> None:
    wide, tall = make.picture(1, 60, 40), make.picture(2, 20, 30)
    path = make.unpacked(tmp_path, make.one_each(make.encoded(wide), make.encoded(tall)))
    data = from_folder(path, size=10, resample=resample)
    how = Image.Resampling[resample.upper()]
    first = wide.resize((15, 10), how).crop((2, 0, 12, 10))
    second = tall.resize((10, 15), how).crop((0, 2, 10, 12))
    assert np.array_equal(data.train.x[0].numpy(), pixels(first))
    assert np.array_equal(data.train.x[1].numpy(), pixels(second))


def test_antialiased(make: Any, tmp_path: Path) -> None:
    board = Image.fromarray((np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8))
    path = make.unpacked(tmp_path, make.one_each(make.encoded(board), make.encoded(board)))
    small = from_folder(path, size=8).train.x[:, :, 1:-1, 1:-1]
    assert 120 <= int(small.min()) <= int(small.max()) <= 135  # grey, not black or white


@pytest.mark.parametrize("options", [{}, {"size": 16}, {"size": 16, "channels": 3}])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_corrupt_images_are_refused(
    make: Any, tmp_path: Path, options: dict[str, int], kind: str
) -> None:
    write = make.unpacked if kind == "folder" else make.packed
    path = write(tmp_path / "f", make.damaged())
    count = "3" if "channels" in options else "at least 3"  # else only headers are read by then
    with pytest.raises(CorruptFileError, match=rf"\({count} of 10 .*corrupt='skip'") as caught:
        from_folder(path, **options)  # type: ignore[arg-type]
    assert str(path / "train" / "b") in str(caught.value)


def test_a_zip_file_is_closed_with_its_source(make: Any, tmp_path: Path) -> None:
    source: Any = FileSource(make.packed(tmp_path / "f.zip", make.two_classes()))
    opened, source.itself = source._open_zip(), source  # a cycle, as a traceback makes one
    assert opened.fp is not None
    del source
    gc.collect()
    assert opened.fp is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"size": 16, "channels": 3}])
def test_corrupt_images_are_skipped(
    make: Any, tmp_path: Path, options: dict[str, Any], stream: bool
) -> None:
    path = make.unpacked(tmp_path / "f", make.damaged())
    with pytest.warns(DataWarning, match="skipped 3 of \\d+ images that cannot be read:\n  "):
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


def test_a_class_of_corrupt_images_only(make: Any, tmp_path: Path) -> None:
    path = make.unpacked(tmp_path / "f", make.one_each(make.png(1), b"", make.png(2)))
    with pytest.raises(InputError, match="no training image of class 'b' can be read"):
        from_folder(path, corrupt="skip")
    with pytest.raises(CorruptFileError, match=r"\(4 of 4 images cannot be read\)"):
        from_folder(make.unpacked(tmp_path / "g", make.one_each(b"", b"")), corrupt="skip")


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
    make: Any, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = make.unpacked(tmp_path, make.two_classes())
    with pytest.raises(error, match=message):
        from_folder(path, **options)


def test_no_such_folder_and_no_zip(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="nowhere: no such file or folder"):
        from_folder(tmp_path / "nowhere")
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(CorruptFileError, match=r"text.zip: not a readable zip"):
        from_folder(tmp_path / "text.zip")


def test_loaded_by_name(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.unpacked(tmp_path / "photos", make.two_classes())
    monkeypatch.chdir(tmp_path)
    assert load_dataset("folder:photos").train.x.shape == (5, 3, 4, 4)
    assert load_dataset(f"folder:{tmp_path}/photos@8").train.x.shape == (5, 3, 8, 8)
    make.unpacked(tmp_path / "photos@8", make.one_each(make.png(1), make.png(2)))
    assert load_dataset("folder:photos@8").train.x.shape == (2, 3, 4, 4)
    assert load_dataset("folder:photos@8@2").train.x.shape == (2, 3, 2, 2)
    with pytest.raises(InputError, match="lacks a path"):
        load_dataset("folder:")
    with pytest.raises(UnknownNameError, match="folder:PATH"):
        load_dataset("photos")


def test_streamed_is_the_same(make: Any, tmp_path: Path) -> None:
    path = make.unpacked(tmp_path, make.two_classes())
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


def test_large_folders_are_streamed(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make.unpacked(tmp_path, make.two_classes())
    monkeypatch.setattr("gradmix.data.image_folders.read.IN_MEMORY", 7 * 48 - 1)
    assert isinstance(from_folder(path).train.x, StreamedImages)
    monkeypatch.setattr("gradmix.data.image_folders.read.IN_MEMORY", 7 * 48)
    assert isinstance(from_folder(path).train.x, torch.Tensor)


def test_imagenet(make: Any, cache: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"register at image-net.org"):
        load_dataset("imagenet")
    files = {
        f"{part}/{wnid}/{wnid}_{k}.JPEG": make.encoded(make.picture(k, 30, 20), "JPEG")
        for part, count in (("train", 3), ("val", 1))
        for wnid in ("n02", "n01")
        for k in range(count)
    }
    files["test/ILSVRC2012_test_00000001.JPEG"] = b""  # without labels
    folder = make.unpacked(cache / "imagenet", files)
    with pytest.raises(InputError, match=r"has 2 classes, but ImageNet has 1000; .*folder:.*@224"):
        load_dataset("imagenet")
    data = read_imagenet(folder, num_classes=2)
    assert data.class_names == ("n01", "n02")
    assert data.train.x.shape == (6, 3, 224, 224)
    assert data.test.y.tolist() == [0, 1]
    assert data.mean == pytest.approx((0.485 * 255, 0.456 * 255, 0.406 * 255))
    assert data.train.x.index_select(0, torch.tensor([5])).shape == (1, 3, 224, 224)


def test_real_photos(make: Any, real_photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(real_photos) as archive:
        names = [
            f"cifar10-jpeg/{part}/{name}/{k:04}.jpg"
            for part, count in (("train", 200), ("test", 50))
            for name in ("ship", "airplane")
            for k in range(count)
        ]
        path = make.packed(tmp_path / "some.zip", {name: archive.read(name) for name in names})
    data = load_dataset(f"folder:{path}")
    assert data.class_names == ("airplane", "ship")
    assert data.train.x.shape == (400, 3, 32, 32)
    assert data.test.y.bincount().tolist() == [50, 50]
    assert all(100 < value < 160 for value in data.mean)  # daylight, and bluer than green or red
    assert data.mean[2] > data.mean[0]
    assert all(40 < value < 80 for value in data.std)
