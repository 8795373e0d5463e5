"""The knowledge of a classifier: networks, memory, random streams, classes and history.

`Learned` never changes. A call of partial_fit creates another `Learned`, which replaces the old one
at the end. Predictions can therefore continue during a call, and a failed call changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gradmix.classifier.defaults import budget, find_backbone
from gradmix.classifier.inputs import Layout
from gradmix.classifier.labels import Labels
from gradmix.classifier.photos import Pictures, decode, pack_pictures, unpack_pictures
from gradmix.classifier.report import Report
from gradmix.classifier.setup import Setup
from gradmix.closed_form import energy, fit_threshold
from gradmix.criterion import embed
from gradmix.data import StreamedImages
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method
from gradmix.methods.closed_form import ClosedForm
from gradmix.models.pretrained import Backbone
from gradmix.randomness import RandomStreams
from gradmix.training.build import pick_device
from gradmix.training.loop import Position
from gradmix.types import Samples

PREDICT_NUMBERS = 2**19  # input numbers to predict at a time: more do not fit a CPU's caches
PREDICT_MOST = 1024
CONTENTS = 1  # version of the state; changes when its meaning changes


@dataclass(frozen=True)
class Learned:
    """The knowledge of a classifier after a call."""

    setup: Setup
    labels: Labels
    method: Method  # in evaluation mode
    holdout: ReplayMemory | None  # samples for measuring, never trained on
    counts: tuple[int, ...]  # samples seen of each known class, in all calls
    history: tuple[Report, ...]
    finished: str = ""  # identifies the call that led here
    pictures: Pictures | None = None  # of the exemplars, if they are embeddings of photos
    _lock: Any = field(default_factory=Lock, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.method.streams.place

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the known classes, (N, K), on the CPU; safe in threads."""
        known = len(self.labels.known)
        return self._compute(x, lambda inputs: self.method.predict(inputs)[:, :known])

    def embeddings(self, x: Tensor) -> Tensor:
        """Return the inputs of the last layer, (N, d), on the CPU."""
        model, head = self.method.model, self.method.head

        def last_inputs(inputs: Tensor) -> Tensor:
            labels = torch.zeros(len(inputs), dtype=torch.int64, device=self.device)
            return embed(model, head, inputs, labels).embeddings

        return self._compute(x, last_inputs)

    def _compute(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a function of the network inputs of samples, in parts, on the CPU."""
        parts = []
        size = max(1, PREDICT_NUMBERS // x.shape[1:].numel())
        for part in x.split(min(size, PREDICT_MOST)):
            inputs = self.method.normalise(part.to(self.device))
            with self._lock:  # some methods observe the network while it computes
                parts.append(function(inputs).cpu())
        return torch.cat(parts)

    def novelty_threshold(self, false_alarm_rate: float) -> float:
        """Return the novelty above which a sample counts as unknown, from held-out samples."""
        if self.holdout is None or not len(self.holdout):
            raise InputError(
                "unknown is given, but no samples are held out to set its threshold; learn with "
                "holdout_per_class= of 10 or more"
            )
        return fit_threshold(energy(self.scores(self.holdout.x).double()), false_alarm_rate)

    def exemplars(self) -> Samples:
        """Return the exemplars as the caller gave them: images (N, C, H, W) or rows (N, d).

        Raises:
            InputError: If only their embeddings are stored.
        """
        x, y = self.method.memory.samples
        if self.setup.backbone is not None:
            if self.pictures is None:
                raise InputError(
                    "this classifier stores embeddings of photos and no pictures; learn with "
                    "keep_images=True"
                )
            x = decode(self.pictures, self.setup.given.shape[1])
        return Samples(x.cpu(), y.cpu())

    def forget(self, label: Any, x: Tensor | None = None) -> Learned:
        """Return the knowledge without a class, its samples and its outputs.

        Args:
            label: The class.
            x: All samples it was learned from, as the network takes them, if they are known.
        """
        number = self.labels.find(label)
        label, labels = self.labels.known[number], self.labels.without(self.labels.known[number])
        if not labels.known:
            raise InputError(f"{label!r} is the only known class; call fit to start again")
        other = from_state(copy_of(self.to_state()), self._own_model(), str(self.device))
        left = (other.method.memory.y != number).nonzero().flatten().tolist()
        if isinstance(other.method, ClosedForm):
            other.method.forget(number, other._learned_from(number, x))
        elif x is not None:
            name = type(other.method).__name__
            raise InputError(f"X is given, but {name} cannot unlearn samples exactly; omit it")
        else:
            other.method.forget(number)
        if other.holdout is not None:
            other.holdout.forget(number)
        other.method.memory.set_budget(*budget(self.setup.params, len(labels.known)))
        return replace(
            other,
            labels=labels,
            counts=tuple(count for k, count in enumerate(self.counts) if k != number),
            history=tuple(report.without(label) for report in self.history),
            finished="",
            pictures=None if self.pictures is None else tuple(self.pictures[row] for row in left),
        )

    def without_samples(self) -> Learned:
        """Return the same knowledge without exemplars, held-out samples and pictures.

        Raises:
            InputError: If the method's predictions need exemplars.
        """
        other = from_state(copy_of(self.to_state()), self._own_model(), str(self.device))
        other.method.drop_samples()
        holdout = new_holdout(self.setup.params)
        return replace(other, holdout=holdout, finished="", pictures=None)

    def _learned_from(self, number: int, x: Tensor | None) -> Tensor | None:
        """Return the network inputs that a closed-form method learned of a class, if known."""
        memory, holdout = self.method.memory, self.holdout
        held = torch.empty(0) if holdout is None else holdout.x[holdout.y == number]
        if x is None:
            x = memory.x[memory.y == number]
            if len(x) + len(held) != self.counts[number]:
                return None
        else:
            whole = x.index_select(0, torch.arange(len(x)))  # photos may be files
            x = _without(whole.to(self.device), held)
        return self.method.normalise(x).flatten(1)

    # --- state ------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        """Return what the next call starts from, for `Training.load_state_dict`."""
        return {
            "position": asdict(Position()),
            "losses": torch.empty(0),
            "method": self.method.state_dict(),
            "stage": None,
            "streams": self.method.streams.state_dict(),
        }

    def to_state(self) -> dict[str, Any]:
        """Return everything as plain values and tensors; the tensors are not copied."""
        setup, training = self.setup, self.training_state()
        holdout = None if self.holdout is None else self.holdout.state_dict()
        optional: dict[str, Any] = {}
        if setup.backbone is not None:
            name, size = setup.backbone.name, setup.backbone.input_size
            optional["features"] = {"name": name, "size": size, "digest": setup.backbone.digest}
            _change_samples(training, holdout, torch.float16)  # embeddings have no more digits
        if self.pictures is not None:
            optional["pictures"] = pack_pictures(self.pictures)
        return {
            "contents": CONTENTS,
            "params": {**setup.params, "model": _name(setup.params["model"])},
            "shape": list(setup.layout.shape),
            "columns": None if setup.layout.names is None else list(setup.layout.names),
            "model": _name(setup.model),
            "mean": list(setup.mean),
            "std": list(setup.std),
            "seed": setup.seed,
            "known": list(self.labels.known),
            "declared": list(self.labels.declared),
            "counts": list(self.counts),
            "history": [report.model_dump() for report in self.history],
            "finished": self.finished,
            "training": training,
            "holdout": holdout,
            **optional,
        }

    def _own_model(self) -> Any:
        """Return the caller's network or backbone; None if it has a name."""
        model = self.setup.params["model"]
        return None if isinstance(model, str) else model

    def digest(self) -> str:
        """Return a digest of everything: equal if and only if nothing differs."""
        return digest(self.to_state())

    def __getstate__(self) -> dict[str, Any]:
        return {"state": copy_of(self.to_state()), "model": self._own_model()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        other = from_state(state["state"], state["model"])
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, getattr(other, name))


def from_state(state: Mapping[str, Any], model: Any = None, device: str | None = None) -> Learned:
    """Return the knowledge of a state that `to_state` returned and `file.read` has checked.

    Args:
        state: The state; its tensors become those of the networks and memories.
        model: The network, if the caller provided one.
        device: Where to compute; None: as in the parameters.

    Raises:
        InputError: If weights, memory or random streams do not fit the networks.
    """
    params = dict(state["params"])
    network = model if state["model"] is None else str(state["model"])
    params["model"] = model if params["model"] is None else params["model"]
    columns = None if state["columns"] is None else tuple(state["columns"])
    layout = Layout(tuple(state["shape"]), columns)
    labels = Labels(tuple(state["known"]), tuple(state["declared"]))
    mean, std = (tuple(map(float, state[name])) for name in ("mean", "std"))
    backbone = None
    if state.get("features") is not None:
        backbone = _restored_backbone(state["features"], params)
        _change_samples(state["training"], state["holdout"], torch.float32)
    setup = Setup(params, layout, network, mean, std, state["seed"], backbone)
    place = pick_device(device or params["device"])
    method = _restored_method(setup, len(labels.known), state["training"], place)
    holdout = new_holdout(params)
    if holdout is not None:
        holdout.load_state_dict(moved(state["holdout"], place))
    history = tuple(Report(**entry) for entry in state["history"])
    counts, finished = tuple(state["counts"]), state["finished"]
    pictures = unpack_pictures(state["pictures"]) if state.get("pictures") else None
    return Learned(setup, labels, method, holdout, counts, history, finished, pictures)


def new_holdout(params: Mapping[str, Any]) -> ReplayMemory | None:
    """Return an empty memory for samples to measure on; None if none are held out."""
    number = params["holdout_per_class"]
    return ReplayMemory(exemplars_per_class=number) if number else None


def sample_parts(training: Mapping[str, Any], holdout: Any) -> list[dict[str, Any]]:
    """Return the parts of a state that contain samples, each with its samples as "x"."""
    parts = (training["method"]["memory"], training["method"].get("kept"), holdout)
    return [part for part in parts if part is not None]


def _change_samples(training: Mapping[str, Any], holdout: Any, dtype: torch.dtype) -> None:
    """Give the embeddings in a state another type; files contain float16."""
    for part in sample_parts(training, holdout):
        part["x"] = part["x"].to(dtype)


def _restored_backbone(saved: Mapping[str, Any], params: Mapping[str, Any]) -> Backbone:
    model = saved["name"] if params["model"] in (None, "auto") else params["model"]
    backbone = find_backbone({**params, "model": model, "image_size": saved["size"]})
    if backbone is None or backbone.digest != saved["digest"]:
        raise InputError(
            f"features.digest: the weights of {saved['name']} differ from those it was saved with"
        )
    return backbone


def _restored_method(
    setup: Setup, known: int, saved: Mapping[str, Any], place: torch.device
) -> Method:
    outputs = saved["method"]["structure"]["outputs"]
    streams = RandomStreams(setup.seed, place)
    streams.load_state_dict(saved["streams"])  # before the build: seeding new streams takes time
    design = setup.design(samples=1, classes=known)
    method = setup.new_method(design, outputs, max(known, outputs), streams, loads=True)
    load_method(method, saved, place)
    for network in method.networks().values():
        network.eval()
    return method


def load_method(method: Method, saved: Mapping[str, Any], device: torch.device) -> None:
    """Load the state between two calls into a new method."""
    state = moved(saved["method"], device)
    with torch.device("meta") if method.head.weight.is_meta else nullcontext():
        method.rebuild(state["structure"])
    method.load_state_dict(state)
    method.streams.load_state_dict(saved["streams"])


def _without(x: Tensor, held: Tensor) -> Tensor:
    """Return samples without the nearest one to each held-out sample, (N, …)."""
    left = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for row in held:
        distance = (x - row).double().flatten(1).square().sum(1)
        left[distance.masked_fill(~left, torch.inf).argmin()] = False
    return x[left]


def _name(model: Any) -> str | None:
    return model if isinstance(model, str) else None


# --- nested values with tensors -------------------------------------------------------------


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return nested values with a function of each tensor; dicts and lists are copied."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return [map_tensors(item, function) for item in value] if isinstance(value, list) else value


def copy_of(value: Any) -> Any:
    """Return nested values with copies of their tensors, in the same memory layout."""
    return map_tensors(value, lambda tensor: tensor.detach().clone())


def moved(value: Any, device: torch.device) -> Any:
    """Return nested values with their tensors on a device."""
    return map_tensors(value, lambda tensor: tensor.to(device))


def digest(value: Any) -> str:
    """Return the SHA-256 of nested values with tensors."""
    result = hashlib.sha256()

    def update(part: Any) -> None:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype}{tuple(part.shape)}".encode())
            result.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, StreamedImages):  # the same as of a tensor
            result.update(f"{part.dtype}{tuple(part.shape)}".encode())
            for pixels in part.split(256):
                result.update(pixels.cpu().numpy().data)
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
