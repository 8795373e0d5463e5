"""Keep two writers of one file apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradmix.errors import FileError, FileInUseError


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
