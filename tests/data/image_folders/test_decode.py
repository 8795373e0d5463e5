"""Formats, odd files and hostile files."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gradmix.data.image_folders.classes import has_own_test
from gradmix.data.image_folders.decode import ImageFiles, is_image_name, read_headers
from gradmix.data.image_folders.given import read_photos
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import FileSource
from gradmix.errors import CorruptFileError, DataNotFoundError, GradMixError, InputError

SHADES = np.random.default_rng(0).integers(0, 2, (8, 8), dtype=np.uint8) * 255  # black and white
PHOTO = Image.fromarray(np.repeat(SHADES[:, :, None], 3, axis=2))


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decode(path: Path, channels: int = 3, size: int = 8) -> np.ndarray:
    return read_photos([path], "X", shape=(channels, size, size))[0].numpy()


@pytest.mark.parametrize(
    ("extension", "kind"),
    [
        *((".gif", "GIF"), (".tif", "TIFF"), (".tiff", "TIFF"), (".png", "PNG"), (".bmp", "BMP")),
        *((".dib", "DIB"), (".ppm", "PPM"), (".pcx", "PCX"), (".sgi", "SGI"), (".tga", "TGA")),
        *((".jp2", "JPEG2000"), (".dds", "DDS"), (".qoi", "QOI"), (".webp", "WEBP")),
    ],
)
@pytest.mark.parametrize("in_zip", [False, True])
def test_formats_without_loss(tmp_path: Path, extension: str, kind: str, in_zip: bool) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    image = PHOTO.convert("P") if kind == "GIF" else PHOTO
    content = encode(image, kind, **options)
    if in_zip:
        path = tmp_path / "f.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"a/0{extension.upper()}", content)
    else:
        path = tmp_path
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / f"0{extension.upper()}").write_bytes(content)
    x, listing = read_folder(path, shape=(3, 8, 8))
    assert listing.skipped == ()
    assert (x[0].numpy() == SHADES).all()


@pytest.mark.parametrize("extension", [".jpg", ".jfif", ".mpo", ".avif"])
def test_formats_with_loss(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"0{extension}"
    Image.new("RGB", (8, 8), (200, 100, 50)).save(path, quality=95)
    assert np.abs(decode(path).mean(axis=(1, 2)) - (200, 100, 50)).max() < 3


@pytest.mark.parametrize(
    "name",
    [
        *("a.eps", "a.ps", "a.wmf", "a.emf", "a.pdf", "a.mpg", "a.h5", "a.grib", "a.svg"),
        ".jpg",
        "a",
    ],
)
def test_names_of_other_files(name: str) -> None:
    assert not is_image_name(name)


def test_the_content_decides_on_the_format(tmp_path: Path) -> None:
    for name in ("png.jpg", "png", "png.txt", "png.tga"):
        (tmp_path / name).write_bytes(encode(PHOTO, "PNG"))
        assert (decode(tmp_path / name) == SHADES).all()
    (tmp_path / "tga.jpg").write_bytes(encode(PHOTO, "TGA"))  # no signature: any bytes may be TGA
    with pytest.raises(CorruptFileError, match=r"tga\.jpg: not an image file"):
        decode(tmp_path / "tga.jpg")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP", "MPO"])
def test_the_first_image_of_several(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), (shade,) * 3) for shade in (0, 100, 200)]
    path = tmp_path / "frames.bin"
    frames[0].save(path, kind, save_all=True, append_images=frames[1:])
    assert decode(path).max() == 0


def table() -> list[Any]:
    """Name, file, channels and the expected pixels (C, H, W) at their own size, or the error."""
    rng = np.random.default_rng(1)
    deep = np.array([[0, 255, 256], [0x1234, 0xFF00, 0xFFFF]], dtype=np.uint16)
    grey, alpha = rng.integers(0, 256, (2, 3)).astype(np.uint8), np.full((2, 3), 7, np.uint8)
    grey_alpha = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    palette = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8), "P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    colours = np.array([[[10, 40, 70], [70, 40, 10]], [[20, 50, 80], [80, 50, 20]]])
    colours = np.concatenate([colours, [[[30, 60, 90], [90, 60, 30]]]])
    cmyk = Image.new("CMYK", (3, 2), (0, 255, 0, 0))  # magenta
    magenta = np.broadcast_to(np.array([255, 0, 255])[:, None, None], (3, 2, 3))
    return [
        ("16-bit PNG", encode(Image.fromarray(deep), "PNG"), 1, (deep >> 8)[None]),
        ("16-bit TIFF", encode(Image.fromarray(deep), "TIFF"), 1, (deep >> 8)[None]),
        ("grey and alpha", encode(grey_alpha, "PNG"), 1, grey[None]),
        ("grey as RGB", encode(grey_alpha, "PNG"), 3, np.repeat(grey[None], 3, axis=0)),
        ("palette", encode(palette, "PNG"), 3, colours),
        ("palette, one transparent", encode(palette, "PNG", transparency=1), 3, colours),
        ("palette, alpha", encode(palette, "PNG", transparency=b"\0\x80\xff"), 3, colours),
        ("CMYK", encode(cmyk, "TIFF"), 3, magenta),
        ("bilevel", encode(Image.new("1", (3, 2), 1), "PNG"), 1, np.full((1, 2, 3), 255)),
        ("1x1", encode(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG"), 3, [[[1]], [[2]], [[3]]]),
        ("floats", encode(Image.new("F", (3, 2)), "TIFF"), 3, "its pixels have mode 'F'"),
        ("32-bit integers", encode(Image.new("I", (3, 2)), "TIFF"), 1, "its pixels have mode 'I'"),
        ("no bytes", b"", 3, "not an image file"),
        ("text", b"no image", 3, "not an image file"),
        ("half a PNG", encode(PHOTO, "PNG")[:60], 3, "."),
        ("PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 3, "not an image"),
    ]


@pytest.mark.parametrize("case", table(), ids=lambda case: case[0])
def test_pixels_of_uncommon_images(tmp_path: Path, case: Any) -> None:
    _, content, channels, expected = case
    (tmp_path / "0.img").write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(CorruptFileError, match=rf"0\.img: .*{expected}"):
            decode(tmp_path / "0.img", channels)
        return
    expected = np.asarray(expected)
    files = ImageFiles(FileSource(tmp_path), ["0.img"], expected.shape)
    pixels = np.zeros((1, *files.shape), np.uint8)
    assert files.decode_all(pixels) == {}
    assert (pixels[0] == expected).all()
    headers, unreadable = read_headers(FileSource(tmp_path), ["0.img"])
    assert unreadable == {}
    assert (headers[0].height, headers[0].width) == expected.shape[1:]


def test_one_pixel_and_thin_images_are_resized_or_refused(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (9, 8, 7)).save(tmp_path / "dot.png")
    assert (decode(tmp_path / "dot.png") == np.array([9, 8, 7])[:, None, None]).all()
    Image.new("RGB", (30000, 2)).save(tmp_path / "line.png")
    with pytest.raises(CorruptFileError, match="30000x2, too long and thin for 8x8"):
        decode(tmp_path / "line.png")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_turned_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    Image.new("RGB", (6, 4)).save(tmp_path / "a" / "0.tif", exif=exif)
    height, width = (6, 4) if orientation > 4 else (4, 6)
    assert read_folder(tmp_path)[0].shape == (1, 3, height, width)


@pytest.mark.parametrize("kind", ["pipe", "broken link", "folder", "device"])
def test_what_is_not_a_file(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    PHOTO.save(folder / "0.png")
    odd = folder / "1.jpg"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nowhere")
    with pytest.raises(GradMixError, match=r"1\.jpg(: no such file| has no image files)"):
        decode(odd)
    if kind == "folder":
        assert len(read_folder(tmp_path)[1].labels) == 1
        return
    with pytest.raises(CorruptFileError, match=r"1\.jpg: not a file .* \(at least 1 of 2 images"):
        read_folder(tmp_path)
    said: list[str] = []
    assert len(read_folder(tmp_path, skip=said.append)[1].labels) == 1
    assert "skipped 1 of 2 images that cannot be read" in said[0]


@pytest.mark.parametrize("read", [read_folder, has_own_test, lambda path: decode(path)])
@pytest.mark.parametrize("path", ["a\0b", "~nobody-at-all/x"])
def test_what_is_not_a_path(read: Any, path: Any) -> None:
    with pytest.raises(InputError, match="is not a path"):
        read(path)


@pytest.mark.parametrize("read", [read_folder, has_own_test])
@pytest.mark.parametrize("path", [b"bytes", 7])
def test_what_is_not_the_path_of_a_folder(read: Any, path: Any) -> None:
    with pytest.raises(InputError, match="is not a path"):
        read(path)


def test_paths_that_cannot_exist(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), tmp_path / "none"):
        with pytest.raises(DataNotFoundError):
            read_folder(path)
        with pytest.raises(DataNotFoundError):
            decode(path)
        assert not has_own_test(path)
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(DataNotFoundError, match=r"pipe\.zip: no such file or folder"):
        read_folder(tmp_path / "pipe.zip")
    assert not has_own_test(tmp_path / "pipe.zip")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(CorruptFileError, match="a: the folder cannot be read: Permission denied"):
        read_folder(tmp_path)


def packed(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.jpg", content)
    return path


def test_a_zip_is_not_unpacked_to_see_that_it_holds_no_image(tmp_path: Path) -> None:
    path = packed(tmp_path / "f.zip", b"\1" * (100 << 20))
    tracemalloc.start()
    with pytest.raises(CorruptFileError, match=r"a/0\.jpg: not an image file"):
        read_folder(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(11, 10), (30, 10)])  # Pillow warns; Pillow raises
@pytest.mark.parametrize("in_zip", [False, True])
def test_bombs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], in_zip: bool
) -> None:
    content = encode(Image.new("L", size), "PNG")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(content)
    path = packed(tmp_path / "f.zip", content) if in_zip else tmp_path
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 110)
    if size == (11, 10):
        assert len(read_folder(path)[1].labels) == 1
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 109)
    for options in ({}, {"size": 4}, {"shape": (1, 4, 4)}):
        with pytest.raises(CorruptFileError, match=r"a/0\.jpg: .*pixels"):
            read_folder(path, **options)


def test_large_photos_are_decoded_at_a_smaller_size(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((1600, 1200), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "0.jpg", quality=95, exif=exif)
    upright = Image.open(tmp_path / "0.jpg").transpose(Image.Transpose.ROTATE_270)
    exact = upright.resize((64, 85), Image.Resampling.BILINEAR).crop((0, 10, 64, 74))
    found = decode(tmp_path / "0.jpg", size=64).astype(int)
    difference = np.abs(found - np.asarray(exact).transpose(2, 0, 1))
    assert 0 < difference.max() <= 8  # not 0: libjpeg has scaled it
    assert difference.mean() < 1
    whole = decode(tmp_path / "0.jpg", size=700).astype(int)  # too large for half the size
    resized = upright.resize((700, 933), Image.Resampling.BILINEAR).crop((0, 116, 700, 816))
    assert (whole == np.asarray(resized).transpose(2, 0, 1)).all()


FUZZED = [
    "PNG",
    "JPEG",
    "GIF",
    "TIFF",
    "WEBP",
    "BMP",
    "JPEG2000",
    "DDS",
    "SGI",
    "PCX",
    "QOI",
    "PSD",
]


@pytest.mark.filterwarnings("ignore")
@given(
    kind=st.sampled_from(FUZZED),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
    keep=st.floats(0, 1),
)
def test_damaged_files_raise_only_our_error(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    changes: list[tuple[float, int]],
    keep: float,
) -> None:
    content = bytearray(b"8BPS\0\1" if kind == "PSD" else encode(PHOTO, kind))
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    path = tmp_path_factory.mktemp("damaged") / "0.img"
    path.write_bytes(content[: int(keep * len(content)) + 1])
    files = ImageFiles(FileSource(path.parent), [path.name], (3, 8, 8), "bilinear")
    unreadable = files.decode_all()
    assert all(str(path) in message for message in unreadable.values())
