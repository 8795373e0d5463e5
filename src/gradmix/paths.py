"""Checks of paths that a caller gave. Nothing slow is imported here."""

from __future__ import annotations

import os
from pathlib import Path

from gradmix.errors import DataNotFoundError, InputError


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` with `~` replaced; InputError if it is not a possible path."""
    try:
        text = os.fspath(path)
        if isinstance(text, str) and "\0" not in text:
            return Path(text).expanduser()
    except (TypeError, RuntimeError):  # not a path; `~name` of an unknown user
        pass
    raise InputError(f"{path!r} is not a path; give the path of a file or a folder as text")


PHOTO_FOLDER = "for photos give a folder that contains a folder of images for each class"


def existing_path(path: str | os.PathLike[str], remedy: str = PHOTO_FOLDER) -> Path:
    """Return the path of a folder or a regular file; DataNotFoundError with a remedy if missing."""
    found = checked_path(path)
    if os.path.isdir(found) or os.path.isfile(found):  # unlike Path's methods, these never raise
        return found
    raise DataNotFoundError(f"{found}: no such file or folder; check the path, and {remedy}")
