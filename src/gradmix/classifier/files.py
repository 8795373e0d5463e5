"""Classifiers in files: one archive each, checked before anything is made of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.classifier.choices import check_params
from gradmix.classifier.inputs import Layout
from gradmix.classifier.labels import as_array
from gradmix.classifier.learned import CONTENTS, Learned, from_state
from gradmix.errors import FileError, InputError
from gradmix.files import read_archive, write_archive
from gradmix.training.build import pick_device

KIND = "classifier"


def write(path: str | os.PathLike[str], classifier: Any, learned: Learned) -> int:
    """Write a file; how many bytes it has."""
    state = learned.to_state()
    changed = _changed(classifier._params(), learned.basis.params)
    if changed:  # since it last learned; what was learned goes with the others
        state["changed"] = changed
    state["random_state"] = _seed(classifier.random_state)
    return write_archive(path, KIND, state)


def _changed(params: Mapping[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are not those of the last call; networks have no place in a file."""
    return {
        name: value
        for name, value in params.items()
        if not isinstance(value, nn.Module) and value != learned[name]
    }


def _seed(given: Any) -> int | None:
    """A random_state as files have it: numbers only, not generators."""
    if isinstance(given, np.integer):
        return int(given)
    return given if isinstance(given, int) else None


def read(
    path: str | os.PathLike[str],
    names: Sequence[str],
    model: Any = None,
    device: str | None = None,
) -> tuple[dict[str, Any], Learned]:
    """The parameters, of these names, and the knowledge of a classifier.

    FileError if it is no such file, InputError if `model` or `device` is not what it needs.
    """
    if device is not None:
        _check_device(device)
    state = read_archive(path, KIND)
    contents = state.get("contents")
    if type(contents) is not int or contents != CONTENTS:
        raise FileError(
            f"{os.fspath(path)} has contents of version {str(contents)[:40]}; this gradmix reads "
            f"{CONTENTS}: install the version that wrote it or a later one"
        )
    changed = state.get("changed", {})
    with _naming(path):
        _check(state, names)
        _check_changed(state["params"], changed)
        network = state["model"]
    _check_model(path, network, model)
    if device is None:
        device = changed.get("device", state["params"]["device"])
        _check_saved_device(path, device)
    with _naming(path) if network is not None else _naming_model(path, model):
        learned = from_state(state, model, device)
    with _naming(path):
        _check_memories(learned)
    return {**learned.basis.params, **changed, "random_state": state["random_state"]}, learned


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong within is the file's fault."""
    try:
        yield
    except InputError as error:
        raise FileError(f"{os.fspath(path)} is no whole classifier: {error}") from error
    except Exception as error:
        raise FileError(
            f"{os.fspath(path)} is no whole classifier ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _naming_model(path: str | os.PathLike[str], model: nn.Module) -> Iterator[None]:
    """Whatever goes wrong within is the fault of a network that was given."""
    try:
        yield
    except Exception as error:
        raise InputError(
            f"model is a {type(model).__name__} that does not fit {os.fspath(path)}; give one of "
            f"the same layers as when it was saved: {error}"
        ) from error


def _check_device(device: Any) -> None:
    """InputError unless it can be used here."""
    try:
        pick_device(device)
    except InputError:
        raise
    except Exception as error:  # no text, or a number that Fabric does not know
        raise InputError(
            f"device is {device!r}; give auto, cpu, cuda, mps or, say, 'cuda:1'"
        ) from error


def _check_saved_device(path: str | os.PathLike[str], device: str) -> None:
    """FileError unless the device in a file can be used here."""
    try:
        _check_device(device)
    except InputError as error:
        raise FileError(
            f"{os.fspath(path)} was saved with a device that is not here; load it with another, "
            f"say device='cpu': {error}"
        ) from error


def _check_model(path: str | os.PathLike[str], network: Any, model: Any) -> None:
    """InputError unless a network is given exactly if the file has none by name."""
    if network is None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is {model!r}; {os.fspath(path)} was made with a network of your own: pass it "
            "as model= to load it"
        )
    if network is not None and model is not None:
        given = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(
            f"model is {given}; {os.fspath(path)} has its own network {str(network)[:40]!r}: leave "
            "out model="
        )


def _check_changed(params: Mapping[str, Any], changed: Any) -> None:
    """Parameters set after learning make sense, too; what was learned does not follow them."""
    if not isinstance(changed, dict) or not {*changed} <= {*params}:
        raise ValueError(f"the changed parameters are {str(changed)[:80]}")
    now = {**params, **changed}
    check_params({**now, "model": now["model"] or "auto"})


def _check(state: Mapping[str, Any], names: Sequence[str]) -> None:
    """What can be wrong before networks are made."""
    params = state["params"]
    if {*params, "random_state"} != {*names}:
        raise ValueError(f"the parameters are {str([*params])[:80]}")
    check_params({**params, "model": params["model"] or "auto"})
    shape = state["shape"]
    if not (
        isinstance(shape, list)
        and len(shape) in (1, 3)
        and all(type(side) is int and 1 <= side < 2**24 for side in shape)
    ):
        raise ValueError(f"shape is {str(shape)[:80]}")
    known = state["known"]
    labels = [*known, *state["declared"]]
    kinds = {type(label) for label in labels}
    if not known or len(kinds) != 1 or not kinds <= {str, int, bool}:
        raise ValueError(f"the classes are {str(known)[:80]}")
    array = as_array(labels)
    if array.dtype.kind not in "Uib" or array.tolist() != labels:  # large, or ending in a NUL
        raise ValueError("a class has a name that no array can hold")
    if len(set(known)) != len(known):
        raise ValueError("a class is there twice")
    counts = state["counts"]
    if len(counts) != len(known) or not all(type(count) is int and count > 0 for count in counts):
        raise ValueError("the numbers of samples do not fit the classes")
    for name in ("mean", "std"):
        if not isinstance(state[name], (list, tuple)):
            raise ValueError(f"{name} is {str(state[name])[:40]}")
        if len(state[name]) != shape[0] or not all(map(math.isfinite, state[name])):
            raise ValueError(f"{name} does not fit the samples")
    mean, std = (torch.tensor(state[name], dtype=torch.float32) for name in ("mean", "std"))
    if not bool(torch.isfinite(mean).all()) or not bool((std > 0).all()):  # as they are used
        raise ValueError("mean or std does not fit the samples")
    columns = state["columns"]
    if columns is not None and (len(columns) != shape[0] or {*map(type, columns)} != {str}):
        raise ValueError("the names of columns do not fit the samples")
    if type(state["random_state"]) not in (int, bool, type(None)):
        raise ValueError(f"random_state is {str(state['random_state'])[:40]}")
    if not state["history"] or type(state["finished"]) is not str:
        raise ValueError("there is no history")
    for weights in state["training"]["method"]["networks"].values():
        for name, value in weights.items():
            if value.is_floating_point() and not math.isfinite(value.sum()):
                raise ValueError(f"{name} is not finite")


def _check_memories(learned: Learned) -> None:
    """The memory's samples are of known classes and of the right form."""
    known, layout = len(learned.labels.known), learned.basis.layout
    outputs = learned.method.head.out_features
    if outputs < known or learned.method.seen != known:
        raise ValueError(f"{outputs} outputs for {known} classes")
    for memory in (learned.method.memory, learned.holdout):
        if memory is not None:
            _check_samples(memory.state_dict(), known, layout)
    past = learned.method.past()  # more than the memory, where all is kept
    if past.y is not learned.method.memory.y:
        _check_samples({"x": past.x, "y": past.y, "extras": {}}, known, layout)


def _check_samples(state: Mapping[str, Any], known: int, layout: Layout) -> None:
    x, y, priority = state["x"], state["y"], state.get("priority", state["y"])
    rows: list[Tensor] = [x, priority, *state["extras"].values()]
    if y.dtype != torch.int64 or y.ndim != 1 or any(len(part) != len(y) for part in rows):
        raise ValueError("the memory's rows are not of one number")
    wanted = torch.uint8 if layout.images else torch.float32
    if len(y) and (
        tuple(x.shape[1:]) != layout.shape
        or x.dtype != wanted
        or priority.ndim != 1
        or priority.is_complex()
        or int(y.min()) < 0
        or int(y.max()) >= known
        or not (layout.images or bool(torch.isfinite(x).all()))
    ):
        raise ValueError("the memory does not fit the classes or the samples")
