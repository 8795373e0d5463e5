"""Files of a folder, of a zip file or of shards, read in the same way, and checks of paths."""

from __future__ import annotations

import os
import weakref
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from gradmix.data.image_folders.shards import Shards, find_shards
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

LARGEST_FILE = 1 << 28  # bytes; a larger file is not opened
_JUNK = ("thumbs.db", "desktop.ini", "__macosx")  # what file managers leave behind, lower case


class FileSource:
    """The files below a folder, in a zip file or in shards, by name.

    Names are relative to the folder `root` inside and contain forward slashes. Hidden files and
    the files of file managers, such as Thumbs.db, do not count. A zip file is read as a stream,
    and shards in place; nothing is written to disk. `shards` describes tar files.
    """

    def __init__(self, path: str | os.PathLike[str], root: str = "") -> None:
        self.path = Path(path)
        self._root = f"{root}/" if root else ""
        shards = find_shards(self.path)
        self._shards = Shards(shards) if shards else None
        self._is_zip = not shards and self.path.is_file()
        self._zip: tuple[int, zipfile.ZipFile] | None = None  # process id, open file

    @property
    def in_shards(self) -> bool:
        """Whether the files are in tar files."""
        return self._shards is not None

    def within(self, folder: str) -> FileSource:
        """Return the files of a folder of this source."""
        return FileSource(self.path, f"{self._root}{folder}")

    def names(self) -> list[str]:
        """Return the sorted names of all files, and of all folders with a slash at the end."""
        if self._shards is not None or self._is_zip:
            entries = self._archived_entries()
        else:
            entries = self._folder_entries()
        return sorted(entry for entry in entries if entry and _is_visible(entry))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; CorruptFileError for anything but a regular file."""
        if self._shards is not None:
            self._check_size(name, self._shards.size_of(f"{self._root}{name}"))
            return self._shards.open(f"{self._root}{name}")
        if self._is_zip:
            member = self._open_zip().getinfo(f"{self._root}{name}")
            self._check_size(name, member.file_size)
            return self._open_zip().open(member)
        return open_file(self.path / self._root / name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.open(name) as file:
            return file.read()

    def path_of(self, name: str) -> str:
        """Return the path of a file for a message."""
        return str(self.path / self._root / name)

    def _check_size(self, name: str, size: int) -> None:
        if size > LARGEST_FILE:
            raise _too_large(self.path_of(name), size)

    def _archived_entries(self) -> Iterable[str]:
        names = self._open_zip().namelist() if self._shards is None else self._shards.names()
        inside = [name[len(self._root) :] for name in names if name.startswith(self._root)]
        folders = {f"{parent}/" for entry in inside for parent in PurePosixPath(entry).parents}
        return {*inside, *folders} - {"./"}

    def _folder_entries(self) -> Iterator[str]:
        top = self.path / self._root
        for folder, folders, files in os.walk(top, onerror=_refuse_folder, followlinks=True):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and not _leads_back(folder, name)
            ]
            above = Path(folder).relative_to(top).as_posix()
            prefix = "" if above == "." else f"{above}/"
            yield from (f"{prefix}{name}/" for name in folders)
            yield from (f"{prefix}{name}" for name in files)

    def _open_zip(self) -> zipfile.ZipFile:
        """Open the zip file anew in each process: processes must not share its position."""
        if self._zip is None or self._zip[0] != os.getpid():
            try:
                self._zip = os.getpid(), zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
                raise CorruptFileError(f"{self.path}: not a readable zip file: {error}") from error
            weakref.finalize(self, self._zip[1].close)  # also if the source is part of a cycle
        return self._zip[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_zip": None}


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading; CorruptFileError for anything but a regular file."""
    if not path.is_file():  # opening a pipe would wait forever
        raise CorruptFileError(f"{path}: not a file (a broken link, a pipe or a device)")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise _too_large(str(path), size)
    return path.open("rb")


def _too_large(where: str, size: int) -> CorruptFileError:
    return CorruptFileError(f"{where}: the file has {size} bytes; at most {LARGEST_FILE} are read")


def _refuse_folder(error: OSError) -> None:
    raise CorruptFileError(f"{error.filename}: the folder cannot be read: {error.strerror}")


def _leads_back(folder: str, name: str) -> bool:
    """Return whether this is a link to a folder that contains it, directly or by other links."""
    path = Path(folder, name)
    if not path.is_symlink():
        return False
    target = path.resolve()
    return any(above.resolve().is_relative_to(target) for above in path.parents)


def _is_visible(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not any(part.startswith(".") or part.lower() in _JUNK for part in parts)


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a zip file or a shard."""
    return zipfile.is_zipfile(path) or bool(find_shards(Path(path)))


# --- paths that a caller gave ----------------------------------------------------------------


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` with `~` replaced.

    Raises:
        InputError: It is not a possible path, for example because of a NUL character.
    """
    try:
        text = os.fspath(path)
        if isinstance(text, str) and "\0" not in text:
            return Path(text).expanduser()
    except (TypeError, RuntimeError):  # not a path; `~name` of an unknown user
        pass
    raise InputError(f"{path!r} is not a path; give the path of a file or a folder as text")


def existing_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder or of a regular file.

    Raises:
        InputError: It is not a possible path.
        DataNotFoundError: There is no such folder or file.
    """
    found = checked_path(path)
    if os.path.isdir(found) or os.path.isfile(found):  # unlike Path's methods, these never raise
        return found
    raise DataNotFoundError(
        f"{found}: no such file or folder; check the path, and for photos give a folder that "
        "contains a folder of images for each class"
    )
