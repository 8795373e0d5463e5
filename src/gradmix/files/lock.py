"""One process at a time: locks of the operating system, or claim files where it has none.

`flock` locks end with their process and work on local disks, over NFS 4 and on most cluster file
systems. Others refuse them, for example Lustre mounted without `flock`, and NFS without a lock
service. There, a lock is a claim file: a file that exists while the lock is held.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from gradmix.errors import FileError, FileInUseError

if sys.platform != "win32":
    import fcntl

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # there is no flock
REFRESH, POLL = 20.0, 0.2  # seconds
STALE = 120.0  # seconds; NFS clients may cache the time of a file for 60


@contextmanager
def locked(
    path: str | os.PathLike[str],
    *,
    timeout: float | None = 0.0,
    on_wait: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Hold the lock on `path`: only one block in all threads and processes runs at a time.

    The lock ends with the process. Folders created for the lock are removed with it, unless they
    contain something else.

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock: FileLock | ClaimFile = FileLock(name)
        if not _has_locks(path.parent):
            lock = ClaimFile(name)
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

    Args:
        path: The claim file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._released = Event()

    def acquire(self, timeout: float) -> None:
        """Create the claim file; wait for another holder up to `timeout` seconds, -1 without limit.

        Raises:
            Timeout: If another holder keeps the lock longer.
        """
        from filelock import Timeout

        started = time.monotonic()
        while not self._create():
            if 0 <= timeout <= time.monotonic() - started:
                raise Timeout(str(self._path))
            time.sleep(POLL)

    def release(self) -> None:
        """Stop the refreshes; the caller has removed the file."""
        self._released.set()

    def _create(self) -> bool:
        self._remove_stale()
        try:
            with open(self._path, "x", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {socket.gethostname()}")  # for people who look into it
        except FileExistsError:
            return False
        Thread(target=self._refresh, name="gradmix-claim", daemon=True).start()
        return True

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
