"""The classifier: fit, partial_fit, predict, save, load, forget."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from torch import Tensor, nn

from gradmix.classifier import files
from gradmix.classifier.call import Data, Watch
from gradmix.classifier.choices import check_params
from gradmix.classifier.inputs import read_inputs
from gradmix.classifier.labels import Label, read_classes, read_labels
from gradmix.classifier.learned import Learned
from gradmix.classifier.learning import learn
from gradmix.errors import InputError
from gradmix.files import locked
from gradmix.training.checkpoint import seed_on_file

Array = npt.NDArray[Any]
SAVE_SECONDS = 10.0  # to wait for another writer of a file


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes, and more of known ones, without losing the others.

    It keeps a few examples of every class and replays them, mixed with the new ones, while it
    learns. `fit` starts anew, `partial_fit` continues. What goes in as X is rows of numbers
    (N, d), images (N, H, W), (N, C, H, W) or (N, H, W, C), as arrays, tensors or a PyTorch
    dataset, or the path of a folder that has a folder of images for each class. See
    docs/classifier.md.

    Args:
        method: Basis method by name, `gradmix list` shows them.
        mix: Mix by name, or partners:blend:labels, or none; "auto": gradmix+, but remix for a
            ResNet that learns in fewer than 3,000 steps, where it was measured to do better.
        model: Network by name, a `torch.nn.Module` with a final linear layer, or "auto": an MLP
            for rows and small images, a ResNet-18 for others (a narrow one on CPUs).
        exemplars_per_class: Samples kept of each class, those held out included.
        memory_total: Or samples kept in all, shared by the classes.
        holdout_per_class: Of those kept, how many are only measured on and never trained on.
        head_size: Outputs of the network from the start; None: they grow with the classes.
        epochs: Passes over the data of a call; None: 20, or more if the data are few.
        lr: Learning rate of SGD; None: 0.01, for a ResNet 0.05.
        momentum: Of SGD.
        weight_decay: Of SGD.
        lr_steps: Epochs at which the learning rate falls to a tenth.
        batch_size: New samples per step.
        replay_batch_size: Replayed samples per step.
        alpha: Of the mix's Beta distribution; None: the mix's own.
        tau: Of Remix's labels; None: the mix's own, for gradmix+ with few steps 0.5.
        tables: Pair tables over λ; None: the mix's own.
        options: The method's own settings, a dict.
        transforms: Of training images: crop, flip, randaugment; "auto": crop and flip for ResNets.
        image_size: What images in folders are resized to; None: as they are if all have one size
            of up to 64 pixels, else 64.
        mean: Per column in its units, or per channel of images in bytes, 0 to 255, whatever X has;
            None: that of the first data.
        std: Likewise.
        criterion_exemplars: New samples per class that gradient partners are judged by.
        pairing: one-to-one or all-pairs.
        average: Of the memory's gradient: sample or class.
        early_stopping: Stop when the accuracy on a part of the new data and the memory, kept from
            training for this call, does not rise any more.
        patience: Epochs without a rise after which to stop.
        validation_fraction: Of every class, for early stopping.
        device: auto, cpu, cuda, cuda:1, mps.
        precision: 32-true, bf16-mixed or 16-mixed.
        threads: Of PyTorch while learning; None: as they are.
        random_state: Seed; the same gives the same bits.

    Attributes:
        classes_: The classes known, sorted; with those announced by `classes=`.
        history_: A `Report` for each call.
        report_: The last of them.
        n_features_in_: Columns of rows; pixels times channels of images.
    """

    def __init__(
        self,
        method: str = "er",
        mix: str = "auto",
        *,
        model: str | nn.Module = "auto",
        exemplars_per_class: int | None = 32,
        memory_total: int | None = None,
        holdout_per_class: int = 0,
        head_size: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        lr_steps: Any = (),
        batch_size: int = 32,
        replay_batch_size: int = 32,
        alpha: float | None = None,
        tau: float | None = None,
        tables: int | None = None,
        options: dict[str, float] | None = None,
        transforms: Any = "auto",
        image_size: int | None = None,
        mean: Any = None,
        std: Any = None,
        criterion_exemplars: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
        early_stopping: bool = False,
        patience: int = 5,
        validation_fraction: float = 0.1,
        device: str = "auto",
        precision: str = "32-true",
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        for name, value in list(locals().items()):
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    # --- learning ---------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, eval_set: Any = None) -> IncrementalClassifier:
        """Learn from nothing; what was learned before is gone. See `partial_fit`."""
        return self._learn(None, self._data(None, X, y, None, eval_set), Watch())

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> IncrementalClassifier:
        """Learn new classes, more of known ones, or both; whatever goes wrong, nothing changes.

        `y` has a label for each sample: text, integers or booleans; datasets and folders have
        their own. `classes` are all that may occur from now on, to announce some or to catch slips.
        Accuracy and forgetting are measured on `eval_set`, (X, y) or a folder, else on what was
        held out. `checkpoint` is a file that keeps the call while it lasts: after a stop the same
        call goes on from there, to the same bits; remove it when the classifier is saved.
        """
        before = getattr(self, "_learned", None)
        data = self._data(before, X, y, classes, eval_set)
        return self._learn(before, data, Watch(checkpoint))

    def _learn(self, before: Learned | None, data: Data, watch: Watch) -> IncrementalClassifier:
        seed = self._first_seed(watch) if before is None else before.basis.seed
        self._take(learn(before, self._params(), seed, data, watch))
        return self

    def _data(
        self,
        before: Learned | None,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        skip: Callable[[str], object] | None = None,
    ) -> Data:
        """What a call is given, checked; `skip` as `read_inputs` has it."""
        self._params()
        layout = None if before is None else before.basis.layout
        x, layout, own = read_inputs(X, self, layout, self.image_size, skip=skip)
        labels = self._labels(y, own, len(x), before)
        announced = None
        if classes is not None:
            announced = np.unique(read_classes(classes, "classes"))
            if announced.dtype.kind != labels.dtype.kind:
                raise InputError("classes has labels of another kind than y")
        evaluation = None if eval_set is None else self._evaluation(eval_set, layout, before)
        return Data(x, labels, layout, announced, evaluation)

    def _take(self, learned: Learned) -> None:
        """Show what was learned; other threads see the old or the new in one piece."""
        layout = learned.basis.layout
        self._learned = learned
        self.classes_ = learned.labels.classes
        self.history_ = list(learned.history)
        self.report_ = learned.history[-1]
        self.n_features_in_ = int(np.prod(layout.shape))
        if layout.names is not None:
            self.feature_names_in_ = np.array(layout.names, dtype=object)

    def _params(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        params.pop("random_state")
        params = {name: _plain(value) for name, value in params.items()}
        check_params(params)
        return params

    def _first_seed(self, watch: Watch) -> int:
        """Without a seed of its own, a call that was stopped goes on with the one it had drawn."""
        drawn = None
        if self.random_state is None and watch.checkpoint is not None:
            drawn = seed_on_file(watch.checkpoint)
        return self._seed() if drawn is None else drawn

    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, (int, np.integer)) and not isinstance(state, bool):
            if state < 0:
                raise InputError(f"random_state is {state}; it must be 0 or more")
            return int(state)
        try:
            return int(check_random_state(state).randint(2**31 - 1))
        except ValueError as error:
            raise InputError(f"random_state is {state!r}: {error}") from error

    def _labels(
        self, y: Any, own: Any, count: int, before: Learned | None, name: str = "y"
    ) -> Array:
        if own is not None and y is not None:
            raise InputError(f"{name} is given, and X has labels of its own; leave out one of them")
        if own is None and y is None:
            raise InputError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target "
                f"{name} is None; only datasets and folders have labels of their own"
            )
        labels = read_labels(y if own is None else own, count, name)
        if before is not None:
            before.labels.check_kind(labels, name)
        return labels

    def _evaluation(
        self, eval_set: Any, layout: Any, before: Learned | None
    ) -> tuple[Tensor, Array]:
        pair = isinstance(eval_set, (tuple, list)) and len(eval_set) == 2
        X, y = eval_set if pair else (eval_set, None)
        x, _, own = read_inputs(X, self, layout, self.image_size, "eval_set's X", part="test")
        return x, self._labels(y, own, len(x), before, "eval_set's y")

    # --- use --------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """The most likely class of each sample."""
        learned = self._fitted()
        best = learned.scores(self._inputs(X, learned).x).argmax(dim=1)
        known = np.array(learned.labels.known)
        return known[best.numpy()]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each of `classes_`, (N, K); 0 if it was announced and never seen."""
        learned = self._fitted()
        scores = learned.scores(self._inputs(X, learned).x)
        shares = scores.double().softmax(dim=1).numpy()
        columns = learned.labels.columns
        result = np.zeros((len(shares), len(columns)))
        for column, label in enumerate(columns):
            if label is not None:
                result[:, column] = shares[:, label]
        return result

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of samples whose class is predicted; InputError for classes never learned."""
        learned = self._fitted()
        inputs = self._inputs(X, learned)
        labels = self._labels(y, inputs.labels, len(inputs.x), learned)
        truth = learned.labels.encode(labels)
        best = learned.scores(inputs.x).argmax(dim=1)
        return float(accuracy_score(truth.numpy(), best.numpy(), sample_weight=sample_weight))

    def forget(self, label: Label) -> IncrementalClassifier:
        """Remove a class: its exemplars, its outputs, its name; files saved then have none of it.

        What other parts of the network have learned from it, no one can take out.
        """
        if isinstance(label, np.generic):
            label = label.item()
        self._take(self._fitted().forget(label))
        return self

    def _fitted(self) -> Learned:
        learned = getattr(self, "_learned", None)
        if learned is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet; call fit or partial_fit"
            )
        return learned  # type: ignore[no-any-return]

    def _inputs(self, X: Any, learned: Learned) -> Any:
        return read_inputs(X, self, learned.basis.layout, None, part="test")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learned")

    # --- files ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file: whole, or not at all. See docs/files.md."""
        learned = self._fitted()
        with locked(path, timeout=SAVE_SECONDS):
            files.write(path, self, learned)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        device: str | None = None,
    ) -> IncrementalClassifier:
        """Read a file that `save` wrote; nothing in it is run.

        `model` is the network if it was one of your own, `device` another than was used before.
        """
        names = _names_of(cls)  # type: ignore[arg-type]  # classes can be hashed
        params, learned = files.read(path, names, model, device)
        classifier = cls(**params)
        classifier._take(learned)
        return classifier


@cache
def _names_of(kind: type[BaseEstimator]) -> tuple[str, ...]:
    """Of its parameters."""
    return tuple(kind._get_param_names())


def _plain(value: Any) -> Any:
    """Parameters as files have them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
