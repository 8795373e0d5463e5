"""IncrementalClassifier: fit, partial_fit, predict, score, forget, save and load."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from torch import Tensor, nn

from gradmix.classifier import file, notebook
from gradmix.classifier.call import Watch, learn
from gradmix.classifier.export import ClassifierNetwork, write_onnx
from gradmix.classifier.features import Progress
from gradmix.classifier.inputs import Array, Inputs, needing_memory, read_weights
from gradmix.classifier.labels import Label
from gradmix.classifier.params import checked_params
from gradmix.classifier.progress import Callback, observer_for
from gradmix.classifier.samples import FEWER, FEWER_AT_A_TIME, CallData, Reader
from gradmix.classifier.state import Learned
from gradmix.closed_form import energy
from gradmix.errors import FileError, GradMixError, InputError
from gradmix.files import locked
from gradmix.training.checkpoint import seed_on_file

SAVE_SECONDS = 10.0  # how long `save` waits for another writer of the file


@dataclass(eq=False, repr=False)
class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes, and more of known ones, without losing the others.

    The classifier stores a few exemplars of every class. While it learns, it replays them and mixes
    them with the new samples. `fit` starts from nothing; `partial_fit` continues.

    X may be rows of numbers (N, d) or images (N, H, W), (N, C, H, W) or (N, H, W, C), as arrays,
    tensors or a PyTorch dataset. It may be the path of a folder that contains a folder of photos
    for each class, or a list of photos: paths, bytes, open files, Pillow images and arrays of any
    size, also mixed. Photos are resized to the size that was learned first. See docs/classifier.md.

    Calls that change the classifier (`fit`, `partial_fit`, `forget`) run one at a time: a call from
    another thread waits until the first is done. Predictions need not wait.

    Args:
        method: Method; `gradmix list` shows all. "auto": ridge on the features of a pretrained
            backbone, er otherwise.
        mix: Mix by name, partners:blend:labels, or none. "auto": gradmix+, or remix in image
            networks, where it measured better.
        model: Network or pretrained backbone by name, a `torch.nn.Module`, or "auto": an MLP for
            rows and small images; for photos a frozen EfficientNet-Lite0 if the extra `photos` is
            installed, and otherwise a ResNet-18 (a narrow one on CPUs). A module is a network with
            a final linear layer, or with `finetune=` a backbone that maps photos to embeddings.
        weights: File with weights for a backbone, instead of the published ones: safetensors, or a
            state dict that `torch.load(..., weights_only=True)` reads.
        finetune: Layers of a backbone to train: "none", "last" or "all". None: "none" for a named
            backbone; a module is not a backbone.
        exemplars_per_class: Stored samples per class, including held-out ones.
        memory_total: Stored samples in total, shared by the classes, instead of per class.
        exemplar_selection: random, herding, kmeans or kmeans-inputs; None: the method's own rule.
        holdout_per_class: Stored samples per class that are only used for measuring, and to
            recognise unknown classes; None: 10 for photos with a pretrained backbone, else 0.
        keep_images: With a frozen backbone, whether to store the photos of the exemplars beside
            their embeddings.
        head_size: Outputs of the network; None: they grow with the classes.
        epochs: Passes over the data of a call; None: 20, or more if there is little data; 5 with
            `finetune="last"` or "all".
        optimizer: sgd, adam or adamw.
        lr: Learning rate; None: 0.05 for CNNs and ResNets, otherwise 0.01.
        backbone_lr_scale: Learning rate of pretrained layers, as a multiple of `lr`.
        momentum: Momentum of SGD.
        weight_decay: Weight decay; None: 5e-4 for CNNs and ResNets, otherwise none.
        schedule: Learning rate over the epochs: steps, constant, cosine or one-cycle; None: cosine
            for CNNs and ResNets, otherwise steps.
        lr_steps: Epochs after which the schedule "steps" divides the learning rate by 10.
        warmup: Epochs in which the learning rate rises to its value.
        clip_norm: Largest norm of the gradient of a step; None: any.
        label_smoothing: Share of each label that is spread over all outputs.
        batch_size: New samples per step.
        replay_batch_size: Replayed samples per step.
        alpha: α of the Beta distribution of the mixing ratio; None: the mix's own.
        tau: τ of Remix's labels; None: the mix's own, or 0.5 for gradmix+ with few steps.
        tables: Pair tables over λ; None: the mix's own.
        options: Settings of the method, a dict.
        transforms: Augmentation: crop, flip, randaugment; "auto": crop and flip for image networks.
        image_size: Pixels per side of images in folders; None: their own size if all have the same
            size of up to 64 pixels, otherwise 64.
        mean: Mean per column, or per channel of images for bytes, 0 to 255; None: computed from
            the first data.
        std: Standard deviation, likewise.
        criterion_exemplars: New samples per class for the criterion of gradient partners.
        pairing: one-to-one or all-pairs.
        average: Mean of the memory's gradient over each sample or each class.
        early_stopping: Stop when the accuracy on a part of the data, held out for this call, stops
            rising.
        patience: Epochs without a rise before an early stop.
        validation_fraction: Share of each class that early stopping holds out.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: 32-true, bf16-mixed or 16-mixed.
        threads: Threads of PyTorch while learning; None: unchanged.
        verbose: 1 prints progress to the standard error stream.
        random_state: Seed; the same seed on the same type of machine gives the same bits.

    Attributes:
        classes_: The known classes, sorted, including those announced by `classes=`.
        history_: A `Report` for each call.
        report_: The last report.
        n_features_in_: Columns of rows; pixels times channels of images.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> cats, dogs, emus = (rng.normal(centre, size=(20, 4)) for centre in (0.0, 5.0, -5.0))
        >>> classifier = IncrementalClassifier(model="mlp-small", epochs=40, random_state=0)
        >>> classifier = classifier.fit(np.vstack([cats, dogs]), ["cat"] * 20 + ["dog"] * 20)
        >>> classifier = classifier.partial_fit(emus, ["emu"] * 20)
        >>> classifier.predict([[0.0] * 4, [5.0] * 4, [-5.0] * 4]).tolist()
        ['cat', 'dog', 'emu']
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
    batch_size: int = 32
    replay_batch_size: int = 32
    alpha: float | None = None
    tau: float | None = None
    tables: int | None = None
    options: dict[str, float] | None = None
    transforms: Any = "auto"
    image_size: int | None = None
    mean: Any = None
    std: Any = None
    criterion_exemplars: int = 32
    pairing: str = "one-to-one"
    average: str = "sample"
    early_stopping: bool = False
    patience: int = 5
    validation_fraction: float = 0.1
    device: str = "auto"
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

        Arguments, result and errors are those of `partial_fit`.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier.fit([[0.1], [1.2]] * 5, [False, True] * 5).classes_.tolist()
            [False, True]
        """
        with _lock_of(self):
            observer = observer_for(self.verbose, callback)
            reader = self._reader(observer.on_photo, fresh=True)
            data = reader.read_call(X, y, None, eval_set, sample_weight)
            return self._learn(None, data, Watch(on_event=observer.on_event))

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

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.partial_fit([[0.1], [1.2]] * 5, ["a", "b"] * 5)
            >>> classifier = classifier.partial_fit([[2.3]] * 5, ["c"] * 5)
            >>> classifier.report_.new, classifier.classes_.tolist()
            (['c'], ['a', 'b', 'c'])
        """
        with _lock_of(self):
            observer = observer_for(self.verbose, callback)
            reader = self._reader(observer.on_photo)
            data = reader.read_call(X, y, classes, eval_set, sample_weight)
            kept = None if checkpoint is None else _path(checkpoint, "checkpoint")
            return self._learn(reader.before, data, Watch(kept, on_event=observer.on_event))

    def _learn(self, before: Learned | None, data: CallData, watch: Watch) -> IncrementalClassifier:
        seed = self._first_seed(watch) if before is None else before.basis.seed
        what = f"learn {len(data.y)} samples of shape {data.layout.shape}"
        with needing_memory(what, FEWER), _naming_checkpoint(watch):
            self._take(learn(before, self._params(), seed, data, watch))
        return self

    def _reader(self, progress: Progress | None = None, *, fresh: bool = False) -> Reader:
        """Return what reads the data of the next call; a `fresh` one knows of no earlier calls."""
        before = None if fresh else getattr(self, "_learned", None)
        return Reader(self, self._params(), before, progress)

    def _take(self, learned: Learned) -> None:
        """Publish new knowledge; other threads see either the old or the new."""
        layout = learned.basis.given
        self._learned = learned
        self.classes_ = learned.labels.classes
        self.history_ = list(learned.history)
        self.report_ = learned.history[-1]
        self.n_features_in_ = int(np.prod(layout.shape))
        if layout.names is not None:
            self.feature_names_in_ = np.array(layout.names, dtype=object)

    def _params(self) -> dict[str, Any]:
        """Return the checked parameters in the form that files store."""
        params = self.get_params(deep=False)
        params.pop("random_state")
        return checked_params(params)

    def _first_seed(self, watch: Watch) -> int:
        """Return the seed of the first call; a resumed call uses the seed in its checkpoint."""
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
            raise InputError(f"random_state is {str(state)[:80]!r}: {error}") from error

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

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If the samples do not have the form of those learned.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=20, random_state=0)
            >>> classifier = classifier.fit([[0.1], [9.2]] * 5, ["low", "high"] * 5)
            >>> classifier.predict([[0.0], [9.0]]).tolist()
            ['low', 'high']
        """
        learned, scores = self._scores(X)
        known = np.array(learned.labels.known)
        labels: Array = known[scores.argmax(dim=1).numpy()]
        if unknown is None:
            return labels
        learned.labels.check_kind(np.array([unknown]), "unknown")
        novel = energy(scores.double()) > learned.novelty_threshold(false_alarm_rate)
        return np.where(novel.numpy(), unknown, labels)

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each of `classes_`, (N, K).

        Args:
            X: The samples; see `predict`.

        Returns:
            The probabilities; 0 for a class that was announced but never seen.

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If the samples do not have the form of those learned.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.fit([[0.1], [9.2]] * 5, ["low", "high"] * 5)
            >>> classifier.predict_proba([[0.0], [9.0], [5.0]]).shape
            (3, 2)
        """
        learned, scores = self._scores(X)
        return _by_class(scores.double().softmax(dim=1).numpy(), 0.0, learned)

    def decision_function(self, X: Any) -> Array:
        """Return the score of each of `classes_`, (N, K); higher means more likely.

        Args:
            X: The samples; see `predict`.

        Returns:
            The scores; −∞ for a class that was announced but never seen. For two classes, as
            scikit-learn has it: the second class's score minus the first's, (N,).

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If the samples do not have the form of those learned.
        """
        learned, scores = self._scores(X)
        result = _by_class(scores.double().numpy(), -np.inf, learned)
        return result[:, 1] - result[:, 0] if result.shape[1] == 2 else result

    def embed(self, X: Any) -> Array:
        """Return the embeddings of samples, (N, d): the inputs of the classifier's last layer.

        Args:
            X: The samples; see `predict`.

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If the samples do not have the form of those learned.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.fit([[0.1], [9.2]] * 5, ["low", "high"] * 5)
            >>> classifier.embed([[0.0], [9.0]]).shape
            (2, 128)
        """
        learned = self._fitted()
        return learned.embeddings(self._reader_of(learned).read(X).x).numpy()

    def novelty(self, X: Any) -> Array:
        """Return how unlike every learned class each sample is, (N,); higher is more unlike.

        The novelty is the free energy of the scores (Liu et al. 2020).

        Args:
            X: The samples; see `predict`.

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If the samples do not have the form of those learned.
        """
        _, scores = self._scores(X)
        return energy(scores.double()).numpy()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of samples whose class is predicted.

        Args:
            X: The samples; see `predict`.
            y: One known label per sample; datasets and folders contain their own.
            sample_weight: One weight of 0 or more per sample; None: all count the same.

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If an argument cannot be used, or a class was never learned.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=20, random_state=0)
            >>> classifier = classifier.fit([[0.1], [9.2]] * 5, ["low", "high"] * 5)
            >>> classifier.score([[0.0], [9.0]], ["low", "high"])
            1.0
        """
        learned = self._fitted()
        reader = self._reader_of(learned)
        inputs = reader.read(X)
        labels = reader.labels(y, inputs.labels, len(inputs.x))
        weights = read_weights(sample_weight, len(inputs.x))
        truth = learned.labels.encode(labels)
        best = _scores(inputs, learned).argmax(dim=1)
        return float(accuracy_score(truth.numpy(), best.numpy(), sample_weight=weights))

    def exemplars(self) -> tuple[Array, Array]:
        """Return the stored exemplars that are not held out, and their labels.

        Another classifier can learn them, for example with another backbone:
        `IncrementalClassifier(model="timm/resnet50").fit(*classifier.exemplars())`.

        Returns:
            Images (N, C, H, W) or rows (N, d), and labels (N,).

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If only embeddings of photos are stored (`keep_images=False`).

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.fit([[0.1], [9.2]] * 5, ["low", "high"] * 5)
            >>> X, y = classifier.exemplars()
            >>> X.shape, y.shape
            ((10, 1), (10,))
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
            NotFittedError: If nothing has been learned.
            InputError: If the class is unknown or the only one, or X are not its samples.

        Example:
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.fit([[0.1], [1.2], [2.3]] * 5, ["a", "b", "c"] * 5)
            >>> classifier.forget("b").classes_.tolist()
            ['a', 'c']
        """
        with _lock_of(self), needing_memory("forget a class", "free some memory"):
            learned = self._fitted()
            x = None if X is None else self._reader_of(learned).read(X).x
            self._take(learned.forget(label, x))
        return self

    def _fitted(self) -> Learned:
        learned = getattr(self, "_learned", None)
        if learned is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet; call fit or partial_fit"
            )
        return learned  # type: ignore[no-any-return]

    def _reader_of(self, learned: Learned) -> Reader:
        """Return what reads samples to predict with this knowledge."""
        here = {name: getattr(self, name) for name in ("image_size", "device", "threads")}
        return Reader(self, {**learned.basis.params, **here}, learned)

    def _scores(self, X: Any, name: str = "X") -> tuple[Learned, Tensor]:
        """Return the present knowledge, and its scores of the known classes, (N, K)."""
        learned = self._fitted()
        return learned, _scores(self._reader_of(learned).read(X, name), learned)

    @property
    def network_(self) -> ClassifierNetwork:
        """The classifier as one PyTorch module: samples → probabilities of the known classes."""
        return ClassifierNetwork(self._fitted())

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier as an ONNX file; needs the extra `gradmix[export]`.

        The input is a batch of any size of samples as `network_` takes them: uint8 images of the
        size the classifier uses, or float32 rows. The output are the probabilities of the known
        classes. The metadata contain their names.

        Args:
            path: The file; an existing file is replaced.

        Raises:
            NotFittedError: If nothing has been learned.
            MissingPackageError: If the extra is not installed.
            InputError: If the method's predictions are not those of a network.
            FileError: If the file cannot be written.
        """
        write_onnx(self._fitted(), _path(path, "path"))

    def _html_repr(self) -> str:
        """Return what notebooks show; scikit-learn's `_repr_html_` calls it."""
        params = self.get_params(deep=False)
        changed = {
            field.name: params[field.name]
            for field in fields(self)
            if params[field.name] is not field.default and params[field.name] != field.default
        }
        return notebook.table(type(self).__name__, getattr(self, "_learned", None), changed)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learned")

    # --- files ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to one file, completely or not at all. See docs/files.md.

        Args:
            path: The file; an existing file is replaced.

        Raises:
            NotFittedError: If nothing has been learned.
            InputError: If a parameter is invalid.
            FileError: If the file cannot be written, for example because the disk is full.
            FileInUseError: If another process keeps writing the file.

        Example:
            >>> import tempfile
            >>> classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
            >>> classifier = classifier.fit([[0.1], [1.2]] * 5, ["a", "b"] * 5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     classifier.save(f"{folder}/my.gradmix")
            ...     again = IncrementalClassifier.load(f"{folder}/my.gradmix")
            >>> again.classes_.tolist()
            ['a', 'b']
        """
        self._fitted()
        path = _path(path)
        with locked(path, timeout=SAVE_SECONDS), needing_memory(f"write {path}", "free some"):
            self._write(path)

    def _write(self, path: str | os.PathLike[str]) -> None:
        file.write(path, self._params(), self.random_state, self._fitted())

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

        See `save` for an example.
        """
        path, names = _path(path), [field.name for field in fields(cls)]
        with needing_memory(f"load {path}", "free some memory"):
            params, learned = file.read(path, names, model, device, weights)
        classifier = cls(**params)
        classifier._take(learned)
        return classifier


_LOCKS: WeakKeyDictionary[IncrementalClassifier, threading.RLock] = WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


def _lock_of(classifier: IncrementalClassifier) -> threading.RLock:
    """Return the lock of the calls that change a classifier.

    The lock is not an attribute, so that pickling, copying and cloning ignore it.
    """
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(classifier, threading.RLock())


def _scores(inputs: Inputs, learned: Learned) -> Tensor:
    what = f"predict {len(inputs.x)} samples of shape {inputs.layout.shape}"
    with needing_memory(what, FEWER_AT_A_TIME):
        return learned.scores(inputs.x)


def _by_class(values: Array, unseen: float, learned: Learned) -> Array:
    """Return columns of known classes (N, known) in the order of `classes_`, (N, K)."""
    columns = learned.labels.columns
    result = np.full((len(values), len(columns)), unseen)
    for column, label in enumerate(columns):
        if label is not None:
            result[:, column] = values[:, label]
    return result


@contextmanager
def _naming_checkpoint(watch: Watch) -> Iterator[None]:
    """Turn an error of the file system into a FileError that names the checkpoint."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GradMixError) or watch.checkpoint is None:
            raise
        name = os.fspath(watch.checkpoint)[:200]
        raise FileError(f"{name} cannot be used: {error.strerror or error}") from error


def _path(path: Any, name: str = "path") -> str | os.PathLike[str]:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{name} is a {type(path).__name__}; give the name of a file")
    return path
