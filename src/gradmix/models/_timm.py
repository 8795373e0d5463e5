"""timm's networks, imported when used (extra `gradmix[timm]`).

timm imports torchvision, whose compiled operators exist only beside the PyTorch build they were
compiled for. Beside another one, the import stops at the first of two missing operators. Declaring
both lets it succeed. No network of timm calls them.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import nn

from gradmix.errors import InputError, MissingPackageError


class Created(NamedTuple):
    """A network of timm without its classifier, and the input that it expects."""

    module: nn.Module
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def create(name: str, *, pretrained: bool) -> Created:
    """Return timm's network `name`, with or without published weights."""
    timm = import_timm()
    if not timm.is_model(name):
        raise InputError(f"model is 'timm/{name}'; timm has no such model (see timm.list_models)")
    module: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0)
    config = timm.data.resolve_model_data_config(module)
    return Created(module, config["input_size"][-1], tuple(config["mean"]), tuple(config["std"]))


def import_timm() -> Any:
    """Return the package timm, after declaring what torchvision needs.

    Raises:
        MissingPackageError: If timm or torchvision is not installed or does not import.
    """
    try:
        return import_module("timm")
    except ImportError as error:
        raise _missing(error) from error
    except RuntimeError:  # "operator torchvision::nms does not exist"
        pass
    _declare_missing_operators()
    try:
        return import_module("timm")
    except (ImportError, RuntimeError) as error:
        raise _missing(error) from error


def _missing(error: Exception) -> MissingPackageError:
    return MissingPackageError(
        f"timm cannot be imported ({str(error).splitlines()[0]}): pip install 'gradmix[timm]'"
    )


def _declare_missing_operators() -> None:
    """Declare the operators whose absence stops the import of torchvision."""
    for name in ("nms", "qnms"):
        with suppress(RuntimeError):  # it is declared already
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float t) -> Tensor")
