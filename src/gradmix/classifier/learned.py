"""What a classifier has learned: networks, memory, random streams, classes, history.

Nothing in it changes once it is made. A call of partial_fit makes another, which takes its place
at the end, so that predictions go on meanwhile and a call that fails leaves no trace.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.classifier.choices import Choices, budget, choose
from gradmix.classifier.inputs import Layout
from gradmix.classifier.labels import Label, Labels
from gradmix.classifier.report import Report
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method
from gradmix.randomness import RandomStreams
from gradmix.training.build import pick_device
from gradmix.training.checkpoint import check_structure

PREDICT_NUMBERS = 2**19  # of the inputs that are predicted at a time: more leave a CPU's caches
PREDICT_MOST = 1024
CONTENTS = 1  # changes whenever a file comes to mean something else
NO_PAIRS: dict[str, Any] = {"counts": torch.empty(0, 0), "tables": {}}


@dataclass(frozen=True)
class Basis:
    """What is settled by the first call and stays."""

    params: dict[str, Any]  # the classifier's, those in `choices.FIXED`
    layout: Layout  # of samples
    model: str | nn.Module  # the network by name, or as given
    mean: tuple[float, ...]  # per channel or column
    std: tuple[float, ...]
    seed: int

    def outputs(self, known: int) -> int:
        """Of a new network, when the first classes are known."""
        size = self.params["head_size"]
        return known if size is None else int(size)

    def new_method(
        self,
        choices: Choices,
        outputs: int,
        num_classes: int,
        streams: RandomStreams,
        **kwargs: Any,
    ) -> Method:
        """A method with a new network."""
        return choices.design.build(
            lambda: choices.network(self.layout, outputs),
            num_classes,
            self.mean,
            self.std,
            streams,
            **kwargs,
        )


@dataclass(frozen=True)
class Learned:
    """A classifier's knowledge after a call."""

    basis: Basis
    labels: Labels
    method: Method  # in evaluation mode
    holdout: ReplayMemory | None  # samples to measure on, never trained on
    counts: tuple[int, ...]  # samples ever seen of each known class
    history: tuple[Report, ...]
    finished: str = ""  # identifies the call that led here
    _lock: Any = field(default_factory=Lock, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.method.streams.place

    def scores(self, x: Tensor) -> Tensor:
        """Scores of the known classes in order of arrival, (N, K), on the host; threads may ask."""
        known = len(self.labels.known)
        parts = []
        size = max(1, PREDICT_NUMBERS // x.shape[1:].numel())
        for part in x.split(min(size, PREDICT_MOST)):
            inputs = self.method.normalise(part.to(self.device))
            with self._lock:  # some methods look into the network while it works
                parts.append(self.method.predict(inputs)[:, :known].cpu())
        return torch.cat(parts)

    def forget(self, label: Label) -> Learned:
        """Without a class, its samples and its outputs."""
        if label not in self.labels.known:
            raise InputError(
                f"the class to forget is {label!r}; known are {list(self.labels.known)}"
            )
        if len(self.labels.known) == 1:
            raise InputError(f"{label!r} is the only class known; start anew with fit instead")
        number = self.labels.known.index(label)
        other = from_state(copy_of(self.to_state()), self.basis.model, str(self.device))
        other.method.forget(number)
        if other.holdout is not None:
            other.holdout.forget(number)
        counts = tuple(count for k, count in enumerate(self.counts) if k != number)
        labels = self.labels.without(label)
        other.method.memory.set_budget(*budget(self.basis.params, len(labels.known)))
        history = tuple(report.without(label) for report in self.history)
        return replace(other, labels=labels, counts=counts, history=history, finished="")

    # --- state ------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        """What the next call goes on from, as `Training.load_state_dict` takes it."""
        method = self.method.state_dict()
        for name in ("optimizer", "new", "plan"):  # every call starts with new ones
            method.pop(name, None)
        method["mixer"] = NO_PAIRS  # what there is, is of the last call only
        position = {"task": 0, "stage": 0, "epoch": 0, "step": 0, "in_stage": False}
        streams = self.method.streams.state_dict()
        return {
            "position": position,
            "losses": torch.empty(0),
            "method": method,
            "streams": streams,
        }

    def to_state(self) -> dict[str, Any]:
        """All of it as plain values and tensors, the live ones."""
        basis = self.basis
        return {
            "contents": CONTENTS,
            "params": {**basis.params, "model": _name(basis.params["model"])},
            "shape": list(basis.layout.shape),
            "columns": None if basis.layout.names is None else list(basis.layout.names),
            "model": _name(basis.model),
            "mean": list(basis.mean),
            "std": list(basis.std),
            "seed": basis.seed,
            "known": list(self.labels.known),
            "declared": list(self.labels.declared),
            "counts": list(self.counts),
            "history": [report.to_state() for report in self.history],
            "finished": self.finished,
            "training": self.training_state(),
            "holdout": None if self.holdout is None else self.holdout.state_dict(),
        }

    def digest(self) -> str:
        """Of all of it: equal if and only if nothing differs."""
        return digest(self.to_state())

    def __getstate__(self) -> dict[str, Any]:
        return {"state": copy_of(self.to_state()), "model": self.basis.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        other = from_state(state["state"], state["model"])
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, getattr(other, name))


def from_state(state: Mapping[str, Any], model: Any = None, device: str | None = None) -> Learned:
    """What `to_state` gave, in objects of its own; `model` is the network if one was given.

    ValueError, TypeError or KeyError if it is not such a state.
    """
    params = dict(state["params"])
    if state["model"] is None and not isinstance(model, nn.Module):
        raise InputError(
            "this classifier was made with a network of your own; pass it as model= to load it"
        )
    network = model if state["model"] is None else str(state["model"])
    params["model"] = network if params["model"] is None else params["model"]
    columns = None if state["columns"] is None else tuple(map(str, state["columns"]))
    layout = Layout(tuple(state["shape"]), columns)
    labels = Labels(tuple(state["known"]), tuple(state["declared"]))
    known = len(labels.known)
    mean, std = (tuple(map(float, state[name])) for name in ("mean", "std"))
    basis = Basis(params, layout, network, mean, std, state["seed"])
    choices = choose(params, network, layout, samples=1, classes=known)
    place = pick_device(device or params["device"])
    saved = state["training"]
    structure = saved["method"]["structure"]
    check_structure(structure, _largest(saved["method"]["networks"]))
    outputs, size = structure["outputs"], params["head_size"]
    if size not in (None, outputs):
        raise ValueError(f"head_size is {size}, and there are {outputs} outputs")
    streams = RandomStreams(basis.seed, place)
    streams.load_state_dict(saved["streams"])  # at once: seeding takes time
    empty = isinstance(network, str)
    method = basis.new_method(choices, outputs, max(known, outputs), streams, empty=empty)
    load_method(method, saved, place)
    holdout = new_holdout(params)
    if holdout is not None:
        holdout.load_state_dict(moved(state["holdout"], place))
    history = tuple(Report.from_state(entry) for entry in state["history"])
    learned = Learned(
        basis, labels, method, holdout, tuple(state["counts"]), history, state["finished"]
    )
    for net in method.networks().values():
        net.eval()
    return learned


def load_method(method: Method, saved: Mapping[str, Any], device: torch.device) -> None:
    """Let a new method stand where another stood between two calls."""
    state = {**moved(saved["method"], device), "mixer": NO_PAIRS}
    with torch.device("meta") if method.head.weight.is_meta else nullcontext():
        method.rebuild(state["structure"])
    method.load_state_dict(state)
    method.streams.load_state_dict(saved["streams"])


def new_holdout(params: Mapping[str, Any]) -> ReplayMemory | None:
    """An empty memory for samples to measure on, if some are to be kept."""
    number = params["holdout_per_class"]
    return ReplayMemory(exemplars_per_class=number) if number else None


def _largest(networks: Mapping[str, Mapping[str, Tensor]]) -> int:
    """What no number of outputs or parts in a saved structure can exceed."""
    tensors = [value for saved in networks.values() for value in saved.values()]
    return max(len(tensors), *(value.shape[0] for value in tensors if value.numel() and value.ndim))


def _name(model: Any) -> str | None:
    return model if isinstance(model, str) else None


def moved(value: Any, device: torch.device) -> Any:
    """Tensors in a state on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value


def copy_of(value: Any) -> Any:
    """A state with tensors of its own, laid out as they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copy_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_of(item) for item in value]
    return copy.copy(value)


def digest(value: Any) -> str:
    """SHA-256 of nested values with tensors among them."""
    result = hashlib.sha256()

    def update(part: Any) -> None:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype}{tuple(part.shape)}".encode())
            result.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, Mapping):
            for key in sorted(part, key=str):
                update(key)
                update(part[key])
        elif isinstance(part, (list, tuple)):
            result.update(f"[{len(part)}".encode())
            for item in part:
                update(item)
        else:
            result.update(f"{type(part).__name__}:{part!r};".encode())

    update(value)
    return result.hexdigest()
