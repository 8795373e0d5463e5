"""Write files completely or not at all, by one process at a time.

`replacing` writes to a temporary name, flushes and renames. A reader sees the old file or the new
one, even after a crash. The next writer removes the temporary file of a killed writer. A symbolic
link stays; the file it points to is replaced.

`locked` keeps other processes out. `flock` locks end with their process and work on local disks,
over NFS 4 and on most cluster file systems. Others refuse them, for example Lustre mounted without
`flock`, and NFS without a lock service. There, a lock is a claim file: a file that exists while the
lock is held.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from gradmix.errors import FileError, FileInUseError

if sys.platform != "win32":
    import fcntl

SUFFIX = ".tmp"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # there is no flock
REFRESH, POLL = 20.0, 0.2  # seconds
STALE = 120.0  # seconds; NFS clients may cache the time of a file for 60


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
                with suppress(OSError):  # its writer still holds the lock on it
                    _remove_temporary(path.parent / name)


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


def _remove_temporary(temporary: Path) -> None:
    if sys.platform == "win32":  # Windows does not remove an open file
        temporary.unlink()
        return
    with open(temporary, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


# --- locks --------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str], *, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock on `path`: only one block in all threads and processes runs at a time.

    The lock ends with the process. Folders created for the lock are removed with it, unless they
    contain something else.

    Args:
        path: The file to lock; it need not exist.
        timeout: Seconds to wait for another holder; -1 waits without limit.

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(name) if _has_locks(path.parent) else ClaimFile(name)
        lock.acquire(timeout=timeout)
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


def _has_locks(folder: Path) -> bool:
    """Return whether the file system of a folder has locks; tried on a temporary file."""
    if sys.platform == "win32":
        return True
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in NO_LOCKS
    return True


class ClaimFile:
    """A lock for file systems without `flock`: a file that only one process can create.

    The holder refreshes the time of the file every `REFRESH` seconds. A claim without a refresh for
    `STALE` seconds is removed by the next process that wants the lock: its holder has died. A
    holder that is suspended for so long loses the lock. Whether its process still runs cannot be
    checked: it may be on another machine or in another container.

    filelock's own claim files are not used: they never expire where a file system cannot exchange
    two names, as NFS and Lustre cannot.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._released = Event()

    def acquire(self, timeout: float) -> None:
        """Create the claim file; wait up to `timeout` seconds, -1 without limit, or Timeout."""
        from filelock import Timeout

        started = time.monotonic()
        while True:
            self._remove_stale()
            with suppress(FileExistsError), open(self._path, "x", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {socket.gethostname()}")  # for people who look into it
                break
            if 0 <= timeout <= time.monotonic() - started:
                raise Timeout(str(self._path))
            time.sleep(POLL)
        Thread(target=self._refresh, name="gradmix-claim", daemon=True).start()

    def release(self) -> None:
        """Stop the refreshes; the caller has removed the file."""
        self._released.set()

    def _refresh(self) -> None:
        while not self._released.wait(REFRESH):
            with suppress(OSError):  # a network file system may be away for a moment
                os.utime(self._path)

    def _remove_stale(self) -> None:
        """Remove the claim of a process that died."""
        with suppress(FileNotFoundError):
            claimed = self._path.stat().st_mtime
            if self._age(claimed) <= STALE:
                return
            aside = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
            self._path.rename(aside)
            if aside.stat().st_mtime != claimed:  # another process was faster: this is its claim
                with suppress(OSError):
                    os.link(aside, self._path)
            aside.unlink()

    def _age(self, moment: float) -> float:
        """Return the seconds since a moment, by the clock of the file system."""
        with tempfile.TemporaryFile(dir=self._path.parent) as file:
            return os.fstat(file.fileno()).st_mtime - moment
