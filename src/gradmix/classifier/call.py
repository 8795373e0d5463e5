"""One call of fit or partial_fit: from checked data to new knowledge.

A call is one task of the training loop. `learn` prepares it; `Call` trains it and reports.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor

from gradmix.classifier.basis import Basis, check_takes, first_basis
from gradmix.classifier.defaults import CallPlan, plan_call
from gradmix.classifier.holdout import EarlyStopping, StoppingState, new_holdout, offer
from gradmix.classifier.inputs import look_symbolic
from gradmix.classifier.labels import Label, Labels
from gradmix.classifier.params import budget, is_fine_tuned
from gradmix.classifier.pictures import Pictures, keep_pictures
from gradmix.classifier.report import Report, few_samples, means, plural
from gradmix.classifier.samples import CallData, draw_by_weight
from gradmix.classifier.state import Learned, load_method
from gradmix.classifier.trees import copy_of, digest
from gradmix.data import Benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import DataWarning, InputError
from gradmix.files.schema import Schema, TensorOf, first_violation
from gradmix.memory import random_priority
from gradmix.methods import Method
from gradmix.methods.closed_form import ClosedForm
from gradmix.randomness import RandomStreams
from gradmix.training.build import make_fabric, torch_threads
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import EpochDone, Event, StepDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FEW_SAMPLES = 5  # fewer samples of a class give a warning
DETAILED_CALLS = 20  # the last calls whose reports keep classes and pairs
KEPT_PAIRS = 50  # avoided pairs in a report


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
    known = len(labels.known)
    fabric = make_fabric(params["device"], params["precision"])
    if before is not None:
        basis = before.basis.with_params(params)
    else:
        basis = first_basis(params, seed, data.x, data.layout, data.features, fabric.device)
    params = basis.params
    _check_room(params, known)
    y = labels.encode(data.y)
    counts = y.bincount(minlength=known)
    if before is not None:
        counts[: len(before.counts)] += torch.tensor(before.counts)
    remarks = _warn(data, labels, y, counts.tolist())
    plan = plan_call(params, basis.model, data.layout, len(y), known)
    with torch_threads(params["threads"]):
        call = Call(before, basis, plan, labels, Samples(data.x, y), data, fabric)
        identity = None if watch.checkpoint is None else call.identity(data)
        call.train(watch, identity)
        pictures = call.keep_exemplars(data)
        history = _history(before, call.report(remarks))
    finished = "" if identity is None else digest(identity)
    seen = tuple(counts.tolist())
    return Learned(basis, labels, call.method, call.holdout, seen, history, finished, pictures)


def _check_room(params: Mapping[str, Any], classes: int) -> None:
    size = params["head_size"]
    if size is not None and classes > size:
        raise InputError(
            f"head_size is {size}, and there would be {classes} classes; start again with a larger "
            "head_size, or with None"
        )
    budget(params, classes)


def _warn(data: CallData, labels: Labels, y: Tensor, counts: list[int]) -> list[str]:
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


_Counts = Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
_Count = Annotated[int, Field(ge=0)]


class CallRecord(Schema):
    """What a call has measured so far; its checkpoint contains it."""

    model_config = ConfigDict(frozen=False)

    epochs: _Count
    steps: _Count
    loss: float
    stopped_early: bool
    correct_before: _Counts | None  # before the call, by class
    correct: _Counts | None  # after it
    avoided: list[Annotated[list[Label | float], Field(min_length=3, max_length=3)]]
    avoided_share: float | None  # None: no pairs were to be avoided
    stopping: StoppingState | None


_NOTHING: dict[str, Any] = {
    **{"epochs": 0, "steps": 0, "loss": 0.0, "stopped_early": False, "correct_before": None},
    **{"correct": None, "avoided": [], "avoided_share": None, "stopping": None},
}


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
        self.size = max(len(labels.known), basis.outputs(len(labels.known)))
        self.method = self._build(plan, fabric.device)
        train = Samples(samples.x.to(fabric.device), samples.y.to(fabric.device))
        weights = None
        if data.weights is not None:
            weights = torch.from_numpy(data.weights).to(fabric.device)
        if before is None and not isinstance(basis.model, str) and not is_fine_tuned(basis.params):
            check_takes(self.method, train.x)
        self.classes = tuple(train.y.unique().tolist())
        self.holdout = new_holdout(basis.params)
        if self.holdout is not None:
            if before is not None and before.holdout is not None:
                self.holdout.load_state_dict(before.holdout.state_dict())
            priority = random_priority(len(train.y), self.method.streams.device("holdout"))
            left = offer(self.holdout, train, priority)
            train, weights = _rows(train, left), None if weights is None else weights[left]
        self.stopping: EarlyStopping | None = None
        if basis.params["early_stopping"]:
            left, self.stopping = EarlyStopping.split(self.method, train, basis.params)
            train, weights = _rows(train, left), None if weights is None else weights[left]
        if weights is not None:
            train = self._weighted(train, weights)
        self.samples = len(train.y)
        self.measured_on, self.test = self._evaluation(data, fabric.device)
        self.training = self._training(plan, train, fabric)
        self.record = CallRecord(**_NOTHING)

    def _weighted(self, train: Samples, weights: Tensor) -> Samples:
        """Return the samples to train on; closed-form methods take the weights themselves."""
        if isinstance(self.method, ClosedForm):
            self.method.sample_weights = weights
            return train
        generator = self.method.streams.device("sample weights")
        return _rows(train, draw_by_weight(train.y, weights, generator))

    def _build(self, plan: CallPlan, device: torch.device) -> Method:
        """Return a method that continues from the knowledge before the call, if there is any."""
        basis, before = self.basis, self.before
        outputs = basis.outputs(1 if before else len(self.labels.known))
        empty = before is not None and basis.builds_empty
        streams = RandomStreams(basis.seed, device)
        method = basis.new_method(plan, outputs, self.size, streams, empty=empty)
        if before is not None:
            past = before.training_state()
            past["method"]["networks"] = copy_of(past["method"]["networks"])  # they are trained
            room = method.memory.exemplars_per_class, method.memory.total
            method.memory.set_budget(*budget(basis.params, self.known_before))
            load_method(method, past, device)
            method.memory.set_budget(*room)
        return method

    def _training(self, plan: CallPlan, train: Samples, fabric: Fabric) -> Training:
        names = (*map(str, self.labels.known), *[""] * (self.size - len(self.labels.known)))
        task = Task(1, self.classes, train, self.test)
        order, mean, std = tuple(range(self.size)), self.basis.mean, self.basis.std
        benchmark = Benchmark("classifier", (task,), names, order, mean, std)
        return Training(benchmark, self.method, fabric, [TRANSFORMS[n] for n in plan.transforms])

    def _evaluation(self, data: CallData, device: torch.device) -> tuple[str | None, Samples]:
        """Return what accuracy is measured on: its name, and the samples."""
        if data.evaluation is not None:
            x, y = data.evaluation
            encoded = self.labels.encode(y, "eval_set's y")
            return "eval_set", Samples(x.to(device), encoded.to(device))
        if self.holdout is not None and len(self.holdout):
            return "holdout", self.holdout.samples
        return None, Samples(data.x[:0].to(device), torch.empty(0, dtype=torch.int64).to(device))

    # --- training ---------------------------------------------------------------------------

    def identity(self, data: CallData) -> dict[str, Any]:
        """Return what identifies this call: past, parameters and data."""
        other = ("model", "threads", "verbose")  # they do not identify a call
        params = {k: v for k, v in self.basis.params.items() if k not in other}
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
            self.record.correct_before = self._measure_before()
            if kept is not None:
                kept.save()  # at once: a stop at any time can then be resumed
        for event in self.training.events():
            self._note(event)
            if kept is not None:
                kept.note(event)
            if watch.on_event is not None:
                watch.on_event(self.training, event)
        if isinstance(self.method, ClosedForm):
            self.method.sample_weights = None
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

    def _measure_before(self) -> Tensor | None:
        """Return the correct predictions before the call, by class."""
        old = self.test.y < self.known_before
        if self.before is None or not bool(old.any()):
            return None
        predict = self.before.scores
        return count_correct(
            lambda x: predict(x).to(x.device), _rows(self.test, old), lambda x: x, self.known_before
        )

    def _note(self, event: Event) -> None:
        """Record an event."""
        record = self.record
        if isinstance(event, StepDone):
            record.steps += 1
        elif isinstance(event, EpochDone):
            record.epochs, record.loss = record.epochs + 1, event.loss
            if self.stopping is not None:
                record.stopped_early |= self.stopping.note(self.training, event)
        else:
            record.correct = event.correct["main"].sum(dim=0)
            self._note_avoided()

    def _note_avoided(self) -> None:
        """Record the class pairs in S⁻ of the last epoch, with the share of mixing ratios."""
        tables = self.method.selector.tables
        if not tables:
            return
        negative = torch.stack([table.negative for table in tables])  # (T, K, K)
        shares = negative.double().mean(dim=0).cpu()
        classes = [self.labels.known[k] for k in tables[0].classes.tolist()]
        pairs: list[list[Any]] = [
            [classes[i], classes[j], float(shares[i, j])] for i, j in shares.nonzero().tolist()
        ]
        pairs.sort(key=lambda pair: -pair[2])
        self.record.avoided = pairs[:KEPT_PAIRS]
        self.record.avoided_share = float(shares.mean())

    def state_dict(self) -> dict[str, Any]:
        """Return the record of the call, for a checkpoint."""
        stopping = None if self.stopping is None else self.stopping.state_dict()
        return {**dict(self.record), "stopping": stopping}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the record of a checkpoint.

        Raises:
            InputError: If the record is invalid.
        """
        try:
            self.record = CallRecord.model_validate(state)
        except ValidationError as error:
            raise InputError(f"record.{first_violation(error)}") from None
        if self.stopping is not None:
            if self.record.stopping is None:
                raise InputError("record.stopping is missing")
            self.stopping.load_state(self.record.stopping, self.method)

    def keep_exemplars(self, data: CallData) -> Pictures | None:
        """Return the pictures of the exemplars; None if photos are not kept.

        Closed-form methods have no use for exemplars. With photos, the memory gets some for them.
        """
        if data.features is None or data.photos is None or not self.basis.params["keep_images"]:
            return None
        memory, train = self.method.memory, self.training.benchmark.tasks[0].train
        if not self.method.trains:
            priority = random_priority(len(train.y), self.method.streams.device("memory"))
            memory.add(train, priority)
        x = data.x
        known: Pictures = ()
        if self.before is not None and self.before.pictures is not None:
            x = torch.cat([x, self.before.method.memory.x.cpu()])
            known = self.before.pictures
        return keep_pictures(memory.x, x, data.photos, data.features, known)

    # --- the report -------------------------------------------------------------------------

    def report(self, remarks: list[str]) -> Report:
        """Return the report of the call."""
        known, record = self.labels.known, self.record
        accuracy = self._accuracy()
        return Report(
            call=(self.before.history[-1].call if self.before else 0) + 1,
            new=[known[k] for k in self.classes if k >= self.known_before],
            more=[known[k] for k in self.classes if k < self.known_before],
            samples=self.samples,
            epochs=record.epochs,
            steps=record.steps,
            loss=record.loss,
            stopped_early=record.stopped_early,
            memory=len(self.method.memory),
            held_out=0 if self.holdout is None else len(self.holdout),
            measured_on=self.measured_on,
            accuracy=accuracy,
            **means(accuracy),
            avoided=[tuple(pair) for pair in record.avoided],  # type: ignore[misc]
            avoided_share=record.avoided_share,
            warnings=remarks,
        )

    def _accuracy(self) -> list[tuple[Label, float | None, float, int]]:
        after, before = self.record.correct, self.record.correct_before
        if self.measured_on is None or after is None:
            return []
        totals = self.test.y.cpu().bincount(minlength=len(self.labels.known)).tolist()
        rows = []
        for k, label in enumerate(self.labels.known):
            if totals[k]:
                old = before is not None and k < self.known_before
                was = float(before[k]) / totals[k] if old and before is not None else None
                rows.append((label, was, float(after[k]) / totals[k], totals[k]))
        return rows


def _rows(samples: Samples, rows: Tensor) -> Samples:
    return Samples(samples.x[rows], samples.y[rows])
