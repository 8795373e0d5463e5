"""Images in files as samples of a classifier."""

import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from gradmix.data.image_folders.classes import has_own_test
from gradmix.data.image_folders.given import read_photos
from gradmix.data.image_folders.read import read_folder
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError


def write(folder, name, sizes, mode="RGB"):
    (folder / name).mkdir(parents=True)
    for k, size in enumerate(sizes):
        Image.new(mode, size, k).save(folder / name / f"{k}.png")


def test_one_size_is_kept(tmp_path):
    write(tmp_path, "b", [(20, 10)] * 2)
    write(tmp_path, "a", [(20, 10)])
    x, listing = read_folder(tmp_path)
    assert x.shape == (3, 3, 10, 20)
    assert (listing.labels, listing.classes) == ([0, 1, 1], ("a", "b"))


@pytest.mark.parametrize(
    ("sizes", "given", "shape"),
    [
        ([(20, 10), (30, 30)], {}, (3, 64, 64)),
        ([(200, 100)] * 2, {}, (3, 64, 64)),
        ([(20, 10)] * 2, {"size": 16}, (3, 16, 16)),
        ([(20, 10)] * 2, {"shape": (1, 8, 9)}, (1, 8, 9)),
    ],
)
def test_others_are_resized(tmp_path, sizes, given, shape):
    write(tmp_path, "a", sizes)
    assert read_folder(tmp_path, **given)[0].shape[1:] == shape


def test_grey_stays_grey_and_train_is_what_is_read(tmp_path):
    write(tmp_path / "train", "a", [(9, 9)], "L")
    write(tmp_path / "test", "a", [(9, 9)] * 5, "L")
    x, listing = read_folder(tmp_path)
    assert x.shape == (1, 1, 9, 9)
    assert listing.labels == [0]


def test_the_part_to_test_on(tmp_path):
    write(tmp_path / "train", "a", [(9, 9)])
    assert not has_own_test(tmp_path)
    write(tmp_path / "val", "a", [(9, 9)] * 5)
    assert has_own_test(tmp_path)
    assert read_folder(tmp_path, part="test")[1].labels == [0] * 5


@pytest.mark.parametrize("names", [("bus", "train", "test"), ("train", "test"), ("cat", "test/a")])
def test_classes_are_no_part_to_test_on(tmp_path, names):
    for name in names:
        write(tmp_path, name, [(9, 9)])
    assert not has_own_test(tmp_path)
    assert not has_own_test(tmp_path / names[0] / "0.png")
    assert not has_own_test(tmp_path / "none")


def test_single_files(tmp_path):
    write(tmp_path, "a", [(9, 9), (30, 20)])
    paths = [tmp_path / "a" / "1.png", tmp_path / "a" / "0.png"]
    x = read_photos(paths, "X", shape=(3, 9, 9))
    assert x.shape == (2, 3, 9, 9)
    expected = np.asarray(Image.open(paths[1])).transpose(2, 0, 1)
    assert (x[1].numpy() == expected).all()


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(DataNotFoundError):
        read_folder(tmp_path / "none")
    with pytest.raises(InputError, match="no class folders"):
        read_folder(tmp_path)
    write(tmp_path, "a", [(9, 9)])
    (tmp_path / "a" / "x.png").write_bytes(b"no picture")
    with pytest.raises(CorruptFileError, match="1 of 2 images"):
        read_folder(tmp_path)
    with pytest.raises(DataNotFoundError):
        read_photos([tmp_path / "a" / "y.png"], "X", shape=(3, 9, 9))


def damage(path):
    """Leave a header, and too few pixels."""
    path.write_bytes(path.read_bytes()[:41])


def test_the_first_five_unreadable_photos_are_named(tmp_path):
    write(tmp_path, "a", [(9, 9)] * 8)
    for number in range(7):
        (tmp_path / "a" / f"{number}.png").write_bytes(b"no picture")
    said = []
    read_folder(tmp_path, skip=said.append)
    first, *reasons, last = said[0].splitlines()
    assert first == "skipped 7 of 8 images that cannot be read:"
    assert [reason.split(":")[0].rpartition("/")[2] for reason in reasons] == [
        f"{number}.png" for number in range(5)
    ]
    assert last == "  and 2 more"


@pytest.mark.parametrize("given", [{}, {"size": 9}, {"shape": (3, 9, 9)}])
def test_what_cannot_be_read_is_left_out_if_that_is_wanted(tmp_path, given):
    write(tmp_path, "a", [(9, 9)] * 3)
    write(tmp_path, "b", [(9, 9)] * 2)
    whole, before = read_folder(tmp_path, **given)
    (tmp_path / "a" / "1.png").write_bytes(b"no picture")
    damage(tmp_path / "b" / "0.png")
    count = "2" if "shape" in given else "at least 1"  # else only headers are read by then
    with pytest.raises(
        CorruptFileError,
        match=rf"\({count} of 5 images cannot be read; on the command line, --skip",
    ):
        read_folder(tmp_path, **given)
    said = []
    x, listing = read_folder(tmp_path, **given, skip=said.append)
    assert (x == whole[[0, 2, 4]]).all()
    assert listing.labels == [before.labels[row] for row in (0, 2, 4)] == [0, 0, 1]
    assert listing.classes == ("a", "b")
    (text,) = said
    first, *reasons = text.splitlines()
    assert first == "skipped 2 of 5 images that cannot be read:"
    for reason, name in zip(reasons, ("a/1.png", "b/0.png"), strict=True):
        assert reason.startswith(f"  {tmp_path / name}: ")
    for path in tmp_path.rglob("*.png"):
        damage(path)
    with pytest.raises(CorruptFileError, match=r"\(5 of 5 images cannot be read\)"):
        read_folder(tmp_path, **given, skip=said.append)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(CorruptFileError, match=r"\(5 of 5 images cannot be read; "):
        read_folder(tmp_path, **given)


@pytest.mark.parametrize("suffix", ["png", "webp"])
@pytest.mark.parametrize("orientation", [0, *range(1, 9), 99])
def test_photos_are_turned_upright(tmp_path, orientation, suffix):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)
    photo, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    photo.save(tmp_path / "a" / f"0.{suffix}", exif=exif, lossless=True)
    turned = {
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: pixels[::-1].swapaxes(0, 1),
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: pixels[:, ::-1].swapaxes(0, 1),
    }.get(orientation, pixels)
    x, *_ = read_folder(tmp_path)
    assert (x[0].numpy() == turned.transpose(2, 0, 1)).all()


def test_damaged_exif_data_spoil_no_photo(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (5, 3)).save(tmp_path / "a" / "0.jpg", exif=b"Exif\0\0of another time")
    assert read_folder(tmp_path)[0].shape == (1, 3, 3, 5)


def test_long_and_thin_is_refused(tmp_path):
    write(tmp_path, "a", [(1, 9000), (9, 9)])
    with pytest.raises(CorruptFileError, match="1x9000, too long and thin for 64x64"):
        read_folder(tmp_path)


def test_links_that_lead_back_and_pipes(tmp_path):
    write(tmp_path / "photos", "a", [(9, 9)])
    for name in ("one", "two"):
        (tmp_path / "photos" / "a" / name).symlink_to(tmp_path / "photos", True)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "photos", True)
    assert len(read_folder(tmp_path / "elsewhere")[1].labels) == 1
    write(tmp_path, "other", [(9, 9)])
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "other", True)
    (tmp_path / "other" / "back").symlink_to(tmp_path / "photos", True)
    assert read_folder(tmp_path / "photos")[1].labels == [0, 1]
    os.mkfifo(tmp_path / "photos" / "a" / "1.png")
    with pytest.raises(CorruptFileError, match="not a file"):
        read_folder(tmp_path / "photos")


def zipped(tmp_path, **kinds):
    write(tmp_path, "a", [(9, 9)])
    with zipfile.ZipFile(tmp_path / "a.zip", "w", **kinds) as file:
        file.write(tmp_path / "a" / "0.png", "a/0.png")
    return tmp_path / "a.zip"


def test_a_file_that_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("gradmix.data.image_folders.source.LARGEST_FILE", 10)
    with pytest.raises(CorruptFileError, match="bytes; at most 10 are read"):
        read_folder(zipped(tmp_path))


@pytest.mark.parametrize(("place", "value"), [(6, 1), (8, 99)], ids=["password", "compression"])
def test_zips_that_cannot_be_unpacked(tmp_path, place, value):
    path = zipped(tmp_path)
    data = bytearray(path.read_bytes())
    data[place] = data[data.index(b"PK\1\2") + place + 2] = value
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"0\.png"):
        read_folder(path)
