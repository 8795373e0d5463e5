"""Write the photos of a folder to shards: tar files that are read like the folder."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gradmix._setting_types import is_whole
from gradmix.data.image_folders.classes import find_classes, image_names
from gradmix.data.image_folders.source import FileSource
from gradmix.errors import InputError
from gradmix.files import locked
from gradmix.paths import checked_path, existing_path

SIZE = 256 * 10**6  # bytes of a shard; a few seconds of reading


def write_shards(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    size: int = SIZE,
    progress: Callable[[int, int], object] | None = None,
) -> list[Path]:
    """Write the photos of a folder to shards, sorted by name; equal folders give equal shards.

    The content of the photos does not change. The shards appear when all are complete.

    Args:
        folder: A folder or zip file with a folder of photos for each class; see `classes`.
        to: The folder of the shards; it must not exist.
        size: Bytes of a shard. A shard is closed when it has reached this size.
        progress: Called with the number of photos written and in total.

    Returns:
        The shards.

    Raises:
        DataNotFoundError: There is no such folder.
        InputError: The folder has no class folders, `to` exists or is inside the folder, or the
            size is invalid.
        FileInUseError: Another process writes the same shards.
        CorruptFileError: A photo cannot be read.
    """
    source, target = FileSource(existing_path(folder)), checked_path(to)
    _check(source.path, target, size)
    find_classes(source)  # refuses a folder that has no classes
    names = image_names(source)
    with locked(target):
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # a killed process left it
        try:
            partial.mkdir()
            shards = list(_write(source, names, partial, size, progress))
            _check(source.path, target, size)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return [target / shard for shard in shards]


def _check(folder: Path, target: Path, size: int) -> None:
    if not is_whole(size) or size < 1:
        raise InputError(f"size is {size!r}; give the bytes of a shard, 1 or more")
    if os.path.lexists(target):
        raise InputError(f"{target} exists already; give a new folder for the shards")
    if target.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{target} is inside {folder}; give a folder outside for the shards")


def _write(
    source: FileSource,
    names: Sequence[str],
    folder: Path,
    size: int,
    progress: Callable[[int, int], object] | None,
) -> Iterator[str]:
    """Write all shards and yield their names."""
    written = 0
    while written < len(names):
        shard = f"{len(list(folder.iterdir())):06}.tar"
        with open(folder / shard, "xb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                while written < len(names) and file.tell() < size:
                    content = source.read(names[written])
                    about = tarfile.TarInfo(names[written])  # without a time or owner
                    about.size = len(content)
                    archive.addfile(about, io.BytesIO(content))
                    written += 1
                    if progress is not None:
                        progress(written, len(names))
            file.flush()
            os.fsync(file.fileno())
        yield shard
