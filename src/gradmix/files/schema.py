"""Files that may contain anything: JSON is read within limits, and schemas declare what is valid.

Every file that gradmix reads passes through a `Schema`, a pydantic model that declares the type,
range and length of each field. Tensors are fields too: `TensorOf` declares their dtype and number
of dimensions. `validate` turns a violation into a `FileError` that names the file and the field.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from typing import Any, NoReturn, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from torch import Tensor

from gradmix.errors import FileError

S = TypeVar("S", bound="Schema")
Path = str | os.PathLike[str]

MOST_BYTES = 64 << 20
MOST_CONTAINERS = 1 << 19
"""Lists and objects in one file: each takes at least 56 bytes of memory, its text only two."""


class Schema(BaseModel):
    """A declared structure: exact types, no unknown fields, unchangeable once validated."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class TensorOf:
    """Declares a tensor field; use as `Annotated[Tensor, TensorOf(torch.int64, ndim=1)]`.

    Without dtypes or `ndim`, any are allowed. `finite` refuses NaN and infinity.
    """

    def __init__(self, *dtypes: torch.dtype, ndim: int | None = None, finite: bool = False) -> None:
        self.dtypes, self.ndim, self.finite = dtypes, ndim, finite

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check an instance of `Tensor`; pydantic calls this once per declaration."""
        return core_schema.no_info_plain_validator_function(self._check)

    def _check(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise PydanticCustomError("tensor", f"is a {type(value).__name__}, not a tensor")
        if self.dtypes and value.dtype not in self.dtypes:
            wanted = " or ".join(str(dtype) for dtype in self.dtypes)
            raise PydanticCustomError("tensor", f"has dtype {value.dtype}, not {wanted}")
        if self.ndim is not None and value.ndim != self.ndim:
            raise PydanticCustomError(
                "tensor", f"has shape {tuple(value.shape)}, not {self.ndim} dimensions"
            )
        if self.finite and (value.is_floating_point() or value.is_complex()):
            # The sum is fast, and enough if it is finite.
            quick = value.dtype == torch.float32 and math.isfinite(value.sum())
            if not quick and not bool(torch.isfinite(value).all()):
                raise PydanticCustomError("tensor", "has values that are not finite")
        return value


def refuse(message: str) -> NoReturn:
    """Raise the error of a validator; `validate` reports the message with the field."""
    raise PydanticCustomError("refused", message)


def validate(schema: type[S], value: Any, path: Path) -> S:
    """Return the content of the file `path` as a `schema`; a FileError names file and field."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise FileError(f"{os.fspath(path)} is damaged: {first_violation(error)}") from None


def first_violation(error: ValidationError) -> str:
    """Return the first violation of a failed validation as "field: reason"."""
    first: Mapping[str, Any] = error.errors(include_url=False, include_input=False)[0]
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    field = ".".join(str(part)[:40] for part in first["loc"])
    return f"{field}: {message}" if field else message


# --- JSON ---------------------------------------------------------------------------------------


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; FileError for a pipe or device."""
    name = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{name!r} cannot be read: {reason}; check the path") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{name} cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file; FileError above `most_bytes` bytes."""
    name = os.fspath(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise FileError(f"{name} has {size} bytes; the limit is {most_bytes}")
        try:
            return file.read(size)
        except OSError as error:
            raise FileError(f"{name!r} cannot be read: {error}") from error


def parse_json(text: bytes, name: str) -> Any:
    """Return the values of a JSON text; a FileError refuses NaN, infinity and too many containers.

    Python's own parser keeps lone surrogates, which occur in the names of files. Faster parsers
    refuse them.
    """
    containers = text.count(b"[") + text.count(b"{")
    if containers > MOST_CONTAINERS:
        raise FileError(
            f"{name} has {containers} lists and objects; the limit is {MOST_CONTAINERS}"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise FileError(f"{name} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON: {error}") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the values in a JSON file; see `read_bytes` and `parse_json` for the limits."""
    return parse_json(read_bytes(path, most_bytes), os.fspath(path))
