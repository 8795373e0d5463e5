"""One call of fit or partial_fit at work: one task of the training loop."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradmix.classifier.choices import Choices, budget
from gradmix.classifier.inputs import Layout
from gradmix.classifier.labels import Array, Label, Labels
from gradmix.classifier.learned import (
    Basis,
    Learned,
    copy_of,
    digest,
    load_method,
    new_holdout,
)
from gradmix.classifier.report import Report, means
from gradmix.classifier.stopping import EarlyStopping, hold_out
from gradmix.criterion import evaluating
from gradmix.data import Benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory, random_priority
from gradmix.memory.selection import first_of_each_class
from gradmix.methods import Method
from gradmix.randomness import RandomStreams
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.evaluate import count_correct
from gradmix.training.loop import EpochDone, Event, StepDone, TaskDone, Training
from gradmix.types import PairTable, Samples, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

KEPT_PAIRS = 50  # of the avoided pairs in a report


@dataclass(frozen=True)
class Data:
    """What a call is given, checked."""

    x: Tensor
    y: Array
    layout: Layout
    announced: Array | None = None
    evaluation: tuple[Tensor, Array] | None = None

    def digest(self) -> str:
        """Equal if and only if nothing differs."""
        x, y = (None, None) if self.evaluation is None else self.evaluation
        return digest([self.x, self.y.tolist(), x, None if y is None else y.tolist()])


@dataclass(frozen=True)
class Watch:
    """Who looks on, and where an unfinished call is kept."""

    checkpoint: str | os.PathLike[str] | None = None
    say: Callable[[str], object] | None = None
    on_event: Callable[[Training, Event], object] | None = None


class Call:
    """One call at work; its record is kept in checkpoints."""

    def __init__(
        self,
        before: Learned | None,
        basis: Basis,
        choices: Choices,
        labels: Labels,
        samples: Samples,
        data: Data,
        fabric: Fabric,
    ) -> None:
        self.before, self.basis, self.labels, self.choices = before, basis, labels, choices
        known = len(labels.known)
        size = max(known, basis.outputs(known))
        outputs = basis.outputs(1 if before else known)
        device = fabric.device
        empty = before is not None and isinstance(basis.model, str)
        streams = RandomStreams(basis.seed, device)
        self.method = basis.new_method(choices, outputs, size, streams, empty=empty)
        given = Samples(samples.x.to(device), samples.y.to(device))
        if before is None and not isinstance(basis.model, str):
            _check_takes(self.method, given.x)
        past = None if before is None else before.training_state()
        if past is not None:
            memory = self.method.memory
            room = memory.exemplars_per_class, memory.total
            memory.set_budget(*budget(basis.params, self.known_before))
            past["method"]["networks"] = copy_of(past["method"]["networks"])  # to be trained
            load_method(self.method, past, device)
            memory.set_budget(*room)
        self.new_classes = [k for k in given.y.unique().tolist() if k >= self.known_before]
        self.old_classes = [k for k in given.y.unique().tolist() if k < self.known_before]
        self.holdout = new_holdout(basis.params)
        train = self._hold_out(given) if self.holdout is not None else given
        self.stopping: EarlyStopping | None = None
        if basis.params["early_stopping"]:
            train, self.stopping = hold_out(self.method, train, basis.params)
        self.samples = len(train.y)
        self.measured_on, self.test = self._evaluation(data, device)
        task = Task(1, tuple(given.y.unique().tolist()), train, self.test)
        names = tuple(str(label) for label in labels.known)
        names += ("",) * (size - known)
        benchmark = Benchmark(
            "classifier", (task,), names, tuple(range(size)), basis.mean, basis.std
        )
        transforms = [TRANSFORMS[name] for name in choices.transforms]
        self.training = Training(benchmark, self.method, fabric, transforms)
        self.epochs = self.steps = 0
        self.loss = 0.0
        self.stopped_early = False
        self.tables: tuple[PairTable, ...] = ()
        self.done: TaskDone | None = None
        self.correct_before: Tensor | None = None

    @property
    def known_before(self) -> int:
        """Classes that were known."""
        return len(self.before.labels.known) if self.before else 0

    # --- what is measured -------------------------------------------------------------------

    def _hold_out(self, given: Samples) -> Samples:
        """Put some new samples into the holdout, at most a fourth of a class; the others.

        Every sample ever seen of a class has the same chance to be there, as far as it goes.
        """
        assert self.holdout is not None
        if self.before is not None and self.before.holdout is not None:
            self.holdout.load_state_dict(self.before.holdout.state_dict())
        generator = self.method.streams.device("holdout")
        return offer(self.holdout, given, random_priority(len(given.y), generator))

    def _evaluation(self, data: Data, device: torch.device) -> tuple[str | None, Samples]:
        if data.evaluation is not None:
            x, y = data.evaluation
            encoded = self.labels.encode(y, "eval_set's y")
            return "eval_set", Samples(x.to(device), encoded.to(device))
        if self.holdout is not None and len(self.holdout):
            return "holdout", self.holdout.samples
        return None, Samples(data.x[:0].to(device), torch.empty(0, dtype=torch.int64).to(device))

    def _measure_before(self) -> Tensor | None:
        if self.before is None or not len(self.test.y):
            return None
        old = self.test.y < self.known_before
        samples = Samples(self.test.x[old], self.test.y[old])
        if not len(samples.y):
            return None
        predict = self.before.scores
        known = self.known_before
        return count_correct(
            lambda x: predict(x).to(x.device),
            samples,
            lambda x: x,
            max(known, 1),
        )

    # --- training ---------------------------------------------------------------------------

    def identity(self, data: Data) -> dict[str, Any]:
        """What this call is: the same only with the same past, parameters and data."""
        params = {k: v for k, v in self.basis.params.items() if k not in ("model", "threads")}
        return {
            "parameters": params,
            "seed": self.basis.seed,
            "past": self.before.digest() if self.before else "",
            "data": data.digest(),
        }

    def train(self, watch: Watch, identity: Mapping[str, Any] | None) -> None:
        """All steps, from where a checkpoint stands if there is one."""
        calls = len(self.before.history) + 1 if self.before else 1
        kept = None
        if watch.checkpoint is not None and identity is not None:
            largest = max(self.training.benchmark.num_classes + 1, calls)
            kept = Checkpoint(
                watch.checkpoint, self.training, self, identity, say=watch.say, largest=largest
            )
        if kept is None or not kept.resume():
            self.correct_before = self._measure_before()
            if kept is not None:
                kept.save()  # so that it is known what was going on, whenever it stops
        for event in self.training.events():
            self.note(event)
            if kept is not None:
                kept.note(event)
            if watch.on_event is not None:
                watch.on_event(self.training, event)
        for network in self.method.networks().values():
            network.eval()

    def note(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, StepDone):
            self.steps += 1
        elif isinstance(event, EpochDone):
            self.epochs += 1
            self.loss = event.loss
            if self.stopping is not None:
                self.stopped_early |= self.stopping.note(self.training, event)
        else:
            self.done = event
            self.tables = self.method.mixer.judge.tables

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "epochs": self.epochs,
            "steps": self.steps,
            "loss": self.loss,
            "stopped_early": self.stopped_early,
            "correct_before": self.correct_before,
            "correct": None if self.done is None else self.done.correct["main"],
            "stopping": None if self.stopping is None else self.stopping.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.epochs, self.steps, self.loss = state["epochs"], state["steps"], state["loss"]
        self.stopped_early = state["stopped_early"]
        self.correct_before = state["correct_before"]
        if self.stopping is not None:
            self.stopping.load_state_dict(state["stopping"])
        if state["correct"] is not None:  # the task is done and no more events come
            memory = len(self.method.memory)
            self.done = TaskDone(0, {"main": state["correct"]}, torch.empty(0), memory, 0)
            self.tables = self.method.mixer.judge.tables

    # --- the report -------------------------------------------------------------------------

    def report(self, remarks: list[str]) -> Report:
        """What the call did."""
        known = self.labels.known
        avoided, share = self._avoided()
        accuracy = self._accuracy()
        return Report(
            call=(self.before.history[-1].call if self.before else 0) + 1,
            new=[known[k] for k in self.new_classes],
            more=[known[k] for k in self.old_classes],
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
            avoided=avoided,
            avoided_share=share,
            warnings=remarks,
        )

    def _accuracy(self) -> list[tuple[Label, float | None, float, int]]:
        if self.measured_on is None or self.done is None:
            return []
        totals = self.test.y.cpu().bincount(minlength=len(self.labels.known)).tolist()
        after, before = self.done.correct["main"], self.correct_before
        return [
            (
                label,
                float(before[k]) / totals[k]
                if before is not None and k < self.known_before
                else None,
                float(after[k]) / totals[k],
                totals[k],
            )
            for k, label in enumerate(self.labels.known)
            if totals[k]
        ]

    def _avoided(self) -> tuple[list[tuple[Label, Label, float]], float | None]:
        if not self.tables:
            return [], None
        shares = torch.stack([table.negative for table in self.tables]).double().mean(dim=0).cpu()
        classes = [self.labels.known[k] for k in self.tables[0].classes.tolist()]
        pairs = [
            (a, b, float(shares[i, j]))
            for i, a in enumerate(classes)
            for j, b in enumerate(classes)
            if shares[i, j] > 0
        ]
        pairs.sort(key=lambda pair: -pair[2])
        return pairs[:KEPT_PAIRS], float(shares.mean())


def _check_takes(method: Method, x: Tensor) -> None:
    """Pass two samples through a copy of a network of one's own before anything is trained."""
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
        raise InputError(f"model gives {found} for {len(some)} samples; it must give {wanted}")


def offer(holdout: ReplayMemory, given: Samples, priority: Tensor) -> Samples:
    """Let samples compete for the holdout by priority; those that did not get in."""
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
