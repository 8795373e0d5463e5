"""The knowledge of a classifier: networks, memory, random streams, classes and history.

`Learned` never changes. A call of partial_fit creates another `Learned`, which replaces the old one
at the end. Predictions can therefore continue during a call, and a failed call changes nothing.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image, features
from pydantic import Field, model_validator
from torch import Tensor

from gradmix.classifier.inputs import FEWER_AT_A_TIME, Labels, Layout, needing_memory
from gradmix.classifier.report import Report
from gradmix.classifier.setup import Setup, budget, find_backbone
from gradmix.closed_form import energy, fit_threshold
from gradmix.criterion import embed
from gradmix.data import StreamedImages
from gradmix.data.image_folders.given import photo_sizes, read_photos
from gradmix.data.stream import map_ahead
from gradmix.errors import InputError
from gradmix.files.schema import Schema, TensorOf, refuse
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
EXPANSION = 100  # largest size of decoded images, as a multiple of their size in the file
WEBP_SIDE = 16383  # the largest side of a WebP image in pixels
CHANNELS = (1, 3, 4)  # of encoded images: grey, RGB, RGBA

Pictures = tuple[bytes, ...]
_Side = Annotated[int, Field(ge=1, le=WEBP_SIDE)]


@dataclass(frozen=True)
class Learned:
    """The knowledge of a classifier after a call."""

    setup: Setup
    labels: Labels
    method: Method  # in evaluation mode
    holdout: ReplayMemory  # samples for measuring, never trained on
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

        def last_inputs(inputs: Tensor) -> Tensor:
            labels = torch.zeros(len(inputs), dtype=torch.int64, device=self.device)
            return embed(self.method.model, self.method.head, inputs, labels).embeddings

        return self._compute(x, last_inputs)

    def _compute(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a function of the network inputs of samples, in parts, on the CPU."""
        parts = []
        size = max(1, PREDICT_NUMBERS // x.shape[1:].numel())
        what = f"predict {len(x)} samples of shape {tuple(x.shape[1:])}"
        with needing_memory(what, FEWER_AT_A_TIME):
            for part in x.split(min(size, PREDICT_MOST)):
                inputs = self.method.normalise(part.to(self.device))
                with self._lock:  # some methods observe the network while it computes
                    parts.append(function(inputs).cpu())
            return torch.cat(parts)

    def novelty_threshold(self, false_alarm_rate: float) -> float:
        """Return the novelty above which a sample counts as unknown, from held-out samples."""
        if not len(self.holdout):
            raise InputError(
                "unknown is given, but no samples are held out to set its threshold; learn with "
                "holdout_per_class=10 or more (--holdout 10)"
            )
        return fit_threshold(energy(self.scores(self.holdout.x).double()), false_alarm_rate)

    def exemplars(self) -> Samples:
        """Return the exemplars as the caller gave them: images (N, C, H, W) or rows (N, d)."""
        x, y = self.method.memory.samples
        if self.setup.backbone is not None:
            if self.pictures is None:
                raise InputError(
                    "this classifier stores embeddings of photos and no pictures; learn with "
                    "keep_images=True"
                )
            shape = self.setup.given.shape
            x = torch.empty(0, *shape, dtype=torch.uint8)
            if self.pictures:
                x = read_photos(list(self.pictures), "pictures", shape=shape)
        return Samples(x.cpu(), y.cpu())

    def forget(self, label: Any, x: Tensor | None = None) -> Learned:
        """Return the knowledge without a class; x are all samples it was learned from, if known."""
        number = self.labels.find(label)
        label = self.labels.known[number]
        labels = self.labels.without(label)
        if not labels.known:
            raise InputError(
                f"{label!r} is the last class that is left, and a classifier needs one; "
                "start again: fit, or a new --model file"
            )
        other = self._copy()
        left = (other.method.memory.y != number).nonzero().flatten().tolist()
        if isinstance(other.method, ClosedForm):
            other.method.forget(number, other._learned_from(number, x))
        elif x is not None:
            name = type(other.method).__name__
            raise InputError(f"X is given, but {name} cannot unlearn samples exactly; omit it")
        else:
            other.method.forget(number)
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
        """Return the knowledge without any samples; InputError if predictions need exemplars."""
        other = self._copy()
        other.method.drop_samples()
        return replace(other, holdout=self.setup.new_holdout(), finished="", pictures=None)

    def _learned_from(self, number: int, x: Tensor | None) -> Tensor | None:
        """Return the network inputs that a closed-form method learned of a class, if known."""
        memory, holdout = self.method.memory, self.holdout
        held = holdout.x[holdout.y == number]
        if x is None:
            x = memory.x[memory.y == number]
            if len(x) + len(held) != self.counts[number]:
                return None
        else:
            x = x.index_select(0, torch.arange(len(x))).to(self.device)  # photos may be files
            left = torch.ones(len(x), dtype=torch.bool, device=x.device)
            for row in held:  # without the nearest sample to each one held out
                distance = (x - row).double().flatten(1).square().sum(1)
                left[distance.masked_fill(~left, torch.inf).argmin()] = False
            x = x[left]
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
        setup, backbone = self.setup, self.setup.backbone
        models = (setup.params["model"], setup.model)
        named, network = (part if isinstance(part, str) else None for part in models)
        state: dict[str, Any] = {
            "contents": CONTENTS,
            "params": {**setup.params, "model": named},
            "shape": list(setup.layout.shape),
            "columns": None if setup.layout.names is None else list(setup.layout.names),
            "model": network,
            "mean": list(setup.mean),
            "std": list(setup.std),
            "seed": setup.seed,
            "known": list(self.labels.known),
            "declared": list(self.labels.declared),
            "counts": list(self.counts),
            "history": [report.model_dump() for report in self.history],
            "finished": self.finished,
            "training": self.training_state(),
            "holdout": self.holdout.state_dict() if setup.held_out else None,
        }
        if backbone is not None:
            about = {"name": backbone.name, "size": backbone.input_size, "digest": backbone.digest}
            state["features"] = about
            for part in sample_parts(state):
                part["x"] = part["x"].half()  # embeddings have no more digits
        if self.pictures is not None:
            state["pictures"] = pack_pictures(self.pictures)
        return state

    def _copy(self) -> Learned:
        """Return the knowledge with tensors of its own, on the same device."""
        return from_state(*self.__reduce__()[1], device=str(self.device))

    def digest(self) -> str:
        """Return a digest of everything: equal if and only if nothing differs."""
        return digest(self.to_state())

    def __reduce__(self) -> tuple[Callable[..., Learned], tuple[dict[str, Any], Any]]:
        model = self.setup.params["model"]
        own = None if isinstance(model, str) else model  # the caller's network or backbone
        return from_state, (copy_of(self.to_state()), own)


def from_state(state: Mapping[str, Any], model: Any = None, device: str | None = None) -> Learned:
    """Return the knowledge of a state that `to_state` returned; `model` is the caller's network.

    The networks and memories use the state's tensors. InputError if they do not fit each other.
    """
    params, saved = dict(state["params"]), state["training"]
    own_network = model if state["model"] is None else str(state["model"])
    params["model"] = model if params["model"] is None else params["model"]
    columns = None if state["columns"] is None else tuple(state["columns"])
    layout = Layout(tuple(state["shape"]), columns)
    labels = Labels(tuple(state["known"]), tuple(state["declared"]))
    mean, std = (tuple(map(float, state[name])) for name in ("mean", "std"))
    backbone = None
    if state.get("features") is not None:
        source = state["features"]
        named = source["name"] if params["model"] in (None, "auto") else params["model"]
        backbone = find_backbone({**params, "model": named, "image_size": source["size"]})
        if backbone is None or backbone.digest != source["digest"]:
            raise InputError(
                f"features.digest: the weights of {source['name']} differ from those it was saved "
                "with"
            )
        for part in sample_parts(state):
            part["x"] = part["x"].float()  # files contain float16
    setup = Setup(params, layout, own_network, mean, std, state["seed"], backbone)
    place = pick_device(device or params["device"])
    streams = RandomStreams(setup.seed, place)
    streams.load_state_dict(saved["streams"])  # before the build: seeding new streams takes time
    outputs = saved["method"]["structure"]["outputs"]
    if setup.outputs(outputs) != outputs:
        raise InputError(f"structure.outputs: {outputs} do not fit the parameters")
    method = setup.new_method(1, len(labels.known), streams, loads=True)
    load_method(method, saved)
    for network in method.networks().values():
        network.eval()
    holdout = setup.new_holdout()
    if state["holdout"] is not None:
        holdout.load_state_dict(moved(state["holdout"], place))
    elif setup.held_out:
        raise InputError("holdout: it is missing")
    history = tuple(Report(**entry) for entry in state["history"])
    counts, finished = tuple(state["counts"]), state["finished"]
    pictures = unpack_pictures(state["pictures"]) if state.get("pictures") else None
    return Learned(setup, labels, method, holdout, counts, history, finished, pictures)


def sample_parts(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a state that contain samples, each with its samples as "x"."""
    method = state["training"]["method"]
    parts = (method["memory"], method.get("kept"), state["holdout"])
    return [part for part in parts if part is not None]


def load_method(method: Method, saved: Mapping[str, Any]) -> None:
    """Load the state between two calls into a new method."""
    state = moved(saved["method"], method.streams.place)
    with torch.device("meta") if method.head.weight.is_meta else nullcontext():
        method.rebuild(state["structure"])
    method.load_state_dict(state)
    method.streams.load_state_dict(saved["streams"])


# --- nested values with tensors -------------------------------------------------------------


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return nested values with a function of each tensor; dicts and lists are copied."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, function) for item in value)
    return value


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
        if isinstance(part, (Tensor, StreamedImages)):
            result.update(f"{part.dtype}{tuple(part.shape)}".encode())
            for values in [part] if isinstance(part, Tensor) else part.split(256):
                flat = values.detach().cpu().contiguous().view(-1)
                result.update(flat.view(torch.uint8).numpy().data)
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


# --- images in files ------------------------------------------------------------------------
#
# Photos are stored beside their embeddings, as JPEG, an eighth of their size. Exemplars that are
# images themselves are stored as lossless WebP, half of their size: learning continues with the
# same pixels.


class PicturesState(Schema):
    """Pictures in a file: all bytes in one tensor, and the number of bytes of each."""

    content: Annotated[Tensor, TensorOf(torch.uint8, ndim=1)]
    sizes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]

    @model_validator(mode="after")
    def _check(self) -> PicturesState:
        if len(self.sizes) and int(self.sizes.min()) < 1:
            refuse("pictures.sizes has numbers below 1")
        if int(self.sizes.sum()) != len(self.content):
            refuse(f"pictures has {len(self.content)} bytes, not {int(self.sizes.sum())}")
        return self


def pack_pictures(pictures: Pictures) -> dict[str, Tensor]:
    """Return pictures as tensors, for a file."""
    content = np.frombuffer(b"".join(pictures), dtype=np.uint8)
    sizes = torch.tensor([len(picture) for picture in pictures], dtype=torch.int64)
    return {"content": torch.from_numpy(content.copy()), "sizes": sizes}


def unpack_pictures(state: Mapping[str, Tensor]) -> Pictures:
    """Return the pictures of a state that was checked."""
    parts = state["content"].split(state["sizes"].tolist())
    return tuple(part.numpy().tobytes() for part in parts)


class EncodedImages(PicturesState):
    """Images of one shape in a file, each as lossless WebP."""

    shape: Annotated[list[_Side], Field(min_length=3, max_length=3)]  # (C, H, W)

    @model_validator(mode="after")
    def _check_images(self) -> EncodedImages:
        """The decoded images are at most `EXPANSION` times as large as the encoded ones."""
        if not len(self.sizes) or self.shape[0] not in CHANNELS:
            refuse(f"{len(self.sizes)} images of shape {self.shape} cannot be decoded")
        if len(self.sizes) * math.prod(self.shape) > EXPANSION * len(self.content):
            refuse(
                f"{len(self.content)} bytes claim {len(self.sizes)} images of shape {self.shape}; "
                f"at most {EXPANSION} times as many bytes are decoded"
            )
        return self


def encode_images(images: Tensor) -> Tensor | dict[str, Any]:
    """Return uint8 images (N, C, H, W) in the form of `EncodedImages`, without any loss.

    Other tensors, and images that would not be smaller, are returned unchanged. The same holds for
    images that would be more than `EXPANSION` times smaller: such a file would be refused.

    >>> encoded = encode_images(torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16))
    >>> len(encoded["content"]) < 256, decode_images(encoded).shape
    (True, torch.Size([1, 1, 16, 16]))
    """
    fits = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] in CHANNELS
    if not fits or max(images.shape[2:]) > WEBP_SIDE or not features.check("webp"):
        return images
    encoded = pack_pictures(tuple(map_ahead(_to_webp, images.cpu())))
    whole, size = images.numel(), len(encoded["content"])
    if not size < whole <= EXPANSION * size:
        return images
    return {**encoded, "shape": list(images.shape[1:])}


def decode_images(state: Mapping[str, Any]) -> Tensor:
    """Return the images of a state that was checked, uint8 (N, C, H, W)."""
    pictures, shape = unpack_pictures(state), tuple(state["shape"])
    if {*photo_sizes(pictures, "images")} != {(shape[2], shape[1])}:  # before pixels are decoded
        raise InputError(f"images: not all have the shape {shape}")
    return read_photos(pictures, "images", shape=shape)


def _to_webp(image: Tensor) -> bytes:
    # Method 1 takes a tenth of the time of the default, 4, for 2% more bytes. `exact` keeps the
    # colours of transparent pixels.
    options = {"lossless": True, "quality": 0, "method": 1, "exact": True}
    return bytes_of(picture_of(image), "WEBP", **options)


def picture_of(image: Tensor) -> Image.Image:
    """Return uint8 pixels (C, H, W) as an RGB or RGBA image; WebP has no grey images."""
    pixels = image.expand(3, -1, -1) if len(image) == 1 else image
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
