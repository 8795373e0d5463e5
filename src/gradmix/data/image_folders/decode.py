"""Image files and how they become pixels.

    FileSource ── ImageFiles ── a tensor, or StreamedImages in place of one
    bytes         pixels

Every image passes through this module. Its pixels are therefore the same whether a data set is
held in memory or streamed from files.

Formats: every format that Pillow decodes itself. Of a file with several images, the first is read.
`_NOT_PHOTOS` are not read: plugins that start another program (EPS starts Ghostscript), formats of
drawings, videos or measurements, and plugins that only recognise a file. The content of a file
decides on its format, not the name. The exceptions are formats without a signature, such as TGA,
which any bytes could be: they are tried only for files with their extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePosixPath
from posixpath import splitext
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gradmix.data.stream import map_ahead
from gradmix.errors import CorruptFileError, InputError

if TYPE_CHECKING:
    from PIL import Image

RESAMPLING = ("bilinear", "bicubic")
_NOT_PHOTOS = {"EPS", "WMF", "MPEG", "BUFR", "GRIB", "HDF5", "IPTC"}  # Pillow's names
_GREY_MODES = ("1", "L", "LA")
_DEEP_GREY_MODES = ("I;16", "I;16L", "I;16B")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by channels
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
_ORIENTATION = 0x0112  # EXIF tag
_THIN = 100  # largest ratio of the longer side to the target's, when resized
_DRAFT_GAP = 2  # JPEG is decoded at this multiple of the target size, or larger
_T = TypeVar("_T")


class PhotoSource(Protocol):
    """Where photos come from: a `FileSource`, or objects of a caller."""

    def open(self, name: str) -> IO[bytes] | Image.Image:
        """Return a file to decode, or an image that the reader may change."""

    def path_of(self, name: str) -> str:
        """Return what messages call a photo."""


class Header(NamedTuple):
    """Size and colour of an image, without its pixels."""

    width: int
    height: int
    grey: bool


class ImageFiles:
    """Image files that become pixels of one shape (C, H, W).

    Args:
        source: Where the files are.
        names: The files.
        shape: Channels, height and width of every image. One channel means grey.
        resample: Resize the shorter side to `shape` and cut out the centre. None: every file must
            have the size already.
    """

    def __init__(
        self,
        source: PhotoSource,
        names: Sequence[str],
        shape: tuple[int, int, int],
        resample: str | None = None,
    ) -> None:
        self.source = source
        self.names = list(names)
        self.shape = shape
        self._resample = resample

    def __len__(self) -> int:
        return len(self.names)

    def decode(self, row: int, into: npt.NDArray[np.uint8]) -> None:
        """Write the pixels of one file to (C, H, W); CorruptFileError names an unusable file."""
        with _open_image(self.source, self.names[row]) as image:
            channels_first(self._shaped(image), into)

    def decode_all(self, pixels: npt.NDArray[np.uint8] | None = None) -> dict[int, str]:
        """Decode all files, into `pixels` (N, C, H, W) if given.

        Returns:
            Why files are unreadable, by row. The reasons name the files.
        """

        def decode(row: int) -> None:
            into = np.empty(self.shape, dtype=np.uint8) if pixels is None else pixels[row]
            self.decode(row, into)

        return _attempt_all(decode, len(self))[1]

    def _shaped(self, image: Image.Image) -> Image.Image:
        channels, height, width = self.shape
        if self._resample is not None:
            # libjpeg decodes a photo at 1/2, 1/4 or 1/8 of its size if it is resized anyway. It is
            # about three times as fast for 3000x4000 pixels. The result keeps `_DRAFT_GAP` times
            # the size that is needed, so a resized pixel differs by a few grey levels at most.
            side = _DRAFT_GAP * max(height, width)
            image.draft(None, (side, side))  # no effect on other formats
        if _orientation(image) != 1:  # Pillow itself turns TIFF files
            from PIL import ImageOps

            image = ImageOps.exif_transpose(image)
        image = convert(image, channels)
        if self._resample is not None:
            image = _resize_and_crop(image, width, height, self._resample)
        if image.size != (width, height):
            raise CorruptFileError(
                f"the image is {image.width}x{image.height}; expected {width}x{height}"
            )
        return image


def is_image_name(name: str) -> bool:
    """Return whether a file has the extension of an image, such as .jpg.

    Example:
        >>> [is_image_name(name) for name in ("a.JPG", "b.tiff", "c.gif", "d.pdf", "e")]
        [True, True, True, False, False]
    """
    from PIL import Image

    kind = Image.registered_extensions().get(PurePosixPath(name).suffix.lower())
    readable = kind in Image.OPEN or kind == "MPO"  # which is opened as JPEG
    return readable and kind not in _NOT_PHOTOS


@lru_cache(maxsize=256)
def _formats_to_try(extension: str) -> tuple[str, ...]:
    """Return the formats to try: that of the extension first, but last if it has no signature."""
    from PIL import Image

    own = Image.registered_extensions().get(extension)
    signed = {kind: check is not None for kind, (_, check) in Image.OPEN.items()}
    tried = [kind for kind in signed if kind not in _NOT_PHOTOS and (signed[kind] or kind == own)]
    return tuple(sorted(tried, key=lambda kind: (not signed[kind], kind != own)))


def read_headers(
    source: PhotoSource, names: Sequence[str]
) -> tuple[dict[int, Header], dict[int, str]]:
    """Return the headers of all readable files, and why the others are unreadable, by row."""

    def header(row: int) -> Header:
        with _open_image(source, names[row]) as image:
            on_its_side = _orientation(image) > 4
            width, height = reversed(image.size) if on_its_side else image.size
            return Header(width, height, is_grey(image.mode))

    return _attempt_all(header, len(names))


def is_grey(mode: str) -> bool:
    """Return whether an image of Pillow's `mode` has no colours."""
    return mode in (*_GREY_MODES, *_DEEP_GREY_MODES, "La")


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is missing or damaged."""
    if "exif" not in image.info:  # getexif() would decode a PNG to look for more
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF data raise anything; the photo is still good
        return 1
    return found if found in range(1, 9) else 1


def convert(image: Image.Image, channels: int) -> Image.Image:
    """Return the image as 8-bit grey (1 channel), RGB (3) or RGBA (4).

    Grey and RGB have no transparency. 16-bit grey keeps its upper 8 bits.

    Raises:
        InputError: The pixels are floats or 32-bit integers, whose range is unknown.
    """
    from PIL import Image

    if image.mode in _DEEP_GREY_MODES:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in _PREMULTIPLIED:
        image = image.convert(_PREMULTIPLIED[image.mode])
    if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
        raise InputError(f"its pixels have mode {image.mode!r}; convert it to 8 bits per channel")
    mode = _MODES[channels]
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def channels_first(image: Image.Image, into: npt.NDArray[np.uint8]) -> None:
    """Write the pixels of an image that `convert` returned to an array (C, H, W)."""
    for band, plane in zip(image.getbands(), into, strict=True):
        # Pillow separates a colour faster than NumPy
        plane[...] = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(plane.shape)


@contextmanager
def _open_image(source: PhotoSource, name: str) -> Iterator[Image.Image]:
    """Open an image file; any error of a decoder, now or in the block, names the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with source.open(name) as found:
            if isinstance(found, Image.Image):
                yield found
                return
            with Image.open(found, formats=_formats_to_try(splitext(name)[1].lower())) as image:
                limit = Image.MAX_IMAGE_PIXELS  # above it Pillow only warns
                if limit is not None and image.width * image.height > limit:
                    raise CorruptFileError(
                        f"the image is {image.width}x{image.height}; at most {limit} pixels are "
                        "decoded"
                    )
                yield image
    except UnidentifiedImageError as error:
        raise CorruptFileError(f"{source.path_of(name)}: not an image file") from error
    except Exception as error:  # Pillow's decoders of damaged files raise almost anything
        where, reason = source.path_of(name), str(error) or type(error).__name__
        message = reason if reason.startswith(where) else f"{where}: {reason}"
        raise CorruptFileError(message) from error


def _resize_and_crop(image: Image.Image, width: int, height: int, resample: str) -> Image.Image:
    """Resize so that the image just covers width x height, then cut out the centre."""
    from PIL import Image

    scale = max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if max(size) > _THIN * max(width, height):
        raise CorruptFileError(
            f"the image is {image.width}x{image.height}, too long and thin for {width}x{height}"
        )
    if image.size != size:
        image = image.resize(size, Image.Resampling[resample.upper()])
    if size == (width, height):
        return image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _attempt_all(work: Callable[[int], _T], rows: int) -> tuple[dict[int, _T], dict[int, str]]:
    """Return what `work` returns for each row, or the message of its CorruptFileError, by row."""

    def attempt(row: int) -> _T | CorruptFileError:
        try:
            return work(row)
        except CorruptFileError as error:
            return error

    found, unreadable = {}, {}
    for row, result in enumerate(map_ahead(attempt, range(rows))):
        if isinstance(result, CorruptFileError):
            unreadable[row] = str(result)
        else:
            found[row] = result
    return found, unreadable
