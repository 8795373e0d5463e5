"""Photos that a caller passes as objects: paths, bytes, files, Pillow images and arrays.

    GivenPhotos ── ImageFiles ── a tensor

They pass through the same code as the files of a folder, so their pixels are the same.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import IO, Any

import numpy as np
from PIL import Image
from torch import Tensor

from gradmix.data.arrays import one_image
from gradmix.data.image_folders.classes import image_names, show_kinds
from gradmix.data.image_folders.decode import read_headers
from gradmix.data.image_folders.read import form_for, load_images
from gradmix.data.image_folders.source import LARGEST_FILE, FileSource, open_file
from gradmix.errors import CorruptFileError, InputError
from gradmix.paths import checked_path, existing_path

PHOTO_KINDS = "a path, bytes, an open file, a Pillow image or an array"


def is_photo(item: object) -> bool:
    """Return whether an object is a photo and nothing else: all kinds except arrays."""
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, Image.Image)
    return isinstance(item, kinds) or hasattr(item, "read")


def is_photo_list(items: object) -> bool:
    """Return whether a list contains photos: any kind, or arrays of different shapes."""
    if not isinstance(items, (list, tuple)) or not items:
        return False
    if any(map(is_photo, items)):
        return True
    return all(map(_is_array, items)) and len({tuple(item.shape) for item in items}) > 1


def is_plain_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder without folders in it."""
    found = checked_path(path)
    return os.path.isdir(found) and not any(n.endswith("/") for n in FileSource(found).names())


def read_photos(
    items: Sequence[Any],
    name: str,
    *,
    shape: tuple[int, ...] | None = None,
    size: int | None = None,
    largest: int = 64,
    stream: bool = False,
) -> Tensor:
    """Return photos as uint8 (N, C, H, W), resized like the photos of a folder.

    A folder among the items means all photos in it, sorted by name. Messages call the argument
    `name`. The other parameters are those of `read_folder`.

    Raises:
        InputError: An item is not a photo.
        DataNotFoundError: A path does not exist.
        CorruptFileError: A photo cannot be read; the message names it.
    """
    source = GivenPhotos(items, name)
    return load_images(source, source.names, form_for(shape, size, largest), stream=stream)[0]


def photo_sizes(items: Sequence[Any], name: str) -> list[tuple[int, int]]:
    """Return the width and height of photos without decoding; CorruptFileError names a bad one."""
    source = GivenPhotos(items, name)
    headers, unreadable = read_headers(source, source.names)
    for message in unreadable.values():
        raise CorruptFileError(message)
    return [headers[row][:2] for row in range(len(source.names))]


class GivenPhotos:
    """Photos by number, as a `PhotoSource`."""

    def __init__(self, items: Sequence[Any], name: str) -> None:
        single = len(items) == 1
        self._photos = [
            photo
            for row, item in enumerate(items)
            for photo in _photos_of(item, name if single else f"{name}[{row}]")
        ]
        self.names = [  # with the extension of a file, which may decide on its format
            f"{number}/{content.name if isinstance(content, Path) else ''}"
            for number, (_, content) in enumerate(self._photos)
        ]
        self._lock = Lock()  # Pillow decodes an image when it is first used

    def open(self, name: str) -> IO[bytes] | Image.Image:
        """Return a photo: a file to decode, or the pixels."""
        _, content = self._photos[int(name.partition("/")[0])]
        if isinstance(content, Path):
            return open_file(content)
        if isinstance(content, bytes):
            return io.BytesIO(content)
        with self._lock:
            return content.copy()

    def path_of(self, name: str) -> str:
        """Return what messages call a photo."""
        return self._photos[int(name.partition("/")[0])][0] if name else "the photos"


def _photos_of(item: Any, where: str) -> list[tuple[str, Path | bytes | Image.Image]]:
    """Return the photos of an item, each with its name in messages."""
    if isinstance(item, (str, os.PathLike)):
        place = f" ({where})" if where.endswith("]") else ""
        return [(f"{path}{place}", path) for path in photo_paths(item)]
    if isinstance(item, (bytes, bytearray, memoryview)):
        return [(where, bytes(item))]
    if hasattr(item, "read"):
        return [(where, _content(item, where))]
    if isinstance(item, Image.Image):
        return [(where, item)]
    if _is_array(item):
        pixels = one_image(item, where).permute(1, 2, 0)  # (H, W, C)
        return [(where, Image.fromarray(pixels.squeeze(2).contiguous().numpy()))]
    raise InputError(f"{where} is a {type(item).__name__}; a photo is {PHOTO_KINDS}")


def photo_paths(
    given: str | os.PathLike[str], say: Callable[[str], object] | None = None
) -> list[Path]:
    """Return the path of a photo, or the paths of all photos in a folder, sorted by name.

    Args:
        given: A file or a folder.
        say: Is told which kinds of files in the folder are no photos.

    Raises:
        DataNotFoundError: There is no such file or folder.
        InputError: The folder has no photos.
    """
    path = existing_path(given, remedy="give image files or folders")
    if path.is_file():
        return [path]
    source = FileSource(path)
    if source.in_shards:
        raise InputError(f"{path} contains shards; give image files, or a folder of them")
    names = image_names(source)
    others = {name for name in source.names() if not name.endswith("/")} - {*names}
    if others and say is not None:
        kinds = show_kinds([PurePosixPath(name).suffix.lower() for name in sorted(others)])
        say(f"{path}: skipped {len(others)} of {len(names) + len(others)} files: {kinds}")
    found = [path / name for name in names]
    if not found:
        raise InputError(f"{path} has no image files, such as .jpg, .png or .tif")
    return found


def _content(file: Any, where: str) -> bytes:
    """Return an open file from its start, as Pillow reads it, and restore its position."""
    seekable = hasattr(file, "seekable") and file.seekable()
    if seekable:
        position = file.tell()
        file.seek(0)
    content = file.read(LARGEST_FILE + 1)
    if seekable:
        file.seek(position)
    if not isinstance(content, bytes):
        raise InputError(f"{where} is a file opened as text; open it in mode 'rb'")
    if len(content) > LARGEST_FILE:
        raise CorruptFileError(f"{where}: the file has more than {LARGEST_FILE} bytes")
    return content


def _is_array(item: object) -> bool:
    return isinstance(item, (np.ndarray, Tensor)) and item.ndim in (2, 3)
