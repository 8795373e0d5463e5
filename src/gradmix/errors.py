"""The errors of gradmix. Every message names the argument, its value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradMixError(Exception):
    """Base class of all errors that gradmix raises on purpose."""


class InputError(GradMixError, ValueError):
    """An argument or data that cannot be used; nothing has changed."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message suggests the nearest known name."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        self.kind, self.name = kind, name
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}")


class DataWarning(UserWarning):
    """A warning about data that can be learned, but probably not well."""


class DivergedError(GradMixError, ArithmeticError):
    """Training diverged: its loss or its scores are not finite."""


class DataNotFoundError(GradMixError, FileNotFoundError):
    """A data set is not on this machine and cannot be downloaded."""


class CorruptFileError(GradMixError, OSError):
    """A data file is truncated, damaged or not in the format of its name."""


class FileError(GradMixError, OSError):
    """A file of gradmix cannot be read or written: missing, damaged, or of another kind."""


ResultError = FileError
"""The name of `FileError` for result files in earlier versions."""


class FileInUseError(FileError):
    """Another process is writing the file."""


class OutOfMemoryError(GradMixError, MemoryError):
    """There is not enough memory; the message says what needed it. Nothing has changed."""


class MissingPackageError(GradMixError, ImportError):
    """An optional package is not installed."""


class WorkerError(GradMixError, RuntimeError):
    """A worker process died."""


class RankError(GradMixError, RuntimeError):
    """The processes of one run differ, or one of them ended."""
