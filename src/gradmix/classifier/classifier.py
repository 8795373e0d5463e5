"""IncrementalClassifier: fit, partial_fit, predict, score, forget, save and load."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from inspect import cleandoc
from operator import methodcaller
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from gradmix._setting_docs import classifier_help
from gradmix.classifier import file
from gradmix.classifier.call import learn
from gradmix.classifier.call_data import FEWER, CallData, Reader
from gradmix.classifier.export import ExportMixin
from gradmix.classifier.inputs import Array, Label, needing_memory, read_path, read_weights
from gradmix.classifier.report import Callback, Observer, say_nothing, table
from gradmix.classifier.setup import checked_params
from gradmix.classifier.state import Learned
from gradmix.closed_form import energy
from gradmix.errors import FileError, GradMixError
from gradmix.files import locked
from gradmix.training.launch import Devices, Job, open_job

SAVE_SECONDS = 10.0  # how long `save` waits for another writer of the file
NOT_IN_PARAMS = ("random_state", "devices")  # files store the first by itself, the second not
Read = Callable[[Reader], CallData | None]  # reads the data of a call; None: nothing to learn


@dataclass(eq=False, repr=False)
class IncrementalClassifier(ExportMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes, and more of known ones, without losing the others.

    The classifier stores a few exemplars of every class. While it learns, it replays them and mixes
    them with the new samples. `fit` starts from nothing; `partial_fit` continues.

    X may be rows of numbers (N, d) or images (N, H, W), (N, C, H, W) or (N, H, W, C), as arrays,
    tensors or a PyTorch dataset. It may be the path of a folder that contains a folder of photos
    for each class, or a list of photos: paths, bytes, open files, Pillow images and arrays of any
    size, also mixed. Photos are resized to the size that was learned first. See docs/classifier.md.

    The model may be a `torch.nn.Module`: a network with a final linear layer, or with `finetune=` a
    backbone that maps photos to embeddings.

    Calls that change the classifier (`fit`, `partial_fit`, `forget`) run one at a time: a call from
    another thread waits until the first is done. Predictions need not wait.

    Every method raises an InputError, which names the argument, the value and the remedy, if an
    argument cannot be used. Methods that use what was learned raise a NotFittedError before the
    first call.

    Args:
        PARAMETERS

    Attributes:
        classes_: The known classes, sorted, including those announced by `classes=`.
        history_: A `Report` for each call.
        report_: The last report.
        n_features_in_: Columns of rows; pixels times channels of images.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> rng = np.random.default_rng(0)
        >>> cats, dogs, emus = (rng.normal(centre, size=(20, 4)) for centre in (0.0, 5.0, -5.0))
        >>> classifier = IncrementalClassifier(model="mlp-small", epochs=40, random_state=0)
        >>> classifier = classifier.fit(np.vstack([cats, dogs]), ["cat"] * 20 + ["dog"] * 20)
        >>> classifier = classifier.partial_fit(emus, ["emu"] * 20)
        >>> classifier.report_.new, classifier.classes_.tolist()
        (['emu'], ['cat', 'dog', 'emu'])
        >>> X = [[0.0] * 4, [5.0] * 4, [-5.0] * 4]
        >>> classifier.predict(X).tolist(), classifier.score(X, ["cat", "dog", "emu"])
        (['cat', 'dog', 'emu'], 1.0)
        >>> classifier.predict_proba(X).shape, classifier.embed(X).shape
        ((3, 3), (3, 128))
        >>> [part.shape for part in classifier.exemplars()]
        [(60, 4), (60,)]
        >>> with TemporaryDirectory() as folder:
        ...     classifier.forget("dog").save(f"{folder}/my.gradmix")
        ...     again = IncrementalClassifier.load(f"{folder}/my.gradmix")
        >>> again.classes_.tolist()
        ['cat', 'emu']
    """

    method: str = "auto"
    mix: str = "auto"
    _: KW_ONLY
    model: str | nn.Module = "auto"
    weights: str | os.PathLike[str] | None = None
    finetune: str | None = None
    exemplars_per_class: int | None = 32
    memory_total: int | None = None
    exemplar_selection: str | None = None
    holdout_per_class: int | None = None
    keep_images: bool = True
    head_size: int | None = None
    epochs: int | None = None
    optimizer: str = "sgd"
    lr: float | None = None
    backbone_lr_scale: float = 0.1
    momentum: float = 0.9
    weight_decay: float | None = None
    schedule: str | None = None
    lr_steps: Any = ()
    warmup: float = 0.0
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    logit_adjustment: float = 0.0
    batch_size: int = 32
    replay_batch_size: int = 32
    alpha: float | None = None
    tau: float | None = None
    tables: int | None = None
    mix_first_task: str | None = None
    options: dict[str, float] | None = None
    transforms: Any = "auto"
    image_size: int | None = None
    mean: Any = None
    std: Any = None
    criterion_exemplars: int = 32
    pairing: str = "one-to-one"
    gradient: str = "memory"
    average: str = "sample"
    early_stopping: bool = False
    patience: int = 5
    validation_fraction: float = 0.1
    device: str = "auto"
    devices: int = 1
    precision: str = "32-true"
    threads: int | None = None
    verbose: int = 0
    random_state: Any = None

    # --- learning ---------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        eval_set: Any = None,
        *,
        sample_weight: Any = None,
        callback: Callback | None = None,
    ) -> IncrementalClassifier:
        """Learn from nothing; earlier knowledge is replaced.

        `partial_fit` describes the arguments, the result and the errors.
        """
        return self._call((X, y, None, eval_set, sample_weight), callback, None, fresh=True)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        sample_weight: Any = None,
        callback: Callback | None = None,
    ) -> IncrementalClassifier:
        """Learn new classes, more samples of known classes, or both.

        Args:
            X: The samples; see the class.
            y: One label per sample: text, integers or booleans. Datasets and folders contain their
                own labels.
            classes: All classes that may occur from now on. Later labels must be among them.
            eval_set: Data to measure accuracy and forgetting on: (X, y), a dataset or a folder.
                Without it, held-out samples are used if there are any.
            checkpoint: A file that stores the call while it runs. After a stop, the same call
                resumes from it with identical results. Remove it when the classifier is saved.
            sample_weight: One weight of 0 or more per sample. Closed-form methods (ridge, slda,
                ncm) learn a sample of weight 2 exactly like two samples. Methods that train draw
                as many samples as there are, with probabilities in proportion to the weights.
            callback: A function that receives the events of the training loop (`StepDone`,
                `EpochDone` and `TaskDone` of `gradmix.training.loop`), and `PhotosEmbedded`.

        Returns:
            The classifier itself.

        Raises:
            InputError: If data or parameters cannot be used, or do not fit earlier calls.
            DivergedError: If training diverged.
            FileError: If the checkpoint cannot be used.
            OutOfMemoryError: If there is not enough memory.

        After any error the classifier is as it was before the call. A call from another thread
        waits until this one is done.
        """
        kept = None if checkpoint is None else read_path(checkpoint, "checkpoint")
        return self._call((X, y, classes, eval_set, sample_weight), callback, kept, fresh=False)

    # --- use --------------------------------------------------------------------------------

    def predict(
        self, X: Any, *, unknown: Label | None = None, false_alarm_rate: float = 0.05
    ) -> Array:
        """Return the most likely class of each sample.

        Args:
            X: The samples; see the class. A single photo needs no list.
            unknown: A label for samples that resemble no learned class; None always names a
                class. It needs held-out samples (`holdout_per_class`).
            false_alarm_rate: The share of samples of learned classes that may be called unknown.

        Returns:
            The labels, (N,).
        """
        learned, scores = self._scores_of(X)
        labels: Array = np.array(learned.labels.known)[scores.argmax(dim=1).numpy()]
        if unknown is None:
            return labels
        learned.labels.check_kind(np.array([unknown]), "unknown")
        novel = energy(scores.double()) > learned.novelty_threshold(false_alarm_rate)
        return np.where(novel.numpy(), unknown, labels)

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each of `classes_`, (N, K); 0 for a class that was never seen.

        Args:
            X: The samples; see `predict`.
        """
        learned, scores = self._scores_of(X)
        return learned.labels.by_class(scores.double().softmax(dim=1).numpy(), 0.0)

    def decision_function(self, X: Any) -> Array:
        """Return the score of each of `classes_`, (N, K); −∞ for a class that was never seen.

        For two classes, as scikit-learn has it: the second class's score minus the first's, (N,).

        Args:
            X: The samples; see `predict`.
        """
        learned, scores = self._scores_of(X)
        result = learned.labels.by_class(scores.double().numpy(), -np.inf)
        return result[:, 1] - result[:, 0] if result.shape[1] == 2 else result

    def embed(self, X: Any) -> Array:
        """Return the embeddings of samples, (N, d): the inputs of the classifier's last layer.

        Args:
            X: The samples; see `predict`.
        """
        learned = self._fitted()
        return learned.embeddings(self._reader_of(learned).read(X).x).numpy()

    def novelty(self, X: Any) -> Array:
        """Return how unlike all learned classes samples are, (N,): their energy (Liu et al. 2020).

        Args:
            X: The samples; see `predict`.
        """
        _, scores = self._scores_of(X)
        return energy(scores.double()).numpy()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of samples whose class is predicted.

        Args:
            X: The samples; see `predict`.
            y: One known label per sample; datasets and folders contain their own.
            sample_weight: One weight of 0 or more per sample; None: all count the same.
        """
        learned = self._fitted()
        reader = self._reader_of(learned)
        inputs = reader.read(X)
        labels = reader.labels(y, inputs.labels, len(inputs.x))
        weights = read_weights(sample_weight, len(inputs.x))
        truth = learned.labels.encode(labels).numpy()
        best = learned.scores(inputs.x).argmax(dim=1).numpy()
        return float(accuracy_score(truth, best, sample_weight=weights))

    def exemplars(self) -> tuple[Array, Array]:
        """Return the stored exemplars that are not held out, and their labels.

        Another classifier can learn them, for example with another backbone:
        `IncrementalClassifier(model="timm/resnet50").fit(*classifier.exemplars())`.

        Returns:
            Images (N, C, H, W) or rows (N, d), and labels (N,).

        Raises:
            InputError: If only embeddings of photos are stored (`keep_images=False`).
        """
        learned = self._fitted()
        x, y = learned.exemplars()
        return x.numpy(), np.array(learned.labels.known)[y.numpy()]

    def forget(self, label: Label, X: Any = None) -> IncrementalClassifier:
        """Remove a class: its exemplars, its outputs and its name.

        Files saved afterwards contain nothing of the class itself. What the rest of a trained
        network learned from it cannot be removed.

        Closed-form methods train no network. `ncm` forgets exactly: it is as if it had never
        learned the class. `ridge` and `slda` forget exactly if X is given, or if all samples of the
        class are stored; otherwise they assume that the class varies like all classes on average.

        Args:
            label: A known class.
            X: All samples that the class was learned from, for `ridge` and `slda`.

        Returns:
            The classifier itself.

        Raises:
            InputError: If the class is unknown or the only one, or X are not its samples.
        """
        with _lock_of(self), needing_memory("forget a class", "free some memory"):
            learned = self._fitted()
            x = None if X is None else self._reader_of(learned).read(X).x
            self._take(learned.forget(label, x))
        return self

    # --- files ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, include_exemplars: bool = True) -> None:
        """Write the classifier to one file, completely or not at all. See docs/files.md.

        Args:
            path: The file; an existing file is replaced.
            include_exemplars: Whether the file contains exemplars and held-out samples. A file
                without them predicts the same. It learns more only if its method replays nothing,
                such as `ridge`, and it cannot recognise unknown classes.

        Raises:
            InputError: If predictions need the exemplars (`icarl`, `scr`), and they are excluded.
            FileError: If the file cannot be written, for example because the disk is full.
            FileInUseError: If another process keeps writing the file.
        """
        learned, target = self._fitted(), read_path(path)
        with locked(target, timeout=SAVE_SECONDS), needing_memory(f"write {target}", "free some"):
            self._write(target, learned if include_exemplars else learned.without_samples())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        device: str | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> IncrementalClassifier:
        """Return the classifier in a file that `save` wrote; nothing in the file is executed.

        Args:
            path: The file.
            model: The network, if the classifier was created with a network of your own.
            device: Another device than the saved one.
            weights: The file with the backbone's weights, if it was moved.

        Raises:
            FileError: If the file is missing or damaged, or its predictions are not finite.
            InputError: If `model`, `device` or `weights` does not fit.
        """
        source = read_path(path)
        defaults = {f.name: f.default for f in fields(cls) if f.name not in NOT_IN_PARAMS}
        with needing_memory(f"load {source}", "free some memory"):
            params, learned = file.read(source, defaults, model, device, weights)
        classifier = cls(**params)
        classifier._take(learned)
        return classifier

    # --- private ----------------------------------------------------------------------------

    def _call(
        self,
        given: tuple[Any, ...],
        callback: Callback | None,
        checkpoint: str | None,
        *,
        fresh: bool,
    ) -> IncrementalClassifier:
        """Learn the arguments of `Reader.read_call`; `fresh` starts from nothing."""
        with _lock_of(self):
            loud = self._params()["verbose"] > 0
            say = partial(print, file=sys.stderr, flush=True) if loud else say_nothing
            read = methodcaller("read_call", *given)
            self._learn(read, Observer(say, callback), checkpoint, fresh=fresh)
            return self

    def _learn(
        self, read: Read, observer: Observer, checkpoint: str | None, *, fresh: bool = False
    ) -> bool:
        """Learn the data that `read` returns, on one device or several; False if it is None."""
        params, before = self._params(), None if fresh else getattr(self, "_learned", None)
        reader = Reader(self, params, before, observer, checkpoint)
        wanted = Devices(self.devices)
        follow = partial(self._learn_in, read, replace(reader, observer=Observer()))
        with open_job(params["device"], params["precision"], wanted, follow) as job:
            return self._learn_in(read, reader, job)

    def _learn_in(self, read: Read, reader: Reader, job: Job) -> bool:
        """Learn as one of the ranks of a job; rank 0 shows and writes everything."""
        reader = replace(reader, ranks=job.ranks)
        data, checkpoint = read(reader), reader.checkpoint
        if data is None:
            return False
        try:
            with needing_memory(f"learn {len(data.y)} samples of shape {data.layout.shape}", FEWER):
                self._take(learn(reader, data, self.random_state, job))
        except OSError as error:
            if checkpoint is None or isinstance(error, GradMixError):
                raise
            reason = error.strerror or error
            raise FileError(f"{checkpoint[:200]} cannot be used: {reason}") from error
        return True

    def _take(self, learned: Learned) -> None:
        """Publish new knowledge; other threads see either the old or the new."""
        layout = learned.setup.given
        self._learned = learned
        self.classes_ = learned.labels.classes
        self.history_ = list(learned.history)
        self.report_ = learned.history[-1]
        self.n_features_in_ = int(np.prod(layout.shape))
        if layout.names is not None:
            self.feature_names_in_ = np.array(layout.names, dtype=object)

    def _write(self, path: str | os.PathLike[str], learned: Learned | None = None) -> None:
        file.write(path, self._params(), self.random_state, learned or self._fitted())

    def _params(self) -> dict[str, Any]:
        """Return the checked parameters in the form that files store."""
        params = self.get_params(deep=False)
        return checked_params({k: v for k, v in params.items() if k not in NOT_IN_PARAMS})

    def _fitted(self) -> Learned:
        """Return the knowledge; NotFittedError before the first call."""
        check_is_fitted(self)
        return self._learned

    def _reader_of(self, learned: Learned) -> Reader:
        """Return what reads samples to predict with this knowledge."""
        here = {"device": self.device, "threads": self.threads}
        return Reader(self, {**learned.setup.params, **here}, learned)

    def _scores_of(self, X: Any, name: str = "X") -> tuple[Learned, Tensor]:
        """Return the present knowledge and its scores of the known classes, (N, K)."""
        learned = self._fitted()
        return learned, learned.scores(self._reader_of(learned).read(X, name).x)

    def _html_repr(self) -> str:
        """Return what notebooks show; scikit-learn's `_repr_html_` calls it."""
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if repr(getattr(self, field.name)) != repr(field.default)  # arrays have no ==
        }
        return table(type(self).__name__, getattr(self, "_learned", None), changed)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learned")


_LOCKS: WeakKeyDictionary[IncrementalClassifier, threading.RLock] = WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


def _lock_of(classifier: IncrementalClassifier) -> threading.RLock:
    """Return the lock of a classifier; as no attribute, so that pickling and copying ignore it."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(classifier, threading.RLock())


# The parameters are described where `gradmix/settings.py` declares them.
IncrementalClassifier.__doc__ = cleandoc(IncrementalClassifier.__doc__ or "").replace(
    "    PARAMETERS\n",
    classifier_help([field.name for field in fields(IncrementalClassifier)], indent=4),
)
