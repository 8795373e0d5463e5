"""The data of a call: what callers pass, read, checked and, with a backbone, embedded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradmix.classifier.defaults import choose_features
from gradmix.classifier.features import Features, Progress
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
from gradmix.classifier.params import is_fine_tuned
from gradmix.classifier.state import Learned
from gradmix.classifier.trees import digest
from gradmix.errors import InputError
from gradmix.training.build import pick_device, torch_threads

FEWER = "learn fewer samples per call, or set a smaller batch_size, image_size or model"
FEWER_AT_A_TIME = "give fewer samples at a time"


@dataclass(frozen=True)
class CallData:
    """The checked data of a call."""

    x: Tensor  # uint8 images (N, C, H, W), float32 rows (N, d) or embeddings (N, d)
    y: Array  # labels (N,)
    layout: Layout  # of x
    announced: Array | None = None  # from `classes=`
    evaluation: tuple[Tensor, Array] | None = None  # from `eval_set=`
    skipped: tuple[str, ...] = ()  # why files of a folder are not used
    features: Features | None = None  # the backbone that computed x, if there is one
    photos: Tensor | None = None  # what it was computed from, uint8 (N, C, H, W)
    weights: Array | None = None  # of the samples, (N,), above 0

    @property
    def given(self) -> Layout:
        """The form of the samples that the caller gave."""
        return self.layout if self.features is None else self.features.photos

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
        progress: Receives the number of photos embedded and in total.
    """

    estimator: Any
    params: Mapping[str, Any]
    before: Learned | None
    progress: Progress | None = None

    def read_call(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        sample_weight: Any = None,
        skip: Callable[[str], object] | None = None,
    ) -> CallData:
        """Return the data of a call; `skip` is that of `read_inputs`."""
        with needing_memory("read X", FEWER):
            inputs, features = self._read_to_learn(X, skip)
            labels = self.labels(y, inputs.labels, len(inputs.x))
            weights = read_weights(sample_weight, len(labels))
            if weights is not None:  # a sample of weight 0 is as if it were not there
                rows = np.flatnonzero(weights)
                inputs = inputs._replace(x=inputs.x[torch.from_numpy(rows)])
                labels, weights = labels[rows], weights[rows]
            x = self.embed(inputs.x, features)
        announced = None
        if classes is not None:
            announced = np.unique(read_labels(classes, None, "classes"))
            if announced.dtype.kind != labels.dtype.kind:
                raise InputError("classes has labels of another kind than y")
        layout = inputs.layout if features is None else features.layout
        photos = None if features is None else inputs.x
        data = CallData(
            x, labels, layout, announced, None, inputs.skipped, features, photos, weights
        )
        return data if eval_set is None else replace(data, evaluation=self._test(eval_set, data))

    def _read_to_learn(
        self, X: Any, skip: Callable[[str], object] | None
    ) -> tuple[Inputs, Features | None]:
        """Return the samples of a call, and the backbone that embeds them, if there is one."""
        if self.before is not None:
            basis = self.before.basis
            return self._read_like(X, basis.given, basis.features, skip=skip), basis.features
        with reading("X"):
            before_reading = are_photos(X) or self.params["model"] != "auto"
        features = choose_features(self.params, None) if before_reading else None
        given = None if features is None else features.photos
        if is_fine_tuned(self.params):
            return self._read_like(X, given, None, skip=skip), None
        inputs = self._read_like(X, given, features, skip=skip)
        return inputs, features or choose_features(self.params, inputs.layout)

    def read(self, X: Any, name: str = "X") -> Inputs:
        """Return samples to predict, as the network takes them."""
        assert self.before is not None
        basis = self.before.basis
        with needing_memory("read X", FEWER_AT_A_TIME):
            inputs = self._read_like(X, basis.given, basis.features, name, part="test")
            return inputs._replace(x=self.embed(inputs.x, basis.features))

    def _read_like(
        self,
        X: Any,
        given: Layout | None,
        features: Features | None,
        name: str = "X",
        *,
        skip: Callable[[str], object] | None = None,
        part: Literal["train", "test"] = "train",
    ) -> Inputs:
        """Return samples of the given form; a backbone decodes photos batch by batch."""
        size, stream = self.params["image_size"], features is not None
        return read_inputs(
            X, self.estimator, given, size, name, stream=stream, skip=skip, part=part
        )

    def _test(self, eval_set: Any, data: CallData) -> tuple[Tensor, Array]:
        """Return the samples and labels of `eval_set=`."""
        pair = isinstance(eval_set, (tuple, list)) and len(eval_set) == 2
        X, y = eval_set if pair else (eval_set, None)
        with needing_memory("read eval_set", "give fewer samples"):
            inputs = self._read_like(X, data.given, data.features, "eval_set's X", part="test")
            labels = self.labels(y, inputs.labels, len(inputs.x), "eval_set's y")
            return self.embed(inputs.x, data.features), labels

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

    def embed(self, x: Tensor, features: Features | None) -> Tensor:
        """Return the samples that training takes: embeddings if there is a backbone."""
        if features is None:
            return x
        with torch_threads(self.params["threads"]):
            return features.embed(x, pick_device(self.params["device"]), self.progress)


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
