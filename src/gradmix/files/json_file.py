"""Read JSON from files that may contain anything, within limits on bytes, depth and containers."""

from __future__ import annotations

import json
import os
import stat
from io import FileIO
from typing import Any, NoReturn

from gradmix.errors import FileError

MOST_BYTES = 64 << 20
MOST_CONTAINERS = 1 << 19
"""Lists and objects in one file: each takes at least 56 bytes of memory, its text only two."""


def open_regular(path: str | os.PathLike[str]) -> FileIO:
    """Open a regular file for reading, without a buffer; a pipe or device is refused at once.

    Raises:
        FileError: If the file cannot be opened or is not a regular file.
    """
    name = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except OSError as error:
        raise FileError(f"{name!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # the name contains a NUL character
        raise FileError(f"{name!r} cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{name} cannot be read: it is not a regular file")
    return FileIO(descriptor, "rb")


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    Raises:
        FileError: If the file cannot be read, is not a regular file or is too large.
    """
    name = os.fspath(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise FileError(f"{name} has {size} bytes; the limit is {most_bytes}")
        try:
            return file.readall()[: most_bytes + 1]
        except OSError as error:
            raise FileError(f"{name!r} cannot be read: {error}") from error


def parse_json(text: bytes, name: str) -> Any:
    """Return the values of a JSON text; NaN and infinity are refused.

    Python's own parser keeps lone surrogates, which occur in the names of files. Faster parsers
    refuse them.

    Raises:
        FileError: If the text is not JSON, is nested too deeply or has too many containers.
    """
    containers = text.count(b"[") + text.count(b"{")
    if containers > MOST_CONTAINERS:
        raise FileError(
            f"{name} has {containers} lists and objects; the limit is {MOST_CONTAINERS}"
        )
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise FileError(f"{name} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def read_json(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Any:
    """Return the values in a JSON file; see `read_bytes` and `parse_json` for the limits."""
    return parse_json(read_bytes(path, most_bytes), os.fspath(path))
