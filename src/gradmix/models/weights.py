"""Weights of networks: read from local files, whose code never runs, and loaded by name."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from gradmix.errors import CorruptFileError, InputError
from gradmix.models.parallel import split_like


def load_weights(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load saved weights with the network's names, shapes and dtypes.

    A network on the meta device takes the saved tensors as its own.
    """
    own = network.state_dict()
    if own.keys() != saved.keys():
        names = ", ".join(sorted(own.keys() ^ saved.keys())[:3])
        raise InputError(f"the saved weights belong to another network ({names})")
    empty = any(value.is_meta for value in own.values())
    fitting = {}
    for name, value in own.items():
        given = saved[name]
        if given.shape != value.shape or given.dtype != value.dtype:
            raise InputError(
                f"{name} is saved as {given.dtype} {tuple(given.shape)}; "
                f"this network has {value.dtype} {tuple(value.shape)}"
            )
        if not empty:
            given = split_like(given, value)
        elif given.stride() != value.stride():  # it becomes the network's own
            given = torch.empty_like(value, device=given.device).copy_(given)
        fitting[name] = given
    network.load_state_dict(fitting, assign=empty)


def load_matching(module: nn.Module, given: Mapping[str, Tensor], wanted: Sequence[str]) -> None:
    """Copy tensors into a module by name; all `wanted` ones must be given, and no others.

    The module's other tensors keep their values. If a tensor does not fit, nothing changes.
    """
    own = module.state_dict()
    problems = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "misshaped": [
            f"{name} is {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
            for name in wanted
            if name in given and given[name].shape != own[name].shape
        ],
    }
    found = [
        f"{kind}: {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if names[8:] else "")
        for kind, names in problems.items()
        if names
    ]
    if found:
        raise InputError(f"the weights do not fit this network: {'; '.join(found)}")
    module.load_state_dict(given, strict=False)


def read_weights(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a local file: safetensors, or a state dict without other objects."""
    place = Path(path)
    if not place.is_file():
        raise InputError(f"weights is {fspath(path)!r}; there is no such file")
    if place.suffix == ".safetensors":
        try:
            return load_bytes(place.read_bytes())
        except SafetensorError as error:
            raise CorruptFileError(f"{place} cannot be read as safetensors: {error}") from None
    try:  # refuses anything but tensors, so nothing in the file runs
        state = torch.load(place, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CorruptFileError(f"{place} cannot be read as weights only: {reason}") from None
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise CorruptFileError(f"{place} does not hold a state dict (names and tensors)")
    return dict(state)


def weights_version(path: str) -> str:
    """Return the first twelve characters of a file's SHA-256 digest; empty without such a file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    except (OSError, ValueError):  # ValueError: the name contains a NUL character
        return ""


def digest_of(module: nn.Module) -> str:
    """Return the SHA-256 digest of a module's weights: of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        values = tensor.detach().to("cpu").contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
