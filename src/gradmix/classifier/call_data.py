"""The data of a call: what callers pass, read, checked and, with a backbone, embedded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradmix.classifier.defaults import choose_backbone, is_fine_tuned, photo_layout
from gradmix.classifier.inputs import (
    Array,
    Inputs,
    Layout,
    are_photos,
    needing_memory,
    read_inputs,
    read_weights,
    reading,
)
from gradmix.classifier.labels import read_labels
from gradmix.classifier.photos import Progress, embed_photos
from gradmix.classifier.state import Learned, digest
from gradmix.data.image_folders.read import HINT
from gradmix.errors import CorruptFileError, InputError
from gradmix.models.pretrained import Backbone
from gradmix.ranks import ALONE, Ranks
from gradmix.training.build import pick_device, torch_threads
from gradmix.training.loop import Event, Training

FEWER = "learn fewer samples per call, or set a smaller batch_size, image_size or model"
FEWER_AT_A_TIME = "give fewer samples at a time"
Skip = Callable[[str], object] | None  # as in `read_inputs`


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Watch:
    """The checkpoint of a call, and functions that observe it."""

    checkpoint: str | os.PathLike[str] | None = None
    say: Callable[[str], object] = _say_nothing  # receives messages for the user
    on_event: Callable[[Training, Event], object] | None = None
    on_photo: Progress | None = None  # receives the photos embedded and their total number


@dataclass(frozen=True)
class CallData:
    """The checked data of a call."""

    x: Tensor  # uint8 images (N, C, H, W), float32 rows (N, d) or embeddings (N, d)
    y: Array  # labels (N,)
    given: Layout  # the form of the samples that the caller gave
    announced: Array | None = None  # from `classes=`
    evaluation: tuple[Tensor, Array] | None = None  # from `eval_set=`
    skipped: tuple[str, ...] = ()  # why files of a folder are not used
    backbone: Backbone | None = None  # that computed x, if there is one
    photos: Tensor | None = None  # what it was computed from, uint8 (N, C, H, W)
    weights: Array | None = None  # of the samples, (N,), above 0

    @property
    def layout(self) -> Layout:
        """The form of x."""
        return self.given if self.backbone is None else Layout((self.backbone.embedding_size,))

    def digest(self) -> str:
        """Return a digest of samples and labels: equal if and only if nothing differs."""
        x, y = (None, None) if self.evaluation is None else self.evaluation
        parts = [self.x, self.y.tolist(), x, None if y is None else y.tolist()]
        return digest(parts if self.weights is None else [*parts, self.weights.tolist()])


@dataclass(frozen=True)
class Reader:
    """Reads samples and labels in the form that a classifier learns.

    Args:
        estimator: The classifier; messages of scikit-learn name it.
        params: Its parameters, checked.
        before: Its knowledge; None if the next call is its first.
        watch: The observers of the call.
        ranks: The processes that embed photos together.
    """

    estimator: Any
    params: Mapping[str, Any]
    before: Learned | None
    watch: Watch = Watch()
    ranks: Ranks = ALONE

    def read_call(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        sample_weight: Any = None,
        skip: Skip = None,
    ) -> CallData:
        """Return the data of a call."""
        with needing_memory("read X", FEWER):
            inputs, backbone = self._read_to_learn(X, skip)
            labels = self.labels(y, inputs.labels, len(inputs.x))
            weights = read_weights(sample_weight, len(labels))
            if weights is not None:  # a sample of weight 0 is as if it were not there
                rows = np.flatnonzero(weights)
                inputs = inputs._replace(x=inputs.x[torch.from_numpy(rows)])
                labels, weights = labels[rows], weights[rows]
            x = self.embed_to_learn(inputs.x, backbone)
        announced = None
        if classes is not None:
            announced = np.unique(read_labels(classes, None, "classes"))
            if announced.dtype.kind != labels.dtype.kind:
                raise InputError("classes has labels of another kind than y")
        given, photos = inputs.layout, None
        if backbone is not None:
            given, photos = photo_layout(backbone), inputs.x
        data = CallData(
            x, labels, given, announced, None, inputs.skipped, backbone, photos, weights
        )
        return data if eval_set is None else replace(data, evaluation=self._test(eval_set, data))

    def _read_to_learn(self, X: Any, skip: Skip) -> tuple[Inputs, Backbone | None]:
        """Return the samples of a call, and the backbone that embeds them, if there is one."""
        if self.before is not None:
            backbone = self.before.setup.backbone
            return self.read_like(X, self.before.setup.given, backbone, skip=skip), backbone
        with reading("X"):
            before_reading = are_photos(X) or self.params["model"] != "auto"
        backbone = choose_backbone(self.params, None) if before_reading else None
        given = None if backbone is None else photo_layout(backbone)
        if is_fine_tuned(self.params):
            return self.read_like(X, given, None, skip=skip), None
        inputs = self.read_like(X, given, backbone, skip=skip)
        return inputs, backbone or choose_backbone(self.params, inputs.layout)

    def read(self, X: Any, name: str = "X") -> Inputs:
        """Return samples to predict, as the network takes them."""
        assert self.before is not None
        setup = self.before.setup
        with needing_memory("read X", FEWER_AT_A_TIME):
            inputs = self.read_like(X, setup.given, setup.backbone, name, part="test")
            return inputs._replace(x=self.embed(inputs.x, setup.backbone))

    def read_like(
        self,
        X: Any,
        given: Layout | None,
        backbone: Backbone | None,
        name: str = "X",
        *,
        skip: Skip = None,
        part: Literal["train", "test"] = "train",
    ) -> Inputs:
        """Return samples of the given form; a backbone decodes photos batch by batch."""
        size, stream = self.params["image_size"], backbone is not None
        return read_inputs(
            X, self.estimator, given, size, name, stream=stream, skip=skip, part=part
        )

    def _test(self, eval_set: Any, data: CallData) -> tuple[Tensor, Array]:
        """Return the samples and labels of `eval_set=`."""
        pair = isinstance(eval_set, (tuple, list)) and len(eval_set) == 2
        X, y = eval_set if pair else (eval_set, None)
        with needing_memory("read eval_set", "give fewer samples"):
            inputs = self.read_like(X, data.given, data.backbone, "eval_set's X", part="test")
            labels = self.labels(y, inputs.labels, len(inputs.x), "eval_set's y")
            return self.embed(inputs.x, data.backbone), labels

    def labels(self, y: Any, own: Any, count: int, name: str = "y") -> Array:
        """Return the labels of `count` samples: those given, or those that X contains itself."""
        if own is not None and y is not None:
            raise InputError(f"{name} is given, but X contains its own labels; omit one of them")
        if own is None and y is None:
            raise InputError(
                f"This {type(self.estimator).__name__} estimator requires y to be passed, but the "
                f"target {name} is None; only datasets and folders contain their own labels"
            )
        labels = read_labels(y if own is None else own, count, name)
        if self.before is not None:
            self.before.labels.check_kind(labels, name)
        return labels

    def embed(self, x: Tensor, backbone: Backbone | None) -> Tensor:
        """Return the samples that training takes: embeddings if there is a backbone.

        Every rank computes its rows and receives all of them.
        """
        if backbone is None:
            return x
        ranks = self.ranks
        device = pick_device(self.params["device"]) if ranks.alone else ranks.device
        own = x if ranks.alone else x[ranks.rows(len(x))]
        with torch_threads(self.params["threads"]):
            return ranks.gather(embed_photos(backbone, own, device, self.watch.on_photo), len(x))

    def embed_to_learn(self, x: Tensor, backbone: Backbone | None) -> Tensor:
        """Return the samples that training takes; an unreadable photo is refused with a remedy."""
        try:
            return self.embed(x, backbone)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}{HINT}") from error


def draw_by_weight(y: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    """Return as many rows as there are samples, drawn in proportion to the weights, (N,).

    The draw is systematic: a sample occurs as often as expected, rounded up or down. A class that
    would have no sample gets its heaviest one.

    >>> y, weights = torch.tensor([0, 0, 1]), torch.tensor([2.0, 0.5, 0.5]).double()
    >>> draw_by_weight(y, weights, torch.Generator().manual_seed(0)).tolist()
    [0, 0, 2]
    """
    count, device = len(y), y.device
    shift = torch.rand((), generator=generator, device=device, dtype=torch.float64)
    places = (torch.arange(count, device=device, dtype=torch.float64) + shift) / count
    ends = weights.cumsum(0)
    rows = torch.searchsorted(ends, places * ends[-1], right=True).clamp(max=count - 1)
    absent = set(y.unique().tolist()) - set(y[rows].unique().tolist())
    heaviest = [int((weights * (y == label)).argmax()) for label in sorted(absent)]
    return torch.cat([rows, torch.tensor(heaviest, dtype=torch.int64, device=device)])
