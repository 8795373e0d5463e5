"""Schemas: what each kind of file may contain, declared once and checked before use.

Every file that gradmix reads passes through a `Schema`, a pydantic model that declares the type,
range and length of each field. Tensors are fields too: `TensorOf` declares their dtype and number
of dimensions. `validate` turns a violation into a `FileError` that names the file and the field.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from torch import Tensor

from gradmix.errors import FileError

S = TypeVar("S", bound="Schema")


class Schema(BaseModel):
    """A declared structure: exact types, no unknown fields, unchangeable once validated."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class TensorOf:
    """Declares a tensor field; use as `Annotated[Tensor, TensorOf(torch.int64, ndim=1)]`.

    Args:
        dtypes: The dtypes that are allowed; none given means any.
        ndim: The number of dimensions; None means any.
        finite: Whether NaN and infinity are refused.
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
        if self.finite and not _is_finite(value):
            raise PydanticCustomError("tensor", "has values that are not finite")
        return value


def refuse(message: str) -> NoReturn:
    """Raise the error of a validator; `validate` reports the message with the field."""
    raise PydanticCustomError("refused", message)


def _is_finite(value: Tensor) -> bool:
    if not (value.is_floating_point() or value.is_complex()):
        return True
    if value.dtype == torch.float32 and math.isfinite(value.sum()):  # fast, and enough if finite
        return True
    return bool(torch.isfinite(value).all())


def validate(schema: type[S], value: Any, path: str | os.PathLike[str]) -> S:
    """Return `value` as an instance of `schema`.

    Args:
        schema: The declared structure.
        value: What the file contains, usually nested dicts and lists.
        path: The file, for the error message.

    Raises:
        FileError: If the value violates the schema; the message names the file and the field.
    """
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
