"""The knowledge of a classifier: networks, memory, random streams, classes and history.

`Learned` never changes. A call of partial_fit creates another `Learned`, which replaces the old one
at the end. Predictions can therefore continue during a call, and a failed call changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gradmix.classifier.basis import Basis
from gradmix.classifier.defaults import plan_call
from gradmix.classifier.features import Features, features_of
from gradmix.classifier.holdout import new_holdout
from gradmix.classifier.inputs import Layout
from gradmix.classifier.labels import Labels
from gradmix.classifier.params import budget
from gradmix.classifier.pictures import Pictures, decode, to_state
from gradmix.classifier.pictures import from_state as from_picture_state
from gradmix.classifier.report import Report
from gradmix.classifier.trees import copy_of, digest, moved
from gradmix.closed_form import energy, fit_threshold
from gradmix.criterion import embed
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method
from gradmix.methods.closed_form import ClosedForm
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

    basis: Basis
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
        parts = []
        size = max(1, PREDICT_NUMBERS // x.shape[1:].numel())
        for part in x.split(min(size, PREDICT_MOST)):
            inputs = self.method.normalise(part.to(self.device))
            with self._lock:  # some methods observe the network while it computes
                parts.append(self.method.predict(inputs)[:, :known].cpu())
        return torch.cat(parts)

    def embeddings(self, x: Tensor) -> Tensor:
        """Return the inputs of the last layer, (N, d), on the CPU."""
        method, parts = self.method, []
        for part in x.split(PREDICT_MOST):
            inputs = method.normalise(part.to(self.device))
            with self._lock:
                labels = torch.zeros(len(inputs), dtype=torch.int64, device=self.device)
                parts.append(embed(method.model, method.head, inputs, labels).embeddings.cpu())
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
        if self.basis.features is not None:
            if self.pictures is None:
                raise InputError(
                    "this classifier stores embeddings of photos and no pictures; learn with "
                    "keep_images=True"
                )
            x = decode(self.pictures, self.basis.given.shape[1])
        return Samples(x.cpu(), y.cpu())

    def forget(self, label: Any, x: Tensor | None = None) -> Learned:
        """Return the knowledge without a class, its samples and its outputs.

        Args:
            label: The class.
            x: All samples it was learned from, as the network takes them, if they are known.
        """
        number = self.labels.find(label)
        label = self.labels.known[number]
        if len(self.labels.known) == 1:
            raise InputError(f"{label!r} is the only known class; call fit to start again")
        other = from_state(copy_of(self.to_state()), self._own_model(), str(self.device))
        pictures = None
        if self.pictures is not None:
            left = (other.method.memory.y != number).nonzero().flatten().tolist()
            pictures = tuple(self.pictures[row] for row in left)
        if isinstance(other.method, ClosedForm):
            other.method.forget(number, other._sums_of(number, x))
        elif x is not None:
            name = type(other.method).__name__
            raise InputError(f"X is given, but {name} cannot unlearn samples exactly; omit it")
        else:
            other.method.forget(number)
        if other.holdout is not None:
            other.holdout.forget(number)
        counts = tuple(count for k, count in enumerate(self.counts) if k != number)
        labels = self.labels.without(label)
        other.method.memory.set_budget(*budget(self.basis.params, len(labels.known)))
        history = tuple(report.without(label) for report in self.history)
        return replace(
            other,
            labels=labels,
            counts=counts,
            history=history,
            finished="",
            pictures=pictures,
        )

    def _sums_of(self, number: int, x: Tensor | None) -> Tensor | None:
        """Return the network inputs that a closed-form method learned of a class, if known."""
        memory, holdout = self.method.memory, self.holdout
        held = torch.empty(0) if holdout is None else holdout.x[holdout.y == number]
        if x is None:
            x = memory.x[memory.y == number]
            if len(x) + len(held) != self.counts[number]:
                return None
        else:
            x = _without(x.to(self.device), held)
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
        basis, training = self.basis, self.training_state()
        holdout = None if self.holdout is None else self.holdout.state_dict()
        optional: dict[str, Any] = {}
        if basis.features is not None:
            backbone = basis.features.backbone
            about = {"name": backbone.name, "size": backbone.input_size, "digest": backbone.digest}
            optional["features"] = about
            _change_samples(training, holdout, torch.float16)  # embeddings have no more digits
        if self.pictures is not None:
            optional["pictures"] = to_state(self.pictures)
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
            "history": [report.model_dump() for report in self.history],
            "finished": self.finished,
            "training": training,
            "holdout": holdout,
            **optional,
        }

    def _own_model(self) -> Any:
        """Return the caller's network or backbone; None if it has a name."""
        model = self.basis.params["model"]
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
    features = _restored_features(state.get("features"), params)
    if features is not None:
        _change_samples(state["training"], state["holdout"], torch.float32)
    basis = Basis(params, layout, network, mean, std, state["seed"], features)
    place = pick_device(device or params["device"])
    method = _restored_method(basis, len(labels.known), state["training"], place)
    holdout = new_holdout(params)
    if holdout is not None:
        holdout.load_state_dict(moved(state["holdout"], place))
    history = tuple(Report(**entry) for entry in state["history"])
    counts, finished = tuple(state["counts"]), state["finished"]
    pictures = None if "pictures" not in state else from_picture_state(state["pictures"])
    return Learned(basis, labels, method, holdout, counts, history, finished, pictures)


def _change_samples(training: dict[str, Any], holdout: Any, dtype: torch.dtype) -> None:
    """Give the embeddings in a state another type; files contain float16."""
    for part in (training["method"]["memory"], training["method"].get("kept"), holdout):
        if part is not None:
            part["x"] = part["x"].to(dtype)


def _restored_features(
    saved: Mapping[str, Any] | None, params: Mapping[str, Any]
) -> Features | None:
    if saved is None:
        return None
    model = saved["name"] if params["model"] in (None, "auto") else params["model"]
    features = features_of(model, saved["size"], params["weights"], params["mean"], params["std"])
    if features.backbone.digest != saved["digest"]:
        raise InputError(
            f"features.digest: the weights of {saved['name']} differ from those it was saved with"
        )
    return features


def _restored_method(
    basis: Basis, known: int, saved: Mapping[str, Any], place: torch.device
) -> Method:
    plan = plan_call(basis.params, basis.model, basis.layout, samples=1, classes=known)
    outputs = saved["method"]["structure"]["outputs"]
    streams = RandomStreams(basis.seed, place)
    streams.load_state_dict(saved["streams"])  # before the build: seeding new streams takes time
    empty = basis.builds_empty
    method = basis.new_method(plan, outputs, max(known, outputs), streams, empty=empty)
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
