"""What gradmix raises. Every message names the argument, the value and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradMixError(Exception):
    """The parent of every error gradmix raises on purpose."""


class InputError(GradMixError, ValueError):
    """An argument or a piece of data that cannot be used; nothing was changed."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message suggests the nearest right one."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}")


class DataWarning(UserWarning):
    """Data that can be learned, but probably not well."""


class DivergedError(GradMixError, ArithmeticError):
    """Training whose loss is no longer a number."""


class DataNotFoundError(GradMixError, FileNotFoundError):
    """A data set that is neither on this machine nor could be downloaded."""


class CorruptFileError(GradMixError, OSError):
    """A file that is truncated, damaged or of another format than its name says."""


class ResultError(GradMixError, OSError):
    """A result file or folder that cannot be read or written."""


class FileError(GradMixError, OSError):
    """A file of gradmix's own that cannot be used: damaged, of another kind or version, no file."""


class FileInUseError(FileError):
    """A file that another process is writing."""


class MissingPackageError(GradMixError, ImportError):
    """An optional package that is not installed."""


class WorkerError(GradMixError, RuntimeError):
    """A process that computes runs for another one and died."""
