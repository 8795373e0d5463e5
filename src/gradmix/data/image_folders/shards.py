"""Photos in tar files, called shards: an index of their members, and reads at their offsets.

A member is named by its path in the shard, so that shards contain what a folder would:

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
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from gradmix.data.image_folders.decode import is_image_name
from gradmix.errors import CorruptFileError, InputError

SUFFIX = ".tar"
PARTS = ("train", "test", "val")  # folders of shards that are parts of one data set
_LARGEST_LABEL = 1 << 20  # bytes of a .cls or .json file
_BLOCK = 512  # bytes; members of a tar file start at multiples
_JSON_LABELS = ("label", "class", "cls")


class Member(NamedTuple):
    """The place of a file in a shard."""

    name: str
    offset: int
    size: int


class Shards:
    """The files in shards, by name.

    Args:
        paths: The shards. The names of their files begin with the given folder, if there is one.
    """

    def __init__(self, paths: Mapping[Path, str]) -> None:
        self._places: dict[str, tuple[Path, Member]] = {}
        for path, folder in paths.items():
            for member in _index(path):
                name = f"{folder}{member.name}"
                if name in self._places:
                    raise InputError(
                        f"{name} is in {self._places[name][0]} and in {path}; photos of different "
                        "shards need different names"
                    )
                self._places[name] = path, member

    def names(self) -> Iterator[str]:
        """Return the names of all files."""
        return iter(self._places)

    def open(self, name: str) -> IO[bytes]:
        """Return a file of a shard, read whole; CorruptFileError if that is impossible.

        Every read opens the shard anew: threads and processes share no position in it, and the
        number of open files does not grow with the number of shards.
        """
        path, member = self._places[name]
        with open(path, "rb", buffering=0) as file:
            content = _read_at(file, member.offset, member.size)
        if len(content) != member.size:
            raise CorruptFileError(f"{path}: the file ends within {name}")
        return io.BytesIO(content)

    def size_of(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._places[name][1].size


def find_shards(path: Path) -> dict[Path, str]:
    """Return the shards at a path, with the folder that their names begin with; {} if none.

    Shards are a tar file, a folder that contains tar files and no folders, or a folder with such
    folders of the names train, test and val only.
    """
    if path.is_file():
        return {path: ""} if path.suffix.lower() == SUFFIX else {}
    found = _shards_in(path)
    if found:
        return dict.fromkeys(found, "")
    folders = [entry for entry in _visible(path) if entry.is_dir()]
    if not folders or not all(folder.name in PARTS for folder in folders):
        return {}
    parts = {folder.name: _shards_in(Path(folder.path)) for folder in folders}
    if not all(parts.values()):
        return {}
    return {shard: f"{part}/" for part, shards in parts.items() for shard in shards}


def _shards_in(folder: Path) -> list[Path]:
    """Return the tar files of a folder, sorted; none if it contains folders."""
    entries = _visible(folder)
    if any(entry.is_dir() for entry in entries):
        return []
    shards = [Path(entry.path) for entry in entries if entry.name.lower().endswith(SUFFIX)]
    return sorted(shard for shard in shards if shard.is_file())


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:  # no such folder, or it cannot be read: the reader of folders says so
        return []


# --- the index --------------------------------------------------------------------------------


def _index(path: Path) -> tuple[Member, ...]:
    """Return the files of a shard; an unchanged shard is scanned once per process."""
    about = path.stat()
    return _scan(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=8192)
def _scan(path: Path, _size: int, _changed: int) -> tuple[Member, ...]:
    """Return the files of a shard by their names in it, labelled samples by their class."""
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
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# --- labels of WebDataset ---------------------------------------------------------------------


def _labels(file: IO[bytes], members: list[Member]) -> Iterator[tuple[str, str]]:
    """Yield the key and the class of each sample with a .cls file, or a .json file with one."""
    by_kind = {kind: [m for m in members if _split(m.name)[1] == kind] for kind in ("json", "cls")}
    for kind, found in by_kind.items():  # .cls comes last and takes precedence
        for member in found:
            content = _read_at(file, member.offset, min(member.size, _LARGEST_LABEL))
            label = content.decode().strip() if kind == "cls" else _json_label(content)
            if label is None:
                continue
            if not label or "/" in label or "\0" in label or label.startswith("."):
                raise ValueError(f"{member.name} has the label {label[:80]!r}, no name of a class")
            yield _split(member.name)[0], label


def _json_label(content: bytes) -> str | None:
    """Return the class in the JSON file of a sample; None if it contains none."""
    value = json.loads(content)
    found = [value[key] for key in _JSON_LABELS if key in value] if isinstance(value, dict) else []
    return str(found[0]) if found and type(found[0]) in (str, int) else None


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
