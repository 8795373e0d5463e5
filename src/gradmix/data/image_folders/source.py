"""A folder of files, or a zip of one, read alike."""

from __future__ import annotations

import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from gradmix.errors import CorruptFileError

LARGEST_FILE = 1 << 29  # bytes of a file in a zip
ZIP_ERRORS = (
    *(OSError, ValueError, EOFError, KeyError, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
    *(NotImplementedError, RuntimeError),  # of an unknown compression, of a password
)
"""What reading a zip may raise."""


class FileTree:
    """A folder, or a zip file of one, whose files are read by name.

    Names are relative to `root` (a folder within) and have forward slashes. Hidden files and
    folders do not count. Nothing of a zip is written to disk.
    """

    def __init__(self, path: str | Path, root: str = "") -> None:
        self.path = Path(path)
        self._root = f"{root}/" if root else ""
        self._packed = self.path.is_file()
        self._zip: tuple[int, zipfile.ZipFile] | None = None

    def within(self, folder: str) -> FileTree:
        """The tree of a folder of this one."""
        return FileTree(self.path, f"{self._root}{folder}")

    def names(self) -> list[str]:
        """Every file, and every folder with a slash at its end, sorted."""
        entries = self._zip_entries() if self._packed else self._folder_entries()
        return sorted(entry for entry in entries if entry and _is_visible(entry))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        if self._packed:
            packed = self._open_zip().getinfo(f"{self._root}{name}")
            if packed.file_size > LARGEST_FILE:
                raise CorruptFileError(
                    f"{self.describe(name)}: it has {packed.file_size} bytes, "
                    f"of {LARGEST_FILE} at most"
                )
            return self._open_zip().read(packed)
        return (self.path / self._root / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """A file to read, as much of it as is needed."""
        if self._packed:
            return io.BytesIO(self.read(name))
        path = self.path / self._root / name
        if not path.is_file():  # opening a pipe would wait for ever
            raise CorruptFileError(f"{path}: it is no file")
        return path.open("rb")

    def describe(self, name: str) -> str:
        """The file for a message."""
        return str(self.path / self._root / name)

    def _zip_entries(self) -> set[str]:
        inside = [
            entry[len(self._root) :]
            for entry in self._open_zip().namelist()
            if entry.startswith(self._root)
        ]
        folders = {f"{parent}/" for entry in inside for parent in PurePosixPath(entry).parents}
        return {*inside, *folders} - {"./"}

    def _folder_entries(self) -> Iterator[str]:
        top = self.path / self._root
        for folder, folders, files in os.walk(top, followlinks=True):
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
        """The zip, opened anew in each process: processes must not share a file's position."""
        if self._zip is None or self._zip[0] != os.getpid():
            try:
                self._zip = os.getpid(), zipfile.ZipFile(self.path)
            except ZIP_ERRORS as error:
                raise CorruptFileError(f"{self.path}: not a readable zip file: {error}") from error
        return self._zip[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_zip": None}


def _leads_back(folder: str, name: str) -> bool:
    """Whether it is a link to a folder that it is in, be it by way of other links."""
    path = Path(folder, name)
    if not path.is_symlink():
        return False
    target = path.resolve()
    return any(above.resolve().is_relative_to(target) for above in path.parents)


def _is_visible(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not any(part.startswith(".") or part == "__MACOSX" for part in parts)
