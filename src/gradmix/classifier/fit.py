"""One call of fit or partial_fit: from checked data to new knowledge.

A call is one task of the training loop. `learn` prepares it; `Call` trains it and reports.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from gradmix.classifier.defaults import (
    FIXED,
    CallPlan,
    budget,
    choose_method,
    choose_model,
    plan_call,
)
from gradmix.classifier.features import Features
from gradmix.classifier.inputs import Array, Label, Labels, Layout, look_symbolic
from gradmix.classifier.report import Report, few_samples, means, plural
from gradmix.classifier.state import Basis, Learned, copy_of, digest, load_method, new_holdout
from gradmix.criterion import evaluating
from gradmix.data import Benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.data.datasets import channel_statistics, check_statistics
from gradmix.errors import DataWarning, InputError
from gradmix.files.schema import Schema, TensorOf, first_violation
from gradmix.memory import ReplayMemory, random_priority
from gradmix.memory.replay import Kept, first_of_each_class
from gradmix.methods import Method, find_method
from gradmix.randomness import RandomStreams
from gradmix.training.build import make_fabric, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import EpochDone, Event, StepDone, TaskDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FEW_SAMPLES = 5  # fewer samples of a class give a warning
DETAILED_CALLS = 20  # the last calls whose reports keep classes and pairs
KEPT_PAIRS = 50  # avoided pairs in a report


@dataclass(frozen=True)
class CallData:
    """The checked data of a call."""

    x: Tensor  # uint8 images (N, C, H, W) or float32 rows (N, d)
    y: Array  # labels (N,)
    layout: Layout
    announced: Array | None = None  # from `classes=`
    evaluation: tuple[Tensor, Array] | None = None  # from `eval_set=`
    skipped: tuple[str, ...] = ()  # why files of a folder are not used
    features: Features | None = None  # the backbone that computed x, if there is one

    @property
    def given(self) -> Layout:
        """The form of the samples that the caller gave."""
        return self.layout if self.features is None else self.features.photos

    def digest(self) -> str:
        """Return a digest of samples and labels: equal if and only if nothing differs."""
        x, y = (None, None) if self.evaluation is None else self.evaluation
        return digest([self.x, self.y.tolist(), x, None if y is None else y.tolist()])


@dataclass(frozen=True)
class Watch:
    """The checkpoint of a call, and functions that observe it."""

    checkpoint: str | os.PathLike[str] | None = None
    say: Callable[[str], object] | None = None
    on_event: Callable[[Training, Event], object] | None = None


# --- preparing a call -----------------------------------------------------------------------


def learn(
    before: Learned | None, params: Mapping[str, Any], seed: int, data: CallData, watch: Watch
) -> Learned:
    """Return the knowledge after a call; `before` does not change.

    Args:
        before: The knowledge before the call; None starts from nothing.
        params: The classifier's parameters, checked.
        seed: The seed of the first call.
        data: The data of this call.
        watch: The checkpoint and the observers.

    Raises:
        InputError: If the data or parameters do not fit what was learned before.
        DivergedError: If the loss or the scores are not finite.
    """
    labels = (before.labels if before else Labels()).add(data.y, data.announced)
    fabric = make_fabric(params["device"], params["precision"])
    basis = _basis(before, params, seed, data, fabric.device)
    _check_room(params, len(labels.known))
    y = labels.encode(data.y)
    counts = _counts(before, y, len(labels.known))
    remarks = _warn(data, labels, y, counts)
    plan = plan_call(params, basis.model, data.layout, len(y), len(labels.known))
    with torch_threads(params["threads"]):
        call = Call(before, basis, plan, labels, Samples(data.x, y), data, fabric)
        identity = None if watch.checkpoint is None else call.identity(data)
        call.train(watch, identity)
        report = call.report(remarks)
    finished = "" if identity is None else digest(identity)
    history = _history(before, report)
    return Learned(basis, labels, call.method, call.holdout, counts, history, finished)


def _basis(
    before: Learned | None,
    params: Mapping[str, Any],
    seed: int,
    data: CallData,
    device: torch.device,
) -> Basis:
    if before is not None:
        for name in FIXED:
            was = before.basis.params[name]
            if params[name] is not was and params[name] != was:
                raise InputError(
                    f"{name} is {params[name]!r} and was {was!r} in the first call; set it back, "
                    "or call fit to start again"
                )
        return replace(before.basis, params=dict(params))
    mean, std = params["mean"], params["std"]
    if data.features is not None:  # the backbone has its own normalisation
        if mean is not None or std is not None:
            raise InputError(
                f"mean is {mean} and std is {std}; omit them: {data.features.backbone.name} has "
                "its own normalisation"
            )
        zeros, ones = _no_normalisation(data.layout)
        return Basis(dict(params), data.layout, "linear", zeros, ones, seed, data.features)
    model = choose_model(params["model"], data.layout, device)
    if find_method(choose_method(params["method"], model)).trains:
        computed = channel_statistics(data.x)
    else:  # those of the first data would make the result depend on the order of the calls
        computed = _no_normalisation(data.layout)
    mean = computed[0] if mean is None else _numbers("mean", mean)
    std = computed[1] if std is None else _numbers("std", std)
    check_statistics(mean, std, data.layout.shape[0])
    if data.layout.images and params["std"] is not None and max(std) < 1:
        raise InputError(
            f"std is {std}; give mean and std of images for bytes, 0 to 255, even if X has floats "
            "from 0 to 1: multiply both by 255"
        )
    return Basis(dict(params), data.layout, model, mean, std, seed)


def _no_normalisation(layout: Layout) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a mean of 0 and a standard deviation of 1 for each channel or column."""
    size = layout.shape[0]
    return (0.0,) * size, (1.0,) * size


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, given))
    except Exception as error:
        raise InputError(
            f"{name} is {str(given)[:80]!r}; give a number for each channel or column"
        ) from error


def _check_room(params: Mapping[str, Any], classes: int) -> None:
    size = params["head_size"]
    if size is not None and classes > size:
        raise InputError(
            f"head_size is {size}, and there would be {classes} classes; start again with a larger "
            "head_size, or with None"
        )
    budget(params, classes)


def _counts(before: Learned | None, y: Tensor, classes: int) -> tuple[int, ...]:
    counts = y.bincount(minlength=classes).tolist()
    for k, count in enumerate(before.counts if before else ()):
        counts[k] += count
    return tuple(counts)


def _warn(data: CallData, labels: Labels, y: Tensor, counts: tuple[int, ...]) -> list[str]:
    """Warn about data that is hard to learn; return the warnings."""
    remarks = [
        f"{few_samples(labels.known[k])}{plural(counts[k], 'sample')} so far; a class with fewer "
        f"than {FEW_SAMPLES} is hard to learn"
        for k in y.unique().tolist()
        if counts[k] < FEW_SAMPLES
    ]
    if look_symbolic(data.x):
        remarks.append(
            "most columns of X have few different whole numbers, like codes of symbols; mixing "
            "such rows makes little sense: try mix='none'"
        )
    remarks += data.skipped
    for text in remarks:
        warnings.warn(text, DataWarning, stacklevel=5)
    return remarks


def _history(before: Learned | None, report: Report) -> tuple[Report, ...]:
    history = (*(before.history if before else ()), report)
    oldest = report.call - DETAILED_CALLS
    return tuple(entry if entry.call > oldest else entry.shortened() for entry in history)


# --- the call -------------------------------------------------------------------------------


class StoppingRecord(Schema):
    """The declared record of early stopping in a checkpoint."""

    best: Annotated[int, Field(ge=-1)]
    since: Annotated[int, Field(ge=0)]
    weights: dict[str, dict[str, Annotated[Tensor, TensorOf()]]]
    returned: bool


_Counts = Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
_Count = Annotated[int, Field(ge=0)]


class CallRecord(Schema):
    """The declared record of a call in its checkpoint."""

    epochs: _Count
    steps: _Count
    loss: float
    stopped_early: bool
    correct_before: _Counts | None
    correct: _Counts | None
    avoided: list[Annotated[list[Label | float], Field(min_length=3, max_length=3)]]
    avoided_share: float | None
    stopping: StoppingRecord | None


class Call:
    """One call: its method, its data, its training and what it has measured so far."""

    def __init__(
        self,
        before: Learned | None,
        basis: Basis,
        plan: CallPlan,
        labels: Labels,
        samples: Samples,
        data: CallData,
        fabric: Fabric,
    ) -> None:
        self.before, self.basis, self.labels = before, basis, labels
        self.known_before = len(before.labels.known) if before else 0
        self.method = self._build(plan, fabric.device)
        given = Samples(samples.x.to(fabric.device), samples.y.to(fabric.device))
        if before is None and not isinstance(basis.model, str):
            _check_takes(self.method, given.x)
        self.classes = tuple(given.y.unique().tolist())
        self.holdout = new_holdout(basis.params)
        train = self._hold_out(given) if self.holdout is not None else given
        self.stopping: EarlyStopping | None = None
        if basis.params["early_stopping"]:
            train, self.stopping = hold_out(self.method, train, basis.params)
        self.samples = len(train.y)
        self.measured_on, self.test = self._evaluation(data, fabric.device)
        self.training = self._training(plan, train, fabric)
        self.epochs = self.steps = 0
        self.loss = 0.0
        self.stopped_early = False
        self.avoided: list[tuple[Label, Label, float]] = []  # pairs not mixed, and how often
        self.avoided_share: float | None = None  # None: no pairs were to be avoided
        self.done: TaskDone | None = None
        self.correct_before: Tensor | None = None

    def _build(self, plan: CallPlan, device: torch.device) -> Method:
        """Return a method that continues from the knowledge before the call, if there is any."""
        basis, before, known = self.basis, self.before, len(self.labels.known)
        size = max(known, basis.outputs(known))
        outputs = basis.outputs(1 if before else known)
        empty = before is not None and isinstance(basis.model, str)
        streams = RandomStreams(basis.seed, device)
        method = basis.new_method(plan, outputs, size, streams, empty=empty)
        if before is not None:
            past = before.training_state()
            past["method"]["networks"] = copy_of(past["method"]["networks"])  # they are trained
            room = method.memory.exemplars_per_class, method.memory.total
            method.memory.set_budget(*budget(basis.params, self.known_before))
            load_method(method, past, device)
            method.memory.set_budget(*room)
        return method

    def _training(self, plan: CallPlan, train: Samples, fabric: Fabric) -> Training:
        known = len(self.labels.known)
        size = max(known, self.basis.outputs(known))
        names = (*map(str, self.labels.known), *[""] * (size - known))
        task = Task(1, self.classes, train, self.test)
        benchmark = Benchmark(
            "classifier", (task,), names, tuple(range(size)), self.basis.mean, self.basis.std
        )
        return Training(benchmark, self.method, fabric, [TRANSFORMS[n] for n in plan.transforms])

    # --- data to measure on -----------------------------------------------------------------

    def _hold_out(self, given: Samples) -> Samples:
        """Move some new samples to the holdout, at most a quarter of a class; return the others.

        Every sample ever seen of a class has about the same chance to be held out.
        """
        assert self.holdout is not None
        if self.before is not None and self.before.holdout is not None:
            self.holdout.load_state_dict(self.before.holdout.state_dict())
        generator = self.method.streams.device("holdout")
        return offer(self.holdout, given, random_priority(len(given.y), generator))

    def _evaluation(self, data: CallData, device: torch.device) -> tuple[str | None, Samples]:
        if data.evaluation is not None:
            x, y = data.evaluation
            encoded = self.labels.encode(y, "eval_set's y")
            return "eval_set", Samples(x.to(device), encoded.to(device))
        if self.holdout is not None and len(self.holdout):
            return "holdout", self.holdout.samples
        return None, Samples(data.x[:0].to(device), torch.empty(0, dtype=torch.int64).to(device))

    def _measure_before(self) -> Tensor | None:
        """Return the correct predictions before the call, by class."""
        old = self.test.y < self.known_before
        if self.before is None or not bool(old.any()):
            return None
        predict = self.before.scores
        samples = Samples(self.test.x[old], self.test.y[old])
        return count_correct(
            lambda x: predict(x).to(x.device), samples, lambda x: x, self.known_before
        )

    # --- training ---------------------------------------------------------------------------

    def identity(self, data: CallData) -> dict[str, Any]:
        """Return what identifies this call: past, parameters and data."""
        params = {k: v for k, v in self.basis.params.items() if k not in ("model", "threads")}
        return {
            "parameters": params,
            "seed": self.basis.seed,
            "past": self.before.digest() if self.before else "",
            "data": data.digest(),
        }

    def train(self, watch: Watch, identity: Mapping[str, Any] | None) -> None:
        """Train all steps; resume from the checkpoint if there is one."""
        kept = self._checkpoint(watch, identity)
        if kept is None or not kept.resume():
            self.correct_before = self._measure_before()
            if kept is not None:
                kept.save()  # at once: a stop at any time can then be resumed
        for event in self.training.events():
            self.note(event)
            if kept is not None:
                kept.note(event)
            if watch.on_event is not None:
                watch.on_event(self.training, event)
        for network in self.method.networks().values():
            network.eval()

    def _checkpoint(self, watch: Watch, identity: Mapping[str, Any] | None) -> Checkpoint | None:
        if watch.checkpoint is None or identity is None:
            return None
        calls = len(self.before.history) + 1 if self.before else 1
        largest = max(self.training.benchmark.num_classes + 1, calls)
        return Checkpoint(
            watch.checkpoint, self.training, self, identity, say=watch.say, largest=largest
        )

    def note(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, StepDone):
            self.steps += 1
        elif isinstance(event, EpochDone):
            self.epochs += 1
            self.loss = event.loss
            if self.stopping is not None:
                self.stopped_early |= self.stopping.note(self.training, event)
        else:
            self.done = event
            self._note_avoided()

    def state_dict(self) -> dict[str, Any]:
        """Return the record of the call, for a checkpoint."""
        return {
            "epochs": self.epochs,
            "steps": self.steps,
            "loss": self.loss,
            "stopped_early": self.stopped_early,
            "correct_before": self.correct_before,
            "correct": None if self.done is None else self.done.correct["main"],
            "avoided": [list(pair) for pair in self.avoided],
            "avoided_share": self.avoided_share,
            "stopping": None if self.stopping is None else self.stopping.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the record of a checkpoint.

        Raises:
            InputError: If the record is invalid.
        """
        try:
            CallRecord.model_validate(state)
        except ValidationError as error:
            raise InputError(f"record.{first_violation(error)}") from None
        self.epochs, self.steps, self.loss = state["epochs"], state["steps"], state["loss"]
        self.stopped_early = state["stopped_early"]
        self.correct_before = state["correct_before"]
        if self.stopping is not None:
            if state["stopping"] is None:
                raise InputError("record.stopping is missing")
            self._check_best_weights(state["stopping"]["weights"])
            self.stopping.load_state_dict(state["stopping"])
        if state["correct"] is not None:  # the task is done, and there are no more events
            memory = len(self.method.memory)
            self.done = TaskDone(0, {"main": state["correct"]}, torch.empty(0), memory, 0)
            self.avoided = [(a, b, share) for a, b, share in state["avoided"]]
            self.avoided_share = state["avoided_share"]

    def _check_best_weights(self, saved: dict[str, dict[str, Tensor]]) -> None:
        """Check the weights of the best epoch against the networks."""
        own = {name: net.state_dict() for name, net in self.method.networks().items()}
        if not _shapes(saved).items() <= _shapes(own).items():
            raise InputError("record.stopping.weights belong to another network")

    # --- the report -------------------------------------------------------------------------

    def report(self, remarks: list[str]) -> Report:
        """Return the report of the call."""
        known = self.labels.known
        accuracy = self._accuracy()
        return Report(
            call=(self.before.history[-1].call if self.before else 0) + 1,
            new=[known[k] for k in self.classes if k >= self.known_before],
            more=[known[k] for k in self.classes if k < self.known_before],
            samples=self.samples,
            epochs=self.epochs,
            steps=self.steps,
            loss=self.loss,
            stopped_early=self.stopped_early,
            memory=len(self.method.memory),
            held_out=0 if self.holdout is None else len(self.holdout),
            measured_on=self.measured_on,
            accuracy=accuracy,
            **means(accuracy),
            avoided=self.avoided,
            avoided_share=self.avoided_share,
            warnings=remarks,
        )

    def _accuracy(self) -> list[tuple[Label, float | None, float, int]]:
        if self.measured_on is None or self.done is None:
            return []
        totals = self.test.y.cpu().bincount(minlength=len(self.labels.known)).tolist()
        after, before = self.done.correct["main"], self.correct_before
        rows = []
        for k, label in enumerate(self.labels.known):
            if totals[k]:
                known = before is not None and k < self.known_before
                was = float(before[k]) / totals[k] if known and before is not None else None
                rows.append((label, was, float(after[k]) / totals[k], totals[k]))
        return rows

    def _note_avoided(self) -> None:
        """Record the class pairs in S⁻ of the last epoch, with the share of mixing ratios."""
        tables = self.method.selector.tables
        if not tables:
            return
        negative = torch.stack([table.negative for table in tables])  # (T, K, K)
        shares = negative.double().mean(dim=0).cpu()
        classes = [self.labels.known[k] for k in tables[0].classes.tolist()]
        pairs = [
            (a, b, float(shares[i, j]))
            for i, a in enumerate(classes)
            for j, b in enumerate(classes)
            if shares[i, j] > 0
        ]
        pairs.sort(key=lambda pair: -pair[2])
        self.avoided, self.avoided_share = pairs[:KEPT_PAIRS], float(shares.mean())


def _check_takes(method: Method, x: Tensor) -> None:
    """Pass two samples through a copy of the caller's network before training starts."""
    network, some = copy.deepcopy(method.model), method.normalise(x[:2])
    try:
        with torch.no_grad(), evaluating(network):
            found = tuple(network(some).shape)
    except Exception as error:
        raise InputError(
            f"model cannot take samples of shape {tuple(x.shape[1:])}: "
            f"{type(error).__name__}: {error}"
        ) from error
    wanted = len(some), method.head.out_features
    if found != wanted:
        raise InputError(
            f"model returns shape {found} for {len(some)} samples; it must return {wanted}"
        )


# --- held-out samples and early stopping ----------------------------------------------------


def offer(holdout: ReplayMemory, given: Samples, priority: Tensor) -> Samples:
    """Let samples compete for the holdout by priority; return the samples that did not get in."""
    x, y = given
    most = y.bincount() // 4
    candidates = first_of_each_class(y, priority, most)
    if not len(candidates):
        return given
    rows = {"row": candidates}
    holdout.extras = {"row": torch.full_like(holdout.y, -1)} if len(holdout) else {}
    holdout.add(Samples(x[candidates], y[candidates]), priority[candidates], rows)
    taken = holdout.extras["row"]
    holdout.extras = {}
    left = torch.ones(len(y), dtype=torch.bool, device=y.device)
    left[taken[taken >= 0]] = False
    return Samples(x[left], y[left])


def hold_out(
    method: Method, train: Samples, params: Mapping[str, Any]
) -> tuple[Samples, EarlyStopping]:
    """Split a share of each class off the new samples and the memory, for this call."""
    share = params["validation_fraction"]
    generator = method.streams.device("validation")
    chosen = _share_of_each(train.y, share, generator)
    samples = [Samples(train.x[chosen], train.y[chosen])]
    kept = None
    if len(method.memory):
        spared = _share_of_each(method.memory.y, share, generator)
        if bool(spared.any()):  # with one exemplar per class there is none to spare
            kept = method.memory.split_off(spared)
            samples.append(kept.samples)
    x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
    stopping = EarlyStopping(Samples(x, y), kept, params["patience"])
    return Samples(train.x[~chosen], train.y[~chosen]), stopping


def _share_of_each(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return a mask of about this share of every class, and of at most half of it."""
    priority = torch.rand(len(y), generator=generator, device=y.device, dtype=torch.float64)
    counts = y.bincount()
    quota = torch.minimum((counts * share).ceil().long(), counts // 2)
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[first_of_each_class(y, priority, quota)] = True
    return chosen


def _shapes(weights: Mapping[str, Mapping[str, Tensor]]) -> dict[tuple[str, str], Any]:
    """Return shape and dtype of every weight, by network and name."""
    return {
        (network, name): (value.shape, value.dtype)
        for network, part in weights.items()
        for name, value in part.items()
    }


class EarlyStopping:
    """Ends the first stage when the accuracy on held-out samples stops rising.

    The networks then return to the weights of the best epoch. The exemplars return to the memory
    at the end of the call.
    """

    def __init__(self, samples: Samples, exemplars: Kept | None, patience: int) -> None:
        self._samples, self._exemplars, self._patience = samples, exemplars, patience
        self._best, self._since = -1, 0
        self._weights: dict[str, dict[str, Tensor]] = {}

    def note(self, training: Training, event: EpochDone) -> bool:
        """Look at the accuracy after an epoch; return whether the stage ends early."""
        stopped = False
        if training.position.stage == 0 and len(self._samples.y):
            stopped = self._look(training, event)
        last = training.position.stage + 1 == len(training.method.stages())
        if last and training.position.epoch >= event.epochs and self._exemplars is not None:
            training.method.memory.add(*self._exemplars)
            self._exemplars = None
        return stopped

    def _look(self, training: Training, event: EpochDone) -> bool:
        method = training.method
        number = training.benchmark.num_classes
        right = int(count_correct(method.predict, self._samples, method.normalise, number).sum())
        self._since += 1
        if right > self._best:
            self._best, self._since = right, 0
            self._weights = {
                name: {key: value.clone() for key, value in network.state_dict().items()}
                for name, network in method.networks().items()
            }
        over = event.epoch >= event.epochs
        stopped = self._since >= self._patience and not over
        if stopped or over:
            for name, network in method.networks().items():
                network.load_state_dict(self._weights[name])
        if stopped:
            training.end_stage()
        return stopped

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for a checkpoint."""
        return {
            "best": self._best,
            "since": self._since,
            "weights": self._weights,
            "returned": self._exemplars is None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; the samples were held out again."""
        self._best, self._since = state["best"], state["since"]
        self._weights = state["weights"]
        if state["returned"]:
            self._exemplars = None
