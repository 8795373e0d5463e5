"""Write files completely or not at all, one writer at a time: temporary name, flush, rename.

A reader sees the old file or the new one, even after a crash. The next writer removes the temporary
file of a killed writer. A symbolic link stays; the file it points to is replaced.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gradmix.errors import FileError, FileInUseError

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


# --- one writer at a time -----------------------------------------------------------------------


@contextmanager
def locked(
    path: str | os.PathLike[str],
    *,
    timeout: float | None = 0.0,
    on_wait: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Hold the lock on `path`: only one block in all threads and processes runs at a time.

    The system releases the lock when the process ends. Folders created for the lock are removed
    with it, unless they contain something else.

    Args:
        path: The file to lock; it need not exist.
        timeout: Seconds to wait for another holder; None waits without limit.
        on_wait: Called once before waiting.

    Raises:
        FileInUseError: If another holder keeps the lock longer than `timeout`.
        FileError: If the lock cannot be created.
    """
    from filelock import FileLock, Timeout

    path = Path(path)
    if not path.name:
        raise FileError(f"{path} is a folder; give the name of a file")
    name = path.with_name(f".{path.name}.lock")
    made = [folder for folder in path.parents if not folder.exists()]  # innermost first
    lock = FileLock(name)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if on_wait is not None and timeout != 0:
                on_wait()
            lock.acquire(timeout=-1 if timeout is None else timeout)
    except Timeout:
        raise FileInUseError(
            f"{path} is in use by another process; wait until it is done, or use another file"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        raise FileError(f"{str(path)!r} cannot be locked: {error}") from error
    try:
        yield
    finally:
        if os.name == "posix":  # a process that waits for it notices that it is gone
            name.unlink(missing_ok=True)
        lock.release()
        for folder in made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
