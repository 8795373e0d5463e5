"""The only training loop: from new-class data to rows of the accuracy matrix.

    new-class data ─┐
                    ├─ batches B1∪B2 ─ partners ─ labels ─┐
    replay memory ──┘    ▲                                ├─ blend ─ loss ─ step
     planned each epoch: │ criterion → PairTable (S⁻, S*) ┘  each batch
    after the task: memory.add → evaluate → one row of the accuracy matrix

`Training.events()` is a generator: it yields a `StepDone`, `EpochDone` or `TaskDone` whenever
one is, and whoever consumes them shows progress, saves or stops. What an epoch's batches are is
planned by the method's `plan_epoch` and `Mixer.plan`; the stages of a step stand in its
`train_step` (see `methods/base.py`) and in `Mixer.mix`. Where training stands is kept in plain
counters, so `state_dict` is valid at every event and resumes exactly there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gradmix.data import Benchmark
from gradmix.data.pool import Pool, Transform
from gradmix.errors import DivergedError, InputError
from gradmix.methods import Method, Stage
from gradmix.models import mlp_gradient
from gradmix.training.evaluate import count_correct
from gradmix.types import Samples, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SOME = 32  # samples that are looked at after a task


class StepDone(NamedTuple):
    """One optimizer step; `loss` is still on the device."""

    task: int
    epoch: int
    step: int
    steps: int
    loss: Tensor


class EpochDone(NamedTuple):
    """One pass over the task's data."""

    task: int
    stage: str
    epoch: int
    epochs: int
    loss: float  # mean over the epoch's steps
    negative_rate: float | None  # share of class pairs in S⁻, where there are pair tables


class TaskDone(NamedTuple):
    """One task learned and evaluated."""

    task: int
    correct: dict[str, Tensor]  # by predictor: (C,) test samples right, future classes included
    pair_counts: Tensor  # (C, C) how often each ordered class pair was mixed
    memory_size: int
    replay_batch: int  # rows replayed per step: fewer than asked for if the memory is smaller


Event = StepDone | EpochDone | TaskDone


@dataclass
class Position:
    """Where training stands; counts what is finished."""

    task: int = 0
    stage: int = 0
    epoch: int = 0
    step: int = 0
    in_stage: bool = False


@dataclass
class Seconds:
    """Where the time went."""

    train: float = 0.0
    criterion: float = 0.0
    evaluate: float = 0.0


@dataclass
class Training:
    """A method learning the tasks of a benchmark, one after another."""

    benchmark: Benchmark
    method: Method
    fabric: Fabric
    transforms: Sequence[Transform] = ()
    seconds: Seconds = field(default_factory=Seconds)
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        device = self.fabric.device
        self._tasks = [_to_device(task, device) for task in self.benchmark.tasks]
        self._losses: list[Tensor] = []

    def events(self) -> Iterator[Event]:
        """Train from where `position` stands to the end of the last task.

        Who changes the network in between, by hooks say, does so between epochs.
        """
        while self.position.task < len(self._tasks):
            yield from self._learn(self._tasks[self.position.task])

    def _learn(self, task: Task) -> Iterator[Event]:
        at, method = self.position, self.method
        if not at.in_stage:
            seen = max(method.seen, max(task.classes) + 1)  # a task may have known classes only
            method.begin_task(self._pool(task), seen)
        stages = method.stages()
        while at.stage < len(stages):
            if not at.in_stage:
                method.begin_stage(stages[at.stage])
                at.in_stage = True
            yield from self._train(stages[at.stage])
            at.stage, at.epoch, at.in_stage = at.stage + 1, 0, False
        replay_batch = min(method.settings.replay_batch_size, len(method.memory))
        method.end_task(task.train)
        correct = self.evaluate()
        self._check_scores()
        at.task, at.stage = at.task + 1, 0
        counts = method.mixer.counts.cpu()
        yield TaskDone(at.task - 1, correct, counts, len(method.memory), replay_batch)

    def end_stage(self) -> None:
        """Let this be the last epoch of the stage; to be called when it is done."""
        self.position.epoch = max(self.position.epoch, self.method.stage.epochs)

    def _pool(self, task: Task) -> Pool:
        method = self.method
        generator = method.streams.device("transforms")
        return Pool(task.train, method.past(), method.normalise, self.transforms, generator)

    def _train(self, stage: Stage) -> Iterator[Event]:
        """All epochs of a stage. An incomplete last batch of new data is dropped."""
        from lightning_fabric.plugins.precision import Precision  # loaded by whoever made a Fabric

        at, method = self.position, self.method
        optimizer, precision = method.optimizer, self.fabric.strategy.precision
        samples = method.epoch_samples()
        batch_size = min(method.settings.batch_size, samples)
        steps = samples // batch_size
        method.train_mode()
        if at.step:  # continuing in the middle of an epoch
            self._expect()
        while at.epoch < stage.epochs:
            if at.step == 0:
                self._begin_epoch(steps, batch_size)
                self._expect()
            layers = method.layers_by_hand() if type(precision) is Precision else None
            while at.step < steps:
                started = perf_counter()
                optimizer.zero_grad()
                if layers is not None:  # of a small network: gradients written out, the same bits
                    batch = method.mixed_batch(at.step)
                    loss = mlp_gradient.cross_entropy(layers, batch.x, batch.targets)
                    del batch
                else:
                    with precision.forward_context():
                        loss = method.train_step(at.step)
                    precision.backward(loss, None)
                precision.optimizer_step(optimizer)
                self._losses.append(loss.detach())
                at.step += 1
                self.seconds.train += perf_counter() - started
                yield StepDone(at.task, at.epoch, at.step, steps, self._losses[-1])
            at.epoch, at.step = at.epoch + 1, 0
            yield self._epoch_done(stage)

    def _begin_epoch(self, steps: int, batch_size: int) -> None:
        """A new order of the task's data and, by the method, new pair tables and batches."""
        started = perf_counter()
        generator = self.method.streams.device("batches")
        order = torch.randperm(
            self.method.epoch_samples(), generator=generator, device=self.fabric.device
        )
        self._losses = []
        new = order[: steps * batch_size].view(steps, batch_size)
        self.method.begin_epoch(self.position.epoch, new)
        self.seconds.criterion += perf_counter() - started

    def _expect(self) -> None:
        """Let streamed data be read ahead."""
        assert self.method.new is not None
        self.method.pool.expect(self.method.new[self.position.step :].unbind())

    def _epoch_done(self, stage: Stage) -> EpochDone:
        at, loss = self.position, float(torch.stack(self._losses).mean())
        if not isfinite(loss):
            raise DivergedError(
                f"training diverged: the loss is {loss} in task {at.task + 1}, {stage.name} epoch "
                f"{at.epoch}; try an lr below {self.method.settings.lr}"
            )
        rate = self.method.mixer.judge.negative_rate
        return EpochDone(at.task, stage.name, at.epoch, stage.epochs, loss, rate)

    def _check_scores(self) -> None:
        """After a task's last step, whose effect no loss has shown: look at some samples."""
        pool = self.method.pool
        some = torch.arange(min(pool.num_new, SOME), device=pool.y.device)
        if not bool((self.method.predict(pool.images(some)) < inf).all()):
            raise DivergedError(
                f"training diverged: scores are not finite after task {self.position.task + 1}; "
                f"try an lr below {self.method.settings.lr}"
            )

    def evaluate(self) -> dict[str, Tensor]:
        """Test samples classified right, by class, over all tasks, past and future.

        For each of the method's predictors, "main" first.
        """
        started = perf_counter()
        num_classes = len(self.benchmark.class_names)
        correct = {}
        for name, predict in self.method.predictors().items():
            counts = [
                count_correct(predict, task.test, self.method.normalise, num_classes)
                for task in self._tasks
            ]
            correct[name] = torch.stack(counts).sum(dim=0)
        self.seconds.evaluate += perf_counter() - started
        return correct

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the training depends on, valid at every event.

        Between tasks there is no optimizer among it, nor a plan: every stage starts with new ones.
        """
        method = self.method.state_dict()
        if not self.position.in_stage:
            for name in ("optimizer", "new", "plan"):
                del method[name]
        return {
            "position": dict(vars(self.position)),
            "losses": torch.stack(self._losses) if self._losses else torch.empty(0),
            "method": method,
            "streams": self.method.streams.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where the saved training stood; the next event is the one that came next there."""
        self.position = Position(**state["position"])
        self._check_position()
        self._losses = list(state["losses"].unbind())
        method, saved = self.method, state["method"]
        method.rebuild(saved["structure"])
        stage = None
        if self.position.in_stage:
            method.load_past(saved)
            method.meet(self._pool(self._tasks[self.position.task]))
            stage = method.stages()[self.position.stage]
            if self.position.epoch > stage.epochs:
                raise InputError(f"the epoch is {self.position.epoch} of {stage.epochs}")
        method.load_state_dict(saved, stage)
        method.streams.load_state_dict(state["streams"])

    def _check_position(self) -> None:
        at = self.position
        counts = (at.task, at.stage, at.epoch, at.step)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise InputError(f"the position is {at}; it counts what is finished")
        between = not any((at.stage, at.epoch, at.step))
        if not (at.in_stage is True or (at.in_stage is False and between)):
            raise InputError(f"the position is {at}, neither in a stage nor between tasks")
        if at.task + at.in_stage > len(self._tasks):
            raise InputError(f"the position is {at}, of {len(self._tasks)} tasks")


def _to_device(task: Task, device: torch.device) -> Task:
    train, test = (
        Samples(samples.x.to(device), samples.y.to(device)) for samples in (task.train, task.test)
    )
    return Task(task.number, task.classes, train, test)
