"""Search, verification and download of the files of a data set.

The search path; the first hit counts:

1. `$GRADMIX_DATA/<data set>`; the variable may list several folders, like `$PATH`;
2. the user's cache, which holds downloads;
3. `/usr/share/datasets/<data set>`, the folder of Debian's `dataset-*` packages;
4. a download from the mirrors into the cache, unless `$GRADMIX_OFFLINE` is set.

A `FileSet` is a set of single files, with or without `.gz`, verified by the digest of their
unpacked content. An `Archive` is one packed file, verified by its digest, or its unpacked folder,
which the reader of the data set verifies. ImageNet must not be redistributed: its folder is
searched for and never downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import platformdirs

from gradmix.errors import CorruptFileError, DataNotFoundError
from gradmix.files.atomic_write import replacing

DATA_VARIABLE = "GRADMIX_DATA"
OFFLINE_VARIABLE = "GRADMIX_OFFLINE"
_SYSTEM_FOLDER = Path("/usr/share/datasets")
_IDX_KINDS = ("images-idx3", "labels-idx1")
_GZIP_MAGIC = b"\x1f\x8b"
_TIMEOUT = 30  # seconds to wait for an answer before trying the next mirror


@dataclass(frozen=True)
class FileSet:
    """The files of one data set and their sources."""

    name: str  # name of the folder in every place
    sha256: Mapping[str, str]  # file name without .gz -> digest of the unpacked content
    mirrors: tuple[str, ...]  # addresses that end in /; each serves <file name>.gz
    package: str | None = None  # the Debian package that holds it


@dataclass(frozen=True)
class Archive:
    """The packed file of a data set and its sources."""

    name: str  # name of the folder in every place
    file: str  # the name of the packed file
    sha256: str  # of the packed file
    folder: str  # name of the unpacked folder
    marker: str  # a file that identifies this folder
    mirrors: tuple[str, ...]  # addresses that end in /; each serves `file`


def _idx_digests(*digests: str) -> dict[str, str]:
    files = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in _IDX_KINDS]
    return dict(zip(files, digests, strict=True))


MNIST = FileSet(
    name="mnist",
    sha256=_idx_digests(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

FASHION_MNIST = FileSet(
    name="fashion-mnist",
    sha256=_idx_digests(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    package="dataset-fashion-mnist",
)

CIFAR_10 = Archive(
    name="cifar-10",
    file="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    folder="cifar-10-batches-bin",
    marker="batches.meta.txt",
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
)

CIFAR_100 = Archive(
    name="cifar-100",
    file="cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    folder="cifar-100-binary",
    marker="fine_label_names.txt",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
)

TINY_IMAGENET = Archive(
    name="tiny-imagenet",
    file="tiny-imagenet-200.zip",
    sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    folder="tiny-imagenet-200",
    marker="wnids.txt",
    mirrors=("http://cs231n.stanford.edu/",),
)


def locate(files: FileSet) -> dict[str, Path]:
    """Return a verified path for every file of the set; missing files are downloaded.

    Raises:
        CorruptFileError: A file has the wrong content. It is not used, and the search stops.
        DataNotFoundError: A file was not found; the message lists all places.
    """
    places = search_path(files.name)
    names = ", ".join(f"{file}.gz" for file in files.sha256)
    remedies = [
        *([f"apt-get install {files.package}"] if files.package else []),
        f"put {names} (or the same without .gz) into a folder <folder>/{files.name}, then "
        f"export {DATA_VARIABLE}=<folder>",
        *(f"the files can be downloaded from {mirror}" for mirror in files.mirrors),
    ]
    found = {}
    for name, digest in files.sha256.items():
        candidates = [place / file for place in places for file in (name, f"{name}.gz")]
        existing = next(filter(Path.is_file, candidates), None)
        if existing is not None:
            _verify(existing, digest, unpacked=True)
        else:
            urls = [f"{mirror}{name}.gz" for mirror in files.mirrors]
            existing = _download(files.name, urls, digest, name, remedies, unpacked=True)
        found[name] = existing
    return found


def locate_archive(archive: Archive) -> Path:
    """Return the verified archive or its unpacked folder; see `locate` for errors.

    In each place, the folder takes precedence over the archive.
    """
    for place in search_path(archive.name):
        for folder in (place, place / archive.folder):
            if (folder / archive.marker).is_file():
                return folder
        packed = place / archive.file
        if packed.is_file():
            _verify(packed, archive.sha256)
            return packed
    urls = [f"{mirror}{archive.file}" for mirror in archive.mirrors]
    remedies = [
        f"put {archive.file} or the unpacked {archive.folder} into a folder "
        f"<folder>/{archive.name}, then export {DATA_VARIABLE}=<folder>",
        *(f"it can be downloaded from {url}" for url in urls),
    ]
    return _download(archive.name, urls, archive.sha256, archive.file, remedies)


def search_path(name: str) -> list[Path]:
    """Return the folders that are searched for data set `name`, in order."""
    listed = os.environ.get(DATA_VARIABLE, "").split(os.pathsep)
    own = [Path(folder).expanduser() / name for folder in listed if folder]
    return [*own, cache_folder(name), _SYSTEM_FOLDER / name]


def cache_folder(name: str) -> Path:
    """Return the cache folder for downloads of data set `name`."""
    return Path(platformdirs.user_cache_dir("gradmix")) / name


def sha256_of(path: Path, *, unpacked: bool = False) -> str:
    """Return the SHA-256 of a file, or of its content after gzip decompression.

    The same content can be compressed in many ways. Only the second digest identifies it.
    """
    digest = hashlib.sha256()
    with open_unpacked(path) if unpacked else path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, through gzip if it starts like a gzip file.

    Damaged gzip data raise CorruptFileError.
    """
    with path.open("rb") as raw:
        packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield cast(BinaryIO, stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorruptFileError(f"{path}: the gzip data are damaged: {error}") from error


def _verify(path: Path, expected: str, *, unpacked: bool = False) -> None:
    actual = sha256_of(path, unpacked=unpacked)
    if actual != expected:
        what = "its unpacked content" if unpacked else "the file"
        raise CorruptFileError(
            f"{path}: the content is wrong: the SHA-256 of {what} is "
            f"{actual}, expected {expected}; remove or replace it"
        )


def _download(
    data_set: str,
    urls: Sequence[str],
    sha256: str,
    what: str,
    remedies: list[str],
    *,
    unpacked: bool = False,
) -> Path:
    """Return the file from the first address that serves the right content, in the cache."""
    if os.environ.get(OFFLINE_VARIABLE, "0") not in ("", "0"):
        reason = f"no download, because {OFFLINE_VARIABLE} is set"
        raise not_found(what, data_set, remedies, [reason])
    failures = []
    for url in urls:
        target = cache_folder(data_set) / url.rsplit("/", 1)[-1]
        try:
            _fetch(url, target, sha256, unpacked)
            return target
        except OSError as error:  # includes the errors of requests, and CorruptFileError
            failures.append(f"{url}: {error}")
    raise not_found(what, data_set, remedies, failures)


def _fetch(url: str, target: Path, sha256: str, unpacked: bool) -> None:
    """Download a file, with a progress bar on a terminal; it appears once it is verified."""
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    asked = {"Accept-Encoding": "identity"}  # the file as it is
    with requests.get(url, stream=True, timeout=_TIMEOUT, headers=asked) as answer, bar:
        answer.raise_for_status()
        task = bar.add_task(target.name, total=int(answer.headers.get("Content-Length", 0)) or None)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            for chunk in answer.iter_content(1 << 20):
                file.write(chunk)
                bar.advance(task, len(chunk))
            file.flush()
            _verify(Path(file.name), sha256, unpacked=unpacked)


def not_found(
    what: str, data_set: str, remedies: list[str], failures: Sequence[str] = ()
) -> DataNotFoundError:
    """Return the error that lists the searched places and the remedies."""
    folders = search_path(data_set)
    parts = (
        (
            f"{what} of {data_set} is not on this machine. Searched:",
            [f"{folder}{'' if folder.is_dir() else ' (no such folder)'}" for folder in folders],
        ),
        ("Download:", failures or ["it must not be redistributed"]),
        ("To get it, either:" if len(remedies) > 1 else "To get it:", remedies),
    )
    return DataNotFoundError(
        "\n".join(line for head, items in parts for line in (head, *(f"  - {i}" for i in items)))
    )
