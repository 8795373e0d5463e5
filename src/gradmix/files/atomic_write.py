"""Files that are whole: written to a temporary name, flushed and renamed.

A reader sees the old file or the new one, also after a crash. What a killed writer leaves behind
is removed by the next one. Symbolic links stay, and what they point to is replaced.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

SUFFIX = ".tmp"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file to write, which becomes `path` at the end; after an error nothing has changed."""
    path = _target(path)
    remove_leftovers(path)
    temporary, file = _new_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # while it is locked, so that nobody takes it for left over
                os.replace(temporary, path)
        if sys.platform == "win32":  # where open files cannot be renamed
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # writing names no file
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole file of text."""
    with replacing(path) as file:
        file.write(text.encode())


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed writers of `path`."""
    path = _target(path)
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name.startswith(f".{path.name}.") and name.endswith(SUFFIX):
                _remove_unless_in_use(path.parent / name)


def _target(path: str | os.PathLike[str]) -> Path:
    """The file itself, where `path` is a symbolic link to it."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _new_temporary(path: Path) -> tuple[Path, BinaryIO]:
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device would be replaced
        raise FileExistsError(errno.EEXIST, "there is something that is no file", str(path))
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")
        file = open(temporary, "xb")  # noqa: SIM115 (the caller closes it)
        if sys.platform == "win32":
            return temporary, file
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # removed by another writer before it was locked


def _remove_unless_in_use(temporary: Path) -> None:
    """A writer holds a lock on its file, which ends with the process."""
    with suppress(OSError):
        if sys.platform == "win32":  # where open files cannot be removed
            temporary.unlink()
            return
        with open(temporary, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
