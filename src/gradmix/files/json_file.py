"""Read JSON from files that may contain anything, within limits on bytes, depth and containers."""

from __future__ import annotations

import os
import stat
from typing import Any

import pydantic_core

from gradmix.errors import FileError

MOST_BYTES = 64 << 20
MOST_CONTAINERS = 1 << 19
"""Lists and objects in one file: each takes at least 56 bytes of memory, its text only two."""


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    Raises:
        FileError: If the file cannot be read, is not a regular file or is too large.
    """
    name = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise FileError(f"{name} is not a regular file")
            if about.st_size > most_bytes:
                raise FileError(f"{name} has {about.st_size} bytes; the limit is {most_bytes}")
            return file.read(most_bytes + 1)
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        raise FileError(f"{name!r} cannot be read: {error}") from error


def parse_json(text: bytes, name: str) -> Any:
    """Return the values of a JSON text; NaN and infinity are refused.

    Raises:
        FileError: If the text is not JSON, or is nested too deeply, or has too many containers.
    """
    containers = text.count(b"[") + text.count(b"{")
    if containers > MOST_CONTAINERS:
        raise FileError(
            f"{name} has {containers} lists and objects; the limit is {MOST_CONTAINERS}"
        )
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:  # also of nesting beyond the parser's own limit
        raise FileError(f"{name} is not valid JSON: {error}") from None


def read_json(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Any:
    """Return the values in a JSON file; see `read_bytes` and `parse_json` for the limits."""
    return parse_json(read_bytes(path, most_bytes), os.fspath(path))
