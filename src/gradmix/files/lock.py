"""Two writers of one file, kept apart."""

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
    """Within it, nobody else is in such a block for `path`, in this process or another.

    Waits up to `timeout` seconds (None: for ever), having called `on_wait` if it has to; then
    FileInUseError. The lock of a process ends with it, however it ends. Folders that the lock
    needed go with it if nothing else is in them.
    """
    from filelock import FileLock, Timeout

    path = Path(path)
    if not path.name:
        raise FileError(f"{path} is a folder; give a file")
    name = path.with_name(f".{path.name}.lock")
    made = [folder for folder in path.parents if not folder.exists()]  # the innermost first
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
            f"{path} is in use by another process; wait until that is done, or use another file"
        ) from None
    except OSError as error:
        raise FileError(f"{path} cannot be locked: {error}") from error
    try:
        yield
    finally:
        if os.name == "posix":  # whoever has it open already notices that it is gone
            name.unlink(missing_ok=True)
        lock.release()
        for folder in made:
            with suppress(OSError):  # something is in it
                folder.rmdir()
