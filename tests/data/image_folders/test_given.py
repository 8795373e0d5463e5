"""Photos given as objects: the pixels of every kind equal those of a file."""

import io
import tempfile

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix.data.image_folders.given import is_photo_list, read_photos
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (37, 23, 3)).astype(np.uint8)  # portrait
SHAPE = (3, 16, 16)


def png(array=PIXELS):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def read(*items, shape=SHAPE, **options):
    return read_photos(items, "X", shape=shape, **options)


def test_every_kind_of_photo_gives_the_same_pixels(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(png())
    alpha = np.dstack([PIXELS, np.full((37, 23), 7, np.uint8)])
    with path.open("rb") as file, tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(png())
        x = read(
            *(path, str(path), png(), bytearray(png()), memoryview(png()), io.BytesIO(png())),
            *(file, spooled, Image.open(path), Image.fromarray(PIXELS), PIXELS),
            *(PIXELS.transpose(2, 0, 1), torch.from_numpy(PIXELS), PIXELS / 255, alpha),
            *(
                PIXELS.astype(int),
                torch.from_numpy(PIXELS).permute(2, 0, 1),
                Image.fromarray(alpha),
            ),
        )
    assert x.shape == (18, *SHAPE)
    for other in x:
        assert torch.equal(other, x[0])


def test_a_file_keeps_its_position():
    file = io.BytesIO(png())
    file.seek(6)  # read from its start, as Pillow does
    assert torch.equal(read(file), read(png()))
    assert file.tell() == 6


def test_a_jpeg_in_a_file_and_in_memory_is_decoded_alike(tmp_path):
    large = Image.fromarray(PIXELS).resize((460, 740))
    large.save(tmp_path / "photo.jpg", quality=95)
    x = read(tmp_path / "photo.jpg", (tmp_path / "photo.jpg").read_bytes())
    assert torch.equal(x[0], x[1])
    opened = read(Image.open(tmp_path / "photo.jpg"))  # which is decoded at its full size
    assert 0 < (opened[0].float() - x[0].float()).abs().mean() < 5


def test_grey_and_colour_are_converted_to_the_expected_channels():
    grey = PIXELS[:, :, 0]
    assert torch.equal(read(grey)[0], read(np.dstack([grey] * 3))[0])
    assert read(PIXELS, shape=(1, 16, 16)).shape == (1, 1, 16, 16)
    rgba = read(PIXELS, shape=(4, 16, 16))[0]
    assert torch.equal(rgba[:3], read(PIXELS)[0])
    assert bool((rgba[3] == 255).all())


def test_a_pixel_fills_the_image():
    x = read(np.array([[[10, 20, 30]]], dtype=np.uint8), png(PIXELS[:1, :1]))
    assert x[0].flatten(1).unique(dim=1).flatten().tolist() == [10, 20, 30]
    assert x[1, :, 0, 0].tolist() == PIXELS[0, 0].tolist()


def test_odd_files_have_the_pixels_that_viewers_show():
    """Palette, CMYK, 16 bits, EXIF rotation, transparency and animation."""
    two = np.repeat(np.array([[[200, 0, 0]], [[0, 0, 200]]], np.uint8), 2, axis=1)  # red above blue
    picture = Image.fromarray(two).resize((64, 64), 0)

    def saved(image, kind, **options):
        file = io.BytesIO()
        image.save(file, kind, **options)
        return read(file, shape=(3, 8, 8))[0].float()

    plain = saved(picture, "PNG")
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    frames = [picture, Image.new("RGB", (64, 64), "white")]
    for found in (
        saved(picture.quantize(4), "PNG"),
        saved(picture.convert("CMYK"), "JPEG", quality=95),
        saved(picture.rotate(180), "JPEG", quality=95, exif=turned),
        saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
    ):
        assert (found - plain).abs().max() < 16
    deep = Image.fromarray(np.arange(64, dtype=np.uint16)[None].repeat(64, 0) * 1000)
    assert saved(deep, "PNG")[0].mean() == pytest.approx(31.5 * 1000 / 256, abs=1)


def test_without_a_shape_photos_are_sized_as_in_a_folder():
    assert read(PIXELS, PIXELS, shape=None).shape == (2, 3, 37, 23)
    assert read(PIXELS, PIXELS[:30], shape=None).shape == (2, 3, 64, 64)
    assert read(PIXELS[:, :, 0], PIXELS[:9, :9, 1], shape=None, size=12).shape == (2, 1, 12, 12)


def test_a_folder_stands_for_its_photos(tmp_path):
    for name in ("b.png", "a.png", "below/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(np.full((9, 9, 3), ord(name[-5]), np.uint8)))
    (tmp_path / "notes.txt").write_text("none")
    x = read(png(), tmp_path)
    assert x[1:, 0, 0, 0].tolist() == [ord(c) for c in "abc"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image files"):
        read(tmp_path / "empty")


@pytest.mark.parametrize(
    ("bad", "kind", "match"),
    [
        (b"no photo", CorruptFileError, r"X\[1\]: not an image file"),
        (png()[:200], CorruptFileError, r"X\[1\]: .*truncated"),
        (b"", CorruptFileError, r"X\[1\]: not an image file"),
        ("/nowhere/x.png", DataNotFoundError, "/nowhere/x.png"),
        (io.StringIO("text"), InputError, r"X\[1\] is a file opened as text"),
        (3.5, InputError, r"X\[1\] is a float; a photo is a path"),
        (None, InputError, r"X\[1\] is a NoneType"),
        (np.zeros((9, 9, 2), np.uint8), InputError, r"X\[1\].*1, 3 or 4 channels"),
        (np.full((9, 9, 3), 0.1234), InputError, r"X\[1\].*not bytes"),
        (np.zeros((0, 9, 3), np.uint8), InputError, r"X\[1\]"),
        (np.zeros((1, 4000, 3), np.uint8), CorruptFileError, r"X\[1\]: .*too long and thin"),
        (Image.new("F", (9, 9)), CorruptFileError, r"X\[1\]: .*mode 'F'"),
    ],
)
def test_a_bad_photo_is_named_by_its_place(bad, kind, match):
    with pytest.raises(kind, match=match):
        read(png(), bad, PIXELS)


def test_a_broken_file_in_a_list_is_named_by_path_and_place(tmp_path):
    (tmp_path / "x.png").write_bytes(png()[:100])
    with pytest.raises(CorruptFileError, match=r"x\.png \(X\[1\]\): "):
        read(png(), tmp_path / "x.png")


def test_many_photos_and_one_lazy_image_many_times(tmp_path):
    (tmp_path / "x.png").write_bytes(png())
    lazy = Image.open(tmp_path / "x.png")
    x = read(*[lazy] * 40, png())
    assert bool((x == x[-1]).all())


def test_lists_of_numbers_and_equal_arrays_are_not_lists_of_photos():
    assert not is_photo_list([[1.0, 2.0]])
    assert not is_photo_list([PIXELS, PIXELS])
    assert not is_photo_list([])
    assert is_photo_list([PIXELS, PIXELS[:5]])
    assert is_photo_list([PIXELS, "a.png"])
