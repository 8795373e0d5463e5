"""Write files completely or not at all: temporary name, flush, rename.

A reader sees the old file or the new one, even after a crash. The next writer removes the temporary
file of a killed writer. A symbolic link stays; the file it points to is replaced.
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
    """Open a new file that replaces `path` when the block ends without an error."""
    path = _target(path)
    remove_leftovers(path)
    temporary, file = _new_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # while it is locked: another writer would remove it
                os.replace(temporary, path)
        if sys.platform == "win32":  # Windows cannot rename an open file
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # errors of write() name no file
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, completely or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers of `path` left."""
    path = _target(path)
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name.startswith(f".{path.name}.") and name.endswith(SUFFIX):
                _remove_unless_in_use(path.parent / name)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file that a symbolic link points to, or `path` itself."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _new_temporary(path: Path) -> tuple[Path, BinaryIO]:
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # do not replace a device
        raise FileExistsError(errno.EEXIST, "this is not a regular file", str(path))
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")
        file = open(temporary, "xb")  # noqa: SIM115 (the caller closes it)
        if sys.platform == "win32":
            return temporary, file
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # another writer removed it before it was locked


def _remove_unless_in_use(temporary: Path) -> None:
    """Remove a temporary file unless its writer still holds the lock on it."""
    with suppress(OSError):
        if sys.platform == "win32":  # Windows does not remove an open file
            temporary.unlink()
            return
        with open(temporary, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
