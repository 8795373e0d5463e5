"""Image files and their decoding to pixels.

    FileTree ── ImageFiles ── a tensor, or StreamedImages, which stands in for one
    bytes       pixels

All images pass through here, so that they are the same bytes whether they wait in memory or
on disk.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.data.image_folders.source import ZIP_ERRORS, FileTree
from gradmix.errors import CorruptFileError, InputError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")  # Pillow's names; no other decoder is started
RESAMPLING = ("bilinear", "bicubic")
_GREY_MODES = ("1", "L", "LA")
_DEEP_GREY_MODES = ("I;16", "I;16L", "I;16B")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_DECODING_ERRORS = (
    *ZIP_ERRORS,
    *(SyntaxError, IndexError, TypeError, OverflowError, struct.error),
)
THREADS = min(8, os.cpu_count() or 1)
_ORIENTATION = 0x0112  # EXIF's tag
_THIN = 100  # times its width or height that an image may be as long, when resized
_FEW = 16  # files that are not worth a thread
_CHECKED_AT_ONCE = 256  # files
_T = TypeVar("_T")


class Header(NamedTuple):
    """What the head of an image file says."""

    width: int
    height: int
    grey: bool


class Failure(NamedTuple):
    """An image that cannot be read."""

    row: int  # in the list of files
    message: str  # names the file


class ImageFiles:
    """Image files that become pixels (C, H, W) alike; plain data, so that workers can have it.

    With `resample` the shorter side is resized to the shape's, then the centre is cut out;
    without, every file must have the shape's size. With 1 channel everything is grey.
    """

    def __init__(
        self,
        tree: FileTree,
        names: Sequence[str],
        shape: tuple[int, int, int],
        resample: str | None = None,
    ) -> None:
        self.tree = tree
        self.names = list(names)
        self.shape = shape
        self._resample = resample

    def __len__(self) -> int:
        return len(self.names)

    def decode(self, row: int) -> npt.NDArray[np.uint8]:
        """The pixels of one file; CorruptFileError names it if it cannot be used."""
        return _read_image(self.tree, self.names[row], self._pixels)

    def decode_rows(self, rows: Sequence[int], *, threads: int = 1) -> tuple[Tensor, list[Failure]]:
        """The pixels of several files, zeros where decoding failed, and what failed."""
        pixels = torch.zeros((len(rows), *self.shape), dtype=torch.uint8)
        array = pixels.numpy()

        def fill(place: int) -> None:
            array[place] = self.decode(rows[place])

        failures = _for_each(fill, len(rows), threads)
        return pixels, [Failure(rows[place], message) for place, message in failures]

    def decode_all(self) -> tuple[Tensor, list[Failure]]:
        """The pixels of all files, and what failed."""
        return self.decode_rows(range(len(self)), threads=THREADS)

    def check_all(self) -> list[Failure]:
        """Decode all files, keep nothing, and return what failed."""
        failures = []
        for start in range(0, len(self), _CHECKED_AT_ONCE):
            rows = range(start, min(start + _CHECKED_AT_ONCE, len(self)))
            failures += self.decode_rows(rows, threads=THREADS)[1]
        return failures

    def _pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        channels, height, width = self.shape
        image = convert(upright(image), channels)
        if self._resample is not None:
            image = _resize_and_crop(image, width, height, self._resample)
        if image.size != (width, height):
            raise CorruptFileError(
                f"it is {image.width}x{image.height} and should be {width}x{height}"
            )
        return channels_first(image)


def read_header(tree: FileTree, name: str) -> Header:
    """Size and colour of an image file, without its pixels."""

    def read(image: Image.Image) -> Header:
        lies = _orientation(image) > 4  # 5 to 8: on its side
        width, height = reversed(image.size) if lies else image.size
        return Header(width, height, is_grey(image.mode))

    return _read_image(tree, name, read)


def read_headers(tree: FileTree, names: Sequence[str]) -> tuple[dict[int, Header], list[Failure]]:
    """The headers of all files that have one, by row, and what failed."""
    headers: dict[int, Header] = {}

    def fill(row: int) -> None:
        headers[row] = read_header(tree, names[row])

    failures = _for_each(fill, len(names), THREADS)
    return headers, failures


def is_grey(mode: str) -> bool:
    """Whether an image of Pillow's `mode` has no colours."""
    return mode in (*_GREY_MODES, *_DEEP_GREY_MODES)


def upright(image: Image.Image) -> Image.Image:
    """The image as its camera was held, if it says so."""
    from PIL import ImageOps

    return image if _orientation(image) == 1 else ImageOps.exif_transpose(image)


def _orientation(image: Image.Image) -> int:
    """As EXIF has it, 1 to 8, 1 if it does not say; damaged EXIF data spoil no image."""
    if "exif" not in image.info:  # looking any further would decode a PNG
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except _DECODING_ERRORS:
        return 1
    return found if found in range(1, 9) else 1


def convert(image: Image.Image, channels: int) -> Image.Image:
    """The image as 8-bit grey (1 channel) or RGB (3); transparency and 16-bit depth are dropped.

    InputError for floats and 32-bit integers, whose range nobody knows.
    """
    from PIL import Image

    if image.mode in _DEEP_GREY_MODES:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
        raise InputError(f"its pixels are of mode {image.mode!r}; convert it to 8 bits per channel")
    mode = "L" if channels == 1 else "RGB"
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def channels_first(image: Image.Image) -> npt.NDArray[np.uint8]:
    """The pixels of a grey or RGB image, (C, H, W)."""
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _read_image(tree: FileTree, name: str, use: Callable[[Image.Image], _T]) -> _T:
    """Open an image file and use it; whatever its decoder stumbles over names the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with tree.open(name) as file, Image.open(file, formats=FORMATS) as image:
            return use(image)
    except (*_DECODING_ERRORS, Image.DecompressionBombError) as error:
        reason = "not an image file" if isinstance(error, UnidentifiedImageError) else error
        raise CorruptFileError(f"{tree.describe(name)}: {reason}") from error


def _resize_and_crop(image: Image.Image, width: int, height: int, resample: str) -> Image.Image:
    """Resize so that the image just covers width x height, then cut out the centre."""
    from PIL import Image

    scale = max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if max(size) > _THIN * max(width, height):
        raise CorruptFileError(
            f"it is {image.width}x{image.height}, too long and thin for {width}x{height}"
        )
    if image.size != size:
        image = image.resize(size, Image.Resampling[resample.upper()])
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if image.size == (width, height):
        return image
    return image.crop((left, top, left + width, top + height))


def _for_each(work: Callable[[int], None], count: int, threads: int) -> list[Failure]:
    """Do `work` on 0, 1, ... `count` - 1, a run of them in each thread; what failed, in order."""

    def run(places: range) -> list[Failure]:
        failures = (_failure(work, place) for place in places)
        return [failure for failure in failures if failure is not None]

    if threads <= 1 or count < _FEW:
        return run(range(count))
    step = -(-count // threads)
    runs = [range(start, min(start + step, count)) for start in range(0, count, step)]
    with ThreadPoolExecutor(threads) as pool:
        return [failure for failures in pool.map(run, runs) for failure in failures]


def _failure(work: Callable[[int], None], place: int) -> Failure | None:
    try:
        work(place)
    except CorruptFileError as error:
        return Failure(place, str(error))
    return None
