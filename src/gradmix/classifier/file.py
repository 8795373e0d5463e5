"""Classifier files: the schema, reading and writing.

The schema checks types, ranges, lengths, and whether the parts fit each other, before a network is
created. A classifier whose predictions are not finite is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor, nn

from gradmix.classifier.inputs import Label, is_out_of_memory
from gradmix.classifier.report import Report
from gradmix.classifier.setup import check_params
from gradmix.classifier.state import (
    CONTENTS,
    EncodedImages,
    Learned,
    PicturesState,
    decode_images,
    encode_images,
    from_state,
    map_tensors,
    sample_parts,
)
from gradmix.errors import FileError, InputError, MissingPackageError
from gradmix.files import read_state_file, write_state_file
from gradmix.files.schema import Path, Schema, refuse, validate
from gradmix.settings import check
from gradmix.training.build import pick_device
from gradmix.training.state_schema import MemoryState, TrainingState

KIND = "classifier"
ENCODED = 2  # version of the contents of a file with encoded images; otherwise it is `CONTENTS`
PROBES, PROBE_NUMBERS = 16, 2**16  # samples, and their numbers, that must have finite predictions

# --- the schema -----------------------------------------------------------------------------


def _check_params(params: dict[str, Any]) -> dict[str, Any]:
    """Check the parameters of a file like those of a call; a caller's network is not stored."""
    map_tensors(params, lambda _: refuse("contains a tensor"))
    unnamed = {"model": "auto", "weights": None, "finetune": None}
    try:
        check_params({**params, **({} if params["model"] else unnamed)})
    except InputError as error:
        refuse(str(error))
    return params


class _Features(Schema):
    """The pretrained backbone whose embeddings are the samples."""

    name: str
    size: Annotated[int, Field(ge=8, le=4096)]
    digest: str


class ClassifierState(Schema):
    """The complete content of a classifier file."""

    contents: Literal[1]
    params: Annotated[dict[str, Any], AfterValidator(_check_params)]
    shape: list[Annotated[int, Field(ge=1, lt=2**24)]]
    columns: list[str] | None
    model: str | None
    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]
    seed: Annotated[int, Field(ge=0)]
    known: Annotated[list[Label], Field(min_length=1)]
    declared: list[Label]
    counts: list[Annotated[int, Field(ge=1)]]
    history: Annotated[list[Report], Field(min_length=1)]
    finished: str
    training: TrainingState
    holdout: MemoryState | None
    features: _Features | None = None
    pictures: PicturesState | None = None
    changed: dict[str, Any] = Field(default_factory=dict)
    random_state: int | bool | None

    @model_validator(mode="after")
    def _check(self) -> ClassifierState:
        """The parts fit each other."""
        _check_params({**self.params, **self.changed})
        self._check_labels()
        self._check_layout()
        known, method = len(self.known), self.training.method
        outputs = method.structure["outputs"]
        if method.structure["seen"] != known or outputs < known:
            refuse(f"structure has {outputs} outputs for {known} classes")
        held = {"memory": method.memory, "kept": method.kept, "holdout": self.holdout}
        embedded = () if self.features is None else (torch.float16,)
        wanted = torch.uint8 if len(self.shape) == 3 else torch.float32
        for name, samples in held.items():
            if samples is None or not len(samples.y):
                continue
            x, y = samples.x, samples.y
            if x.dtype not in (wanted, *embedded) or list(x.shape[1:]) != self.shape:
                refuse(
                    f"{name}.x has {x.dtype} samples of shape {tuple(x.shape[1:])}, not {wanted} "
                    f"of shape {tuple(self.shape)}"
                )
            if int(y.min()) < 0 or int(y.max()) >= known:
                refuse(f"{name}.y has labels outside 0 to {known - 1}")
        if self.pictures is not None and len(self.pictures.sizes) != len(method.memory.y):
            refuse("pictures does not have one for each exemplar")
        return self

    def _check_labels(self) -> None:
        labels = [*self.known, *self.declared]
        array = np.array(labels)
        if len({*map(type, labels)}) != 1 or len({*self.known}) != len(self.known):
            refuse("known has labels of several kinds, or one twice")
        if array.dtype.kind not in "Uib" or array.tolist() != labels:  # too large, or ends in NUL
            refuse("known has a label that no array can hold")
        if len(self.counts) != len(self.known):
            refuse(f"counts has {len(self.counts)} entries for {len(self.known)} classes")

    def _check_layout(self) -> None:
        if len(self.shape) not in (1, 3):
            refuse(f"shape is {self.shape}; samples have 1 or 3 dimensions")
        for name in ("mean", "std", "columns"):
            values = getattr(self, name)
            if values is not None and len(values) != self.shape[0]:
                refuse(f"{name} has {len(values)} entries for samples of shape {self.shape}")
        mean, std = (torch.tensor(part, dtype=torch.float32) for part in (self.mean, self.std))
        if not bool(torch.isfinite(mean).all()) or not bool((std > 0).all()):
            refuse("mean or std is not a float32 number, or std is 0 as float32")


# --- writing --------------------------------------------------------------------------------


def write(path: Path, params: Mapping[str, Any], random_state: Any, learned: Learned) -> None:
    """Write a classifier file. A seed is stored, a generator is not."""
    state = learned.to_state()
    changed = {
        name: value
        for name, value in params.items()
        if not isinstance(value, nn.Module) and value != learned.setup.params[name]
    }
    if changed:  # parameters set since the last call; the knowledge belongs to the others
        state["changed"] = changed
    seed = random_state.item() if isinstance(random_state, np.integer) else random_state
    state["random_state"] = seed if isinstance(seed, int) else None
    for part in sample_parts(state):
        part["x"] = encode_images(part["x"])
        if not isinstance(part["x"], Tensor):
            state["contents"] = ENCODED
    write_state_file(path, KIND, state)


# --- reading --------------------------------------------------------------------------------


def read(
    path: Path,
    defaults: Mapping[str, Any],
    model: Any = None,
    device: str | None = None,
    weights: Path | None = None,
) -> tuple[dict[str, Any], Learned]:
    """Return the parameters and the knowledge of a classifier; see `IncrementalClassifier.load`.

    Parameters that an earlier file lacks had their `defaults`; `schedule` was always
    "steps", and photos of exemplars were stored if there was no frozen backbone.
    """
    state = read_state_file(path, KIND)
    contents = state.get("contents")
    if type(contents) is not int or contents not in (CONTENTS, ENCODED):
        raise FileError(
            f"{path} has contents of version {str(contents)[:40]}; this gradmix reads "
            f"{CONTENTS} and {ENCODED}: install the version that wrote it or a later one"
        )
    earlier = {**defaults, "schedule": "steps", "keep_images": "features" not in state}
    with _blaming(path):
        for part in sample_parts(state) if contents == ENCODED else ():
            if isinstance(part["x"], dict):
                validate(EncodedImages, part["x"], path)
                part["x"] = decode_images(part["x"])
        state["contents"] = CONTENTS
        if isinstance(state.get("params"), dict):
            for name, value in earlier.items():
                state["params"].setdefault(name, value)
        checked = validate(ClassifierState, state, path)
    if not {*checked.params, *checked.changed} <= {*defaults}:
        raise FileError(f"{path} is damaged: params: not those of a classifier")
    if checked.features is not None or weights is not None:
        _find_weights(path, state["params"], weights)
    own = checked.params["model"] is None
    _check_model(path, None if own else checked.model, model)
    device = _find_device(path, {**checked.params, **checked.changed}["device"], device)
    with _blaming(path, model if own else None):
        learned = from_state(state, model, device)
        if not _predicts_finite(learned):
            raise FileError(f"{path} is damaged: training.method: predictions are not finite")
    params = {**learned.setup.params, **checked.changed, "random_state": checked.random_state}
    return params, learned


def _find_weights(path: Path, params: dict[str, Any], given: Path | None) -> None:
    """Set the file with the backbone's weights, which the classifier file does not contain."""
    if given is not None:
        if params["weights"] is None:
            raise InputError(f"weights is given, but {path} needs no weights; omit it")
        params["weights"] = os.fspath(given)
    if params["weights"] is not None and not os.path.isfile(params["weights"]):
        raise FileError(
            f"{path} needs the backbone's weights, and there is no file "
            f"{params['weights']!r}; pass its place as weights="
        )


@torch.no_grad()
def _predicts_finite(learned: Learned) -> bool:
    """Whether predictions are finite for stored samples, random inputs and extreme images."""
    layout, known = learned.setup.layout, len(learned.labels.known)
    count = max(2, min(PROBES, PROBE_NUMBERS // math.prod(layout.shape)))
    noise = torch.randn(count, *layout.shape, generator=torch.Generator().manual_seed(0))
    scores = [learned.method.predict(noise.to(learned.device))[:, :known].cpu()]
    samples = [learned.method.stored_samples().x, learned.holdout.x]
    if layout.images:
        samples.append(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    for x in samples:
        if len(x):
            rows = torch.linspace(0, len(x) - 1, min(count, len(x))).long()
            scores.append(learned.scores(x[rows.to(x.device)].expand(-1, *layout.shape)))
    return bool(torch.isfinite(torch.cat(scores).double().softmax(dim=1)).all())


@contextmanager
def _blaming(path: Path, model: nn.Module | None = None) -> Iterator[None]:
    """Turn errors into a FileError, or an InputError if the caller's network does not fit."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (FileError, MissingPackageError)) or is_out_of_memory(error):
            raise
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        if model is None:
            raise FileError(f"{path} is damaged: {kind}{error}") from error
        raise InputError(
            f"model is a {type(model).__name__} that does not fit {path}; give one with the same "
            f"layers as when it was saved: {error}"
        ) from error


def _find_device(path: Path, saved: str, given: str | None) -> str:
    """Return the given device, or else the saved one; refuse one that is not available here."""
    device = saved if given is None else given
    try:
        pick_device(check("device", device))
    except InputError as error:
        if given is not None:
            raise
        raise FileError(
            f"{path} was saved with a device that is not available here; load it with another, for "
            f"example device='cpu': {error}"
        ) from error
    return device


def _check_model(path: Path, network: str | None, model: Any) -> None:
    """Require a network exactly if the file does not name one."""
    if network is None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is {str(model)[:80]!r}; {path} was made with a network of your own: pass it as "
            "model="
        )
    if network is not None and model is not None:
        given = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(
            f"model is {given}; {path} has its own network {network[:40]!r}: omit model="
        )
