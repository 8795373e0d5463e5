"""Files of a folder, of a zip file or of shards, read in the same way.

Shards are tar files. A photo in them is found in an index of all members and read at its offset. A
member is named by its path in the shard, so that shards contain what a folder would:

    cat/000123.jpg                  a photo of the class cat, as in a folder
    000123.jpg  000123.cls          a photo of the class that 000123.cls contains (WebDataset)
    000123.jpg  000123.json         the same; the class is "label", "class" or "cls" of the object

A labelled sample without a folder gets the name <class>/<shard>/000123.jpg. Its other members, such
as 000123.txt, are not listed. Shards are read in place. Compressed tar files cannot be: finding a
photo in them takes a read of everything before it.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from gradmix.data.image_folders.decode import is_image_name
from gradmix.errors import CorruptFileError, InputError

LARGEST_FILE = 1 << 28  # bytes; a larger file is not opened
_JUNK = ("thumbs.db", "desktop.ini", "__macosx")  # what file managers leave behind, lower case
_SHARD = ".tar"
_PARTS = ("train", "test", "val")  # folders of shards that are parts of one data set
_LARGEST_LABEL = 1 << 20  # bytes of a .cls or .json file
_OPEN_SHARDS = 128  # most shards that stay open
_BLOCK = 512  # bytes; members of a tar file start at multiples
_JSON_LABELS = ("label", "class", "cls")


class FileSource:
    """The files below a folder, in a zip file or in shards, by name.

    Names contain forward slashes. Hidden files and the files of file managers, such as Thumbs.db,
    do not count. A zip file is read as a stream, and shards in place; nothing is written to disk.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        shards = find_shards(self.path)
        self.in_shards = bool(shards)
        self._members = _members_by_name(shards)
        self._is_zip = not shards and self.path.is_file()
        self._zip: tuple[int, zipfile.ZipFile] | None = None  # process id, open file

    def names(self) -> list[str]:
        """Return the sorted names of all files, and of all folders with a slash at the end."""
        archived = self.in_shards or self._is_zip
        entries = self._archived_entries() if archived else self._folder_entries()
        return sorted(entry for entry in entries if entry and _is_visible(entry))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; CorruptFileError for anything but a regular file."""
        if self.in_shards:
            shard, member = self._members[name]
            _check_size(self.path / name, member.size)
            content = _open_shard(shard).read(member.offset, member.size)
            if len(content) != member.size:
                raise CorruptFileError(f"{shard.path}: the file ends within {name}")
            return io.BytesIO(content)
        if self._is_zip:
            found = self._open_zip().getinfo(name)
            _check_size(self.path / name, found.file_size)
            return self._open_zip().open(found)
        return open_file(self.path / name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.open(name) as file:
            return file.read()

    def path_of(self, name: str) -> str:
        """Return the path of a file for a message."""
        return str(self.path / name)

    def _archived_entries(self) -> Iterable[str]:
        names = self._members if self.in_shards else self._open_zip().namelist()
        folders = {f"{parent}/" for name in names for parent in PurePosixPath(name).parents}
        return {*names, *folders} - {"./"}

    def _folder_entries(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.path, onerror=_refuse_folder, followlinks=True):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and not _leads_back(folder, name)
            ]
            above = Path(folder).relative_to(self.path).as_posix()
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
    _check_size(path, path.stat().st_size)
    return path.open("rb")


def _check_size(path: Path, size: int) -> None:
    if size > LARGEST_FILE:
        raise CorruptFileError(
            f"{path}: the file has {size} bytes; at most {LARGEST_FILE} are read"
        )


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


# --- shards -----------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A tar file; after a change it is another shard."""

    path: Path
    size: int
    changed: int  # time of the last change, in ns


class Member(NamedTuple):
    """The place of a file in a shard."""

    name: str
    offset: int
    size: int


def find_shards(path: Path) -> dict[Path, str]:
    """Return the shards at a path, with the folder that their names begin with; {} if none.

    Shards are a tar file, a folder that contains tar files and no folders, or a folder with such
    folders of the names train, test and val only.
    """
    if path.is_file():
        return {path: ""} if path.suffix.lower() == _SHARD else {}
    folders = {entry.name: Path(entry.path) for entry in _visible(path) if entry.is_dir()}
    if not folders:
        return dict.fromkeys(_shards_in(path), "")
    parts = {name: _shards_in(folder) if name in _PARTS else [] for name, folder in folders.items()}
    if not all(parts.values()):
        return {}
    return {shard: f"{part}/" for part, shards in parts.items() for shard in shards}


def _shards_in(folder: Path) -> list[Path]:
    """Return the tar files of a folder, sorted; none if it contains folders."""
    entries = _visible(folder)
    if any(entry.is_dir() for entry in entries):
        return []
    shards = [Path(entry.path) for entry in entries if entry.name.lower().endswith(_SHARD)]
    return sorted(shard for shard in shards if shard.is_file())


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:  # no such folder, or it cannot be read: the reader of folders says so
        return []


def _members_by_name(shards: Mapping[Path, str]) -> dict[str, tuple[Shard, Member]]:
    """Return the files of all shards; their names begin with the folder that is given."""
    places: dict[str, tuple[Shard, Member]] = {}
    for path, folder in shards.items():
        about = path.stat()
        shard = Shard(path, about.st_size, about.st_mtime_ns)
        for member in _scan(shard):
            name = f"{folder}{member.name}"
            if name in places:
                raise InputError(
                    f"{name} is in {places[name][0].path} and in {path}; photos of different "
                    "shards need different names"
                )
            places[name] = shard, member
    return places


class _OpenShard:
    """A shard that stays open. Threads and processes read it at any place: it has no position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if sys.platform != "win32":
            self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, fewer at the end of the file."""
        if sys.platform == "win32":  # it has no pread, and an open file could not be deleted
            with open(self._path, "rb") as file:
                return _read_at(file, offset, size)
        return os.pread(self._descriptor, size, offset)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@lru_cache(maxsize=_OPEN_SHARDS)
def _open_shard(shard: Shard) -> _OpenShard:
    """Return an open shard; those that were not used for long are closed."""
    return _OpenShard(shard.path)


@lru_cache(maxsize=8192)
def _scan(shard: Shard) -> tuple[Member, ...]:
    """Return the files of a shard; an unchanged shard is scanned once per process."""
    path = shard.path
    try:
        with open(path, "rb") as file:
            members = list(_members(file))
            labels = dict(_labels(file, members))
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"{path}: not a readable tar file without compression: {error}"
        ) from error
    return tuple(_named(members, labels, path.stem))


def _members(file: IO[bytes]) -> Iterator[Member]:
    """Yield the regular files of a tar file with their places; links and devices are skipped."""
    end = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for found in archive:
            end = found.offset_data
            if found.issparse():
                raise ValueError(f"{found.name} is a sparse file")
            if found.isreg():
                end += found.size
                yield Member(
                    str(PurePosixPath(found.name.lstrip("/"))), found.offset_data, found.size
                )
    if any(_read_at(file, -(-end // _BLOCK) * _BLOCK, _BLOCK)):  # there, tarfile only stops
        raise tarfile.ReadError(f"it is damaged after byte {end}")


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    """Return `size` bytes from `offset`, fewer at the end of the file."""
    file.seek(offset)
    return file.read(size)


def _labels(file: IO[bytes], members: list[Member]) -> Iterator[tuple[str, str]]:
    """Yield the key and the class of each sample with a .cls file, or a .json file with one."""
    by_kind = {kind: [m for m in members if _split(m.name)[1] == kind] for kind in ("json", "cls")}
    for kind, found in by_kind.items():  # .cls comes last and takes precedence
        for member in found:
            content = _read_at(file, member.offset, min(member.size, _LARGEST_LABEL))
            if kind == "cls":
                label = content.decode().strip()
            else:
                value = json.loads(content)
                keys = [key for key in _JSON_LABELS if isinstance(value, dict) and key in value]
                if not keys or type(value[keys[0]]) not in (str, int):
                    continue
                label = str(value[keys[0]])
            if not label or "/" in label or "\0" in label or label.startswith("."):
                raise ValueError(f"{member.name} has the label {label[:80]!r}, no name of a class")
            yield _split(member.name)[0], label


def _split(name: str) -> tuple[str, str]:
    """Return the key of a sample and the kind of a file of it: the first dot separates them."""
    folder, slash, file = name.rpartition("/")
    key, _, kind = file.partition(".")
    return f"{folder}{slash}{key}", kind.lower()


def _named(members: list[Member], labels: Mapping[str, str], shard: str) -> Iterator[Member]:
    """Yield the members under their names; of a labelled sample only the photo."""
    for member in members:
        key, kind = _split(member.name)
        if key not in labels:
            yield member
        elif "." not in kind and is_image_name(member.name):
            yield member._replace(name=f"{labels[key]}/{shard}/{member.name}")
