"""Classifiers in files: one archive each, checked before anything is made of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmix.archive import read_archive, write_archive
from gradmix.errors import FileError, InputError
from gradmix.estimator.choices import check_params
from gradmix.estimator.inputs import Layout
from gradmix.estimator.labels import as_array
from gradmix.estimator.learned import CONTENTS, Learned, from_state

KIND = "classifier"


def write(path: str | os.PathLike[str], classifier: Any, learned: Learned) -> int:
    """Write a file; how many bytes it has."""
    state = learned.to_state()
    seed = classifier.random_state
    state["random_state"] = seed if isinstance(seed, int) else None
    return write_archive(path, KIND, state)


def read(
    path: str | os.PathLike[str],
    names: Sequence[str],
    model: Any = None,
    device: str | None = None,
) -> tuple[dict[str, Any], Learned]:
    """The parameters, of these names, and the knowledge of a classifier.

    FileError if it is no such file.
    """
    state = read_archive(path, KIND)
    contents = state.get("contents")
    if type(contents) is not int or contents != CONTENTS:
        raise FileError(
            f"{os.fspath(path)} has contents of version {str(contents)[:40]}; this gradmix reads "
            f"{CONTENTS}: install the version that wrote it or a later one"
        )
    try:
        _check(state, names)
        learned = from_state(state, model, device)
        _check_memories(learned)
    except InputError as error:
        if "model=" in str(error):  # the file is fine, a network is missing
            raise
        raise FileError(f"{os.fspath(path)} is no whole classifier: {error}") from error
    except Exception as error:
        raise FileError(
            f"{os.fspath(path)} is no whole classifier ({type(error).__name__}: {error})"
        ) from error
    params = {**learned.basis.params, "random_state": state["random_state"]}
    return params, learned


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
        if len(state[name]) != shape[0] or not all(abs(value) < 1e30 for value in state[name]):
            raise ValueError(f"{name} does not fit the samples")
    if min(state["std"]) < 1e-30:
        raise ValueError("std does not fit the samples")
    columns = state["columns"]
    if columns is not None and (len(columns) != shape[0] or {*map(type, columns)} != {str}):
        raise ValueError("the names of columns do not fit the samples")
    if type(state["random_state"]) not in (int, type(None)):
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
