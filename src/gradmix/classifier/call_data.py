"""The data of a call: read, checked, embedded by a backbone, weighted, and partly held out.

A frozen backbone turns each photo into an embedding, once per call. Training, memory, criterion and
evaluation then work on embeddings. They are rounded to float16 and computed with in float32, so
that a value read from a file equals the value in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from gradmix.classifier.inputs import (
    FEWER_AT_A_TIME,
    Array,
    InputReader,
    Inputs,
    Labels,
    Layout,
    are_photos,
    needing_memory,
    read_labels,
    read_weights,
    reading,
)
from gradmix.classifier.report import Observer, Say
from gradmix.classifier.setup import choose_backbone, is_fine_tuned, photo_layout
from gradmix.classifier.state import Learned, Pictures, bytes_of, digest, picture_of
from gradmix.data.image_folders.given import read_photos
from gradmix.data.image_folders.read import HINT
from gradmix.errors import CorruptFileError, FileError, InputError
from gradmix.files import read_state_file
from gradmix.files.schema import Schema, TensorOf
from gradmix.memory import ReplayMemory, random_priority
from gradmix.memory.replay import Kept, first_of_each_class
from gradmix.methods import Method
from gradmix.models.pretrained import Backbone, fold_batch_norms
from gradmix.ranks import ALONE, Ranks
from gradmix.training import checkpoint as checkpoints
from gradmix.training.build import pick_device, torch_threads
from gradmix.training.loop import EpochDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples

FEWER = "learn fewer samples per call, or set a smaller batch_size, image_size or model"
EMBED_BATCH = 32  # photos that pass the backbone at a time: more do not fit a CPU's caches
QUALITY = 95  # of JPEG; at 90, embeddings of the pictures differ twice as much
SAME = 2e-3  # relative distance of equal embeddings after rounding to 16 bits in files
MEASURED_SHARE = 4  # at most a quarter of the new samples of a class is held out for measuring

Progress = Callable[[int, int], object]  # receives the photos done and the photos in total

# --- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallData:
    """The checked data of a call."""

    x: Tensor  # uint8 images (N, C, H, W), float32 rows (N, d) or embeddings (N, d)
    y: Array  # labels (N,)
    layout: Layout  # the form of x
    labels: Labels  # the known classes with these
    evaluation: tuple[Tensor, Array] | None = None  # from `eval_set=`
    skipped: tuple[str, ...] = ()  # why files of a folder are not used
    backbone: Backbone | None = None  # that computed x, if there is one
    photos: Tensor | None = None  # what it was computed from, uint8 (N, C, H, W)
    weights: Array | None = None  # of the samples, (N,), above 0

    def digest(self) -> str:
        """Return a digest of samples and labels: equal if and only if nothing differs."""
        x, y = (None, None) if self.evaluation is None else self.evaluation
        parts = [self.x, self.y.tolist(), x, None if y is None else y.tolist()]
        return digest(parts if self.weights is None else [*parts, self.weights.tolist()])


@dataclass(frozen=True)
class Reader:
    """Reads samples and labels in the form that a classifier learns."""

    estimator: Any  # the classifier; messages of scikit-learn name it
    params: Mapping[str, Any]  # its parameters, checked
    before: Learned | None  # its knowledge; None if the next call is its first
    observer: Observer = field(default_factory=Observer)
    checkpoint: str | None = None  # the file that keeps the call while it runs
    ranks: Ranks = ALONE  # the processes that embed photos together

    def read_call(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        eval_set: Any = None,
        sample_weight: Any = None,
        skip: Say | None = None,
        *,
        drop_unknown: bool = False,
    ) -> CallData:
        """Return the data of a call; see `partial_fit`, and `InputReader` for `skip`.

        With `drop_unknown`, samples of `eval_set` are dropped if their class is unknown.
        """
        with needing_memory("read X", FEWER):
            inputs, backbone = self._read_to_learn(X, skip)
            labels = self.labels(y, inputs.labels, len(inputs.x))
            weights = read_weights(sample_weight, len(labels))
            if weights is not None:  # a sample of weight 0 is as if it were not there
                rows = np.flatnonzero(weights)
                inputs = inputs._replace(x=inputs.x[torch.from_numpy(rows)])
                labels, weights = labels[rows], weights[rows]
            x = self.embed(inputs.x, backbone, HINT)
        announced = None if classes is None else np.unique(read_labels(classes, None, "classes"))
        if announced is not None and announced.dtype.kind != labels.dtype.kind:
            raise InputError("classes has labels of another kind than y")
        known = (self.before.labels if self.before else Labels()).add(labels, announced)
        given = inputs.layout if backbone is None else photo_layout(backbone)
        photos = None if backbone is None else inputs.x
        layout = inputs._replace(x=x).layout
        evaluation = None
        if eval_set is not None:
            pair = isinstance(eval_set, (tuple, list)) and len(eval_set) == 2
            X, y = eval_set if pair else (eval_set, None)
            with needing_memory("read eval_set", "give fewer samples"):
                test = self._read(X, given, backbone, "eval_set's X", part="test", skip=skip)
                for text in test.skipped:
                    self.observer.say(text)
                if test.labels is None and y is None and isinstance(X, (str, PathLike)):
                    raise InputError(
                        f"{X}: has no class folders; put the images of each class into a folder "
                        "with its name"
                    )
                truth = self.labels(y, test.labels, len(test.x), "eval_set's y")
                if drop_unknown:
                    rows = self._known(truth, known)
                    test, truth = test._replace(x=test.x[torch.from_numpy(rows)]), truth[rows]
                if len(truth):
                    evaluation = self.embed(test.x, backbone, HINT), truth
        return CallData(
            x, labels, layout, known, evaluation, inputs.skipped, backbone, photos, weights
        )

    def read_folders(self, photos: str, test: str | None, skip_unreadable: bool) -> CallData | None:
        """Return folders of photos to learn and to measure on; None if they were learned already.

        Photos to measure on are dropped if their class is unknown.
        """
        skip = self.observer.say if skip_unreadable else None
        data = self.read_call(photos, eval_set=test, skip=skip, drop_unknown=True)
        done = self.ranks.first and self._was_learned(data)
        return None if self.ranks.from_first(int(done)) else data

    def _known(self, labels: Array, known: Labels) -> npt.NDArray[np.int64]:
        """Return which rows have a known class."""
        fits = np.isin(labels, known.known)
        unknown = sorted({*labels[~fits].tolist()})
        if unknown:
            self.observer.say(f"not measured: these classes are unknown: {', '.join(unknown)}")
        return np.flatnonzero(fits)

    def _was_learned(self, data: CallData) -> bool:
        """Whether a call with this data was complete, and only its checkpoint is left."""
        if self.before is None or self.checkpoint is None:
            return False
        try:
            about = read_state_file(self.checkpoint, checkpoints.KIND)["about"]
            identity = {name: about[name] for name in ("parameters", "seed", "past", "data")}
        except (FileError, KeyError, TypeError):
            return False
        return bool(identity["data"] == data.digest() and digest(identity) == self.before.finished)

    def _read_to_learn(self, X: Any, skip: Say | None) -> tuple[Inputs, Backbone | None]:
        """Return the samples of a call, and the backbone that embeds them, if there is one."""
        if self.before is not None:
            setup = self.before.setup
            return self._read(X, setup.given, setup.backbone, skip=skip), setup.backbone
        with reading("X"):
            before_reading = are_photos(X) or self.params["model"] != "auto"
        backbone = choose_backbone(self.params, None) if before_reading else None
        given = None if backbone is None else photo_layout(backbone)
        if is_fine_tuned(self.params):
            return self._read(X, given, None, skip=skip), None
        inputs = self._read(X, given, backbone, skip=skip)
        return inputs, backbone or choose_backbone(self.params, inputs.layout)

    def read(self, X: Any, name: str = "X") -> Inputs:
        """Return samples to predict, as the network takes them."""
        assert self.before is not None
        setup = self.before.setup
        with needing_memory("read X", FEWER_AT_A_TIME):
            inputs = self._read(X, setup.given, setup.backbone, name, part="test")
            return inputs._replace(x=self.embed(inputs.x, setup.backbone))

    def _read(
        self,
        X: Any,
        given: Layout | None,
        backbone: Backbone | None,
        name: str = "X",
        **options: Any,
    ) -> Inputs:
        """Return samples of the given form; a backbone decodes photos batch by batch."""
        size, stream = self.params["image_size"], backbone is not None
        return InputReader(self.estimator, given, size, name, stream, **options).read(X)

    def labels(self, y: Any, own: Any, count: int, name: str = "y") -> Array:
        """Return the labels of `count` samples: those given, or those that X contains itself."""
        if own is not None and y is not None:
            raise InputError(f"{name} is given, but X contains its own labels; omit one of them")
        if own is None and y is None:
            raise InputError(
                f"This {type(self.estimator).__name__} estimator requires y to be passed, but the "
                f"target {name} is None; only datasets, and folders with a folder for each class, "
                "contain their own labels"
            )
        labels = read_labels(y if own is None else own, count, name)
        if self.before is not None:
            self.before.labels.check_kind(labels, name)
        return labels

    def embed(self, x: Tensor, backbone: Backbone | None, hint: str = "") -> Tensor:
        """Return what training takes: embeddings if there is a backbone; ranks share the work."""
        if backbone is None:
            return x
        ranks = self.ranks
        device = pick_device(self.params["device"]) if ranks.alone else ranks.device
        own = x[ranks.rows(len(x))]
        try:
            with torch_threads(self.params["threads"]):
                embedded = embed_photos(backbone, own, device, self.observer.on_photo)
                return ranks.gather(embedded, len(x))
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}{hint}") from error


# --- photos and embeddings -------------------------------------------------------------------


def embed_photos(
    backbone: Backbone, images: Tensor, device: torch.device, progress: Progress | None = None
) -> Tensor:
    """Return the embeddings of uint8 images (N, C, H, W) of any size, float32 (N, d) on the CPU."""
    module = _inference_module(backbone, device)
    parts = [torch.empty(0, backbone.embedding_size)]
    for part in images.split(EMBED_BATCH) if len(images) else ():
        inputs = backbone.normalise(resized(backbone, part).to(device))
        with torch.inference_mode():
            parts.append(module(inputs).half().float().cpu())
        if progress is not None:
            progress(sum(map(len, parts)), len(images))
    return torch.cat(parts).clone()  # an ordinary tensor, not one of inference mode


@lru_cache(maxsize=4)
def _inference_module(backbone: Backbone, device: torch.device) -> nn.Module:
    """Return the backbone for inference on a device, its batch norms folded into convolutions."""
    return fold_batch_norms(backbone.module).to(device)


def resized(backbone: Backbone, images: Tensor) -> Tensor:
    """Return images as RGB of the backbone's size."""
    shape = photo_layout(backbone).shape
    return images if images.shape[1:] == shape else read_photos(list(images), "X", shape=shape)


def keep_pictures(
    exemplars: Tensor, embeddings: Tensor, photos: Tensor, backbone: Backbone, known: Pictures
) -> Pictures:
    """Return the picture of each exemplar, (E, d), in the size that the backbone takes.

    `embeddings` are those of `photos`, then those of older exemplars, whose pictures are `known`.
    """
    place = {row.tobytes(): number for number, row in enumerate(embeddings.cpu().numpy())}
    pictures = []
    for row in exemplars.cpu().numpy():  # the memory copies rows: equal samples have equal bytes
        number = place[row.tobytes()]
        if number < len(photos):
            photo = photos.index_select(0, torch.tensor([number]))  # photos may be files
            image = picture_of(resized(backbone, photo)[0])
            pictures.append(bytes_of(image, "JPEG", quality=QUALITY))
        else:
            pictures.append(known[number - len(photos)])
    return tuple(pictures)


# --- samples to train on, and samples held out -----------------------------------------------


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


def equal_held_out(given: Samples, holdout: ReplayMemory) -> Tensor:
    """Return which samples equal a held-out one of their class, up to rounding in files, (N,)."""
    found = torch.zeros(len(given.y), dtype=torch.bool, device=given.y.device)
    for label in holdout.y.unique():
        rows = (given.y == label).nonzero().flatten()
        held = holdout.x[holdout.y == label].flatten(1).float()  # (K, d)
        distances = torch.cdist(given.x[rows].flatten(1).float(), held)  # (n, K)
        found[rows] = (distances <= SAME * held.norm(dim=1)).any(dim=1)
    return found


def offer(holdout: ReplayMemory, given: Samples, priority: Tensor, repeated: Tensor) -> Tensor:
    """Let samples compete for the holdout; return a mask of those to train on, (N,).

    Every sample ever seen of a class has about the same chance to be held out.
    """
    x, y = given
    left = ~repeated
    fresh = ~torch.isin(y, y[repeated])  # the network may know all samples of other classes
    numbers = torch.bincount(y[fresh], minlength=int(y.max()) + 1) // MEASURED_SHARE
    candidates = first_of_each_class(y, priority, numbers)
    if not len(candidates):
        return left
    holdout.extras = {"row": torch.full_like(holdout.y, -1)} if len(holdout) else {}
    rows = {"row": candidates}
    holdout.add(Samples(x[candidates], y[candidates]), priority[candidates], rows)
    taken = holdout.extras["row"]
    holdout.extras = {}
    left[taken[taken >= 0]] = False
    return left


class StoppingState(Schema):
    """The state of early stopping; the checkpoint of a call contains it."""

    model_config = ConfigDict(frozen=False)

    best: Annotated[int, Field(ge=-1)]  # most correct predictions after an epoch
    since: Annotated[int, Field(ge=0)]  # epochs since then
    weights: dict[str, dict[str, Annotated[Tensor, TensorOf()]]]  # of that epoch, by network
    returned: bool  # whether the exemplars are back in the memory


class EarlyStopping:
    """Ends the first stage when the accuracy on held-out samples stops rising.

    A share of each class of the new samples and of the memory is held out. The networks return to
    the weights of the best epoch, and the exemplars to the memory at the end of the call.
    """

    def __init__(self, method: Method, train: Samples, params: Mapping[str, Any]) -> None:
        share, generator = params["validation_fraction"], method.streams.device("validation")
        chosen = _share_of_each(train.y, share, generator)
        self.left = ~chosen  # the new samples that remain for training, (N,)
        self._patience = params["patience"]  # epochs without a rise before the stage ends
        self._samples = [Samples(train.x[chosen], train.y[chosen])]
        self._exemplars: Kept | None = None  # those held out that came from the memory
        if len(method.memory):
            spared = _share_of_each(method.memory.y, share, generator)
            if bool(spared.any()):  # with one exemplar per class there is none to spare
                self._exemplars = method.memory.split_off(spared)
                self._samples.append(self._exemplars.samples)
        if isinstance(train.x, Tensor):  # samples in files stay there
            x, y = (torch.cat(parts) for parts in zip(*self._samples, strict=True))
            self._samples = [Samples(x, y)]
        returned = self._exemplars is None
        self.state = StoppingState(best=-1, since=0, weights={}, returned=returned)

    def note(self, training: Training, event: EpochDone) -> bool:
        """Look at the accuracy after an epoch; return whether the stage ends early."""
        looks = training.position.stage == 0 and any(len(part.y) for part in self._samples)
        stopped = looks and self._look(training, event)
        last = training.position.stage + 1 == len(training.method.stages())
        over = last and training.position.epoch >= event.epochs
        if over and self._exemplars is not None and not self.state.returned:
            training.method.memory.add(*self._exemplars)
            self.state.returned = True
        return stopped

    def _look(self, training: Training, event: EpochDone) -> bool:
        method, state, number = training.method, self.state, training.benchmark.num_classes
        right = sum(
            int(count_correct(method.predict, part, method.normalise, number)[0].sum())
            for part in self._samples
            if len(part.y)
        )
        state.since += 1
        if right > state.best:
            state.best, state.since = right, 0
            state.weights = {
                name: {key: value.clone() for key, value in network.state_dict().items()}
                for name, network in method.networks().items()
            }
        over = event.epoch >= event.epochs
        stopped = state.since >= self._patience and not over
        if stopped or over:
            for name, network in method.networks().items():
                network.load_state_dict(state.weights[name])
        if stopped:
            training.end_stage()
        return stopped

    def load_state(self, state: StoppingState, method: Method) -> None:
        """Continue from a checkpoint; InputError if its weights do not fit the networks."""
        networks = method.networks()
        for name, weights in state.weights.items():
            own = networks[name].state_dict() if name in networks else {}
            for key, value in weights.items():
                if key not in own or (own[key].shape, own[key].dtype) != (value.shape, value.dtype):
                    raise InputError("record.stopping.weights belong to another network")
        self.state = state


def _share_of_each(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return a mask of about this share of every class, and of at most half of it."""
    priority, counts = random_priority(len(y), generator), y.bincount()
    quota = torch.minimum((counts * share).ceil().long(), counts // 2)
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[first_of_each_class(y, priority, quota)] = True
    return chosen
