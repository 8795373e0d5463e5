"""The only training loop: from new-class data to rows of the accuracy matrix.

    new-class data ─┐
                    ├─ batch B1∪B2 ─ partners ─ blend ─ labels ─ loss ─ step
    replay memory ──┘        ▲
                             │ once per epoch: criterion → harmful pairs (S⁻), best partners (S*)
    after the task: memory keeps exemplars → evaluate → one row of the accuracy matrix

`Training.events()` is a generator of events (`training/events.py`). Its consumer shows progress,
saves checkpoints or stops. `methods/er.py` has the loss of a step, `mixing/mixer.py` mixes a batch
and `criterion/selector.py` finds the harmful pairs. The position of the training is kept in plain
counters, so that `state_dict` is valid at every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from gradmix.data import Benchmark
from gradmix.data.pool import Pool, Transform
from gradmix.errors import DivergedError, InputError
from gradmix.methods import Method, Stage
from gradmix.models.parallel import BATCH_NORMS
from gradmix.training import checks
from gradmix.training.events import (
    EpochDone,
    Evaluation,
    Event,
    Position,
    Seconds,
    StepDone,
    TaskDone,
)
from gradmix.training.metrics import count_correct
from gradmix.types import Samples, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["EpochDone", "Evaluation", "Event", "Position", "StepDone", "TaskDone", "Training"]

Randomness = Callable[[], AbstractContextManager[None]]

CHECKED = 32  # samples whose scores are checked after a task


@dataclass
class Training:
    """A method that learns the tasks of a benchmark, one after another.

    Args:
        benchmark: The tasks.
        method: The method.
        fabric: Gives device and precision.
        transforms: Random transforms of training images.
        evaluate_every_steps: Also evaluate after every so many steps of the whole training. Such
            evaluations change nothing.
        evaluate_every_epochs: The same for the epochs of a stage.
    """

    benchmark: Benchmark
    method: Method
    fabric: Fabric
    transforms: Sequence[Transform] = ()
    evaluate_every_steps: int | None = None
    evaluate_every_epochs: int | None = None
    seconds: Seconds = field(default_factory=Seconds)
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        self.method.check_scenario(self.benchmark.scenario)
        device, self._tasks = self.fabric.device, []
        for task in self.benchmark.tasks:
            train, test = (Samples(x.to(device), y.to(device)) for x, y in (task.train, task.test))
            self._tasks.append(replace(task, train=train, test=test))
        self._tested = torch.stack(
            [task.test.y.bincount(minlength=self.benchmark.num_classes) for task in self._tasks]
        ).cpu()
        self._losses: list[Tensor] = []
        self._order: Tensor | None = None  # of the samples of an online stream
        self._predicted: Tensor | None = None

    def events(self) -> Iterator[Event]:
        """Train from the present position to the end of the last task."""
        while self.position.task < len(self._tasks):
            yield from self._learn(self._tasks[self.position.task])

    def _learn(self, task: Task) -> Iterator[Event]:
        at, method = self.position, self.method
        if not at.in_stage:
            seen = max(method.seen, max(task.classes) + 1)  # a task may have known classes only
            method.begin_task(self._pool(task.train), seen)
        stages = method.stages()
        while at.stage < len(stages):
            if not at.in_stage:
                method.begin_stage(stages[at.stage])
                at.in_stage = True
            yield from self._train(stages[at.stage])
            at.stage, at.epoch, at.in_stage = at.stage + 1, 0, False
        replay_batch = method.replay_size
        method.end_task(self._unstored(task))
        correct, task_aware, tested = self.evaluate()
        self._check_scores()
        at.task, at.stage = at.task + 1, 0
        counts = method.mixer.counts.cpu()
        size, steps = len(method.memory), at.total_steps
        yield TaskDone(at.task - 1, correct, counts, size, replay_batch, steps, task_aware, tested)

    def end_stage(self) -> None:
        """End the stage with the present epoch; call it after an `EpochDone`."""
        self.position.epoch = max(self.position.epoch, self.method.stage.epochs)

    def _unstored(self, task: Task) -> Samples:
        """Return the samples that the memory has not been offered yet: those of the pool."""
        return task.train

    def _pool(self, new: Samples) -> Pool:
        method = self.method
        generator = method.streams.device("transforms")
        stored = method.stored_samples()
        return Pool(new, stored, method.normalise, self.transforms, generator)

    def _train(self, stage: Stage) -> Iterator[Event]:
        """Run all epochs of a stage; an incomplete last batch of new data is dropped."""
        at, method = self.position, self.method
        steps, batch_size = self._epoch_size()
        method.train_mode()
        randomness: Randomness = nullcontext
        if method.draws_randomly:  # seed the global generator for each step
            randomness = partial(method.streams.as_global, "dropout", method.ranks.rank)
        while at.epoch < stage.epochs:
            if at.step == 0:  # otherwise resumed in the middle of an epoch
                self._begin_epoch(steps, batch_size)
            self._read_ahead()
            rates, first = method.learning_rates(at.epoch, steps), at.step
            while at.step < steps:
                batch = self._next_batch()
                if at.step == first and not method.ranks.alone:
                    checks.check_ranks(method)
                started = perf_counter()
                self._losses.append(self._step(batch, rates[at.step], randomness))
                at.step, at.total_steps = at.step + 1, at.total_steps + 1
                self.seconds.train += perf_counter() - started
                yield self._step_done(steps)
            at.epoch, at.step = at.epoch + 1, 0
            yield self._epoch_done(stage)

    def _step(self, batch: int, lr: float, randomness: Randomness) -> Tensor:
        """Move the weights by the gradient of a batch of the method's plan; return its loss."""
        method, optimizer = self.method, self.method.optimizer
        precision = self.fabric.strategy.precision
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        optimizer.zero_grad()
        if not method.ranks.alone:
            checks.check_rows(method)
        with precision.forward_context(), randomness():
            loss = method.train_step(batch)
        if method.ranks.alone:
            precision.backward(loss, None)
        else:
            loss = self._backward_on_ranks(loss)
        method.adjust_gradients()
        if method.settings.clip_norm is not None:
            precision.unscale_gradients(optimizer)
            clip_grad_norm_(method.parameters(), method.settings.clip_norm)
        precision.optimizer_step(optimizer)
        return loss.detach()

    def _backward_on_ranks(self, loss: Tensor) -> Tensor:
        """Compute the gradient of a batch whose rows are on several ranks; return its loss.

        `loss` is the mean over this rank's rows. Weighted by their share of the batch, the losses,
        gradients and BatchNorm statistics of all ranks add up to those of the batch.
        """
        method, ranks, precision = self.method, self.method.ranks, self.fabric.strategy.precision
        share = ranks.share(method.step_rows)
        loss = loss * share
        summed = [loss.detach()]
        if ranks.shard_weights:  # FSDP averages the gradients over the ranks
            precision.backward(loss * ranks.size, None)
        else:
            precision.backward(loss, None)
            summed = [p.grad for p in method.parameters() if p.grad is not None] + summed
        for module in (m for network in method.networks().values() for m in network.modules()):
            if isinstance(module, BATCH_NORMS) and module.training:
                found = (module.running_mean, module.running_var)
                summed += [values.mul_(share) for values in found if values is not None]
        ranks.all_sum(summed)
        return loss

    def _epoch_size(self) -> tuple[int, int]:
        """Return the number of steps of an epoch, and of new samples per step."""
        samples = self.method.epoch_samples()
        batch_size = min(self.method.settings.batch_size, samples)
        return samples // batch_size, batch_size

    def _next_batch(self) -> int:
        """Return the number of the next batch in the method's plan."""
        return self.position.step

    def _begin_epoch(self, steps: int, batch_size: int) -> None:
        """Draw a new order of the task's data; the method plans its batches."""
        started = perf_counter()
        generator = self.method.streams.device("batches")
        order = torch.randperm(
            self.method.epoch_samples(), generator=generator, device=self.fabric.device
        )
        self._losses = []
        new = order[: steps * batch_size].view(steps, batch_size)  # (S, |B1|)
        self.method.begin_epoch(self.position.epoch, new)
        self.seconds.criterion += perf_counter() - started

    def _read_ahead(self) -> None:
        """Let streamed data be read before the steps that need it."""
        if self.method.pool.streamed:
            self.method.pool.expect(self.method.needed_samples(self.position.step))

    def _step_done(self, steps: int) -> StepDone:
        at, loss = self.position, self._losses[-1]
        evaluation = self._evaluate_if_due(at.total_steps, self.evaluate_every_steps)
        return StepDone(
            at.task, at.epoch, at.step, steps, loss, at.total_steps, evaluation, self._predicted
        )

    def _epoch_done(self, stage: Stage) -> EpochDone:
        at, loss = self.position, float(torch.stack(self._losses).mean())
        if not isfinite(loss):
            raise DivergedError(
                f"training diverged: the loss is {loss} in task {at.task + 1}, {stage.name} epoch "
                f"{at.epoch}; try an lr below {self.method.settings.lr}"
            )
        rate = self.method.selector.negative_rate
        evaluation = self._evaluate_if_due(at.epoch, self.evaluate_every_epochs)
        return EpochDone(
            at.task, stage.name, at.epoch, stage.epochs, loss, rate, at.total_steps, evaluation
        )

    def _check_scores(self) -> None:
        """Check some scores after a task's last step, whose effect no loss has shown."""
        pool = self.method.pool
        some = torch.arange(min(pool.num_new, CHECKED), device=pool.y.device)
        if not bool((self.method.predict(pool.inputs(some)) < inf).all()):
            raise DivergedError(
                f"training diverged: scores are not finite after task {self.position.task + 1}; "
                f"try an lr below {self.method.settings.lr}"
            )

    def _evaluate_if_due(self, number: int, every: int | None) -> Evaluation | None:
        return None if every is None or number % every else self.evaluate()

    def evaluate(self) -> Evaluation:
        """Count the correct test samples of all tasks of the benchmark, past and future."""
        started = perf_counter()
        num_classes, ranks = len(self.benchmark.class_names), self.method.ranks
        result = Evaluation({}, {}, self._tested)
        for name, predict in self.method.predictors().items():
            counts = [
                count_correct(predict, task.test, self.method.normalise, num_classes, ranks)
                for task in self._tasks
            ]
            result.correct[name], result.task_aware[name] = torch.stack(counts, dim=1)
        ranks.all_sum([*result.correct.values(), *result.task_aware.values()])
        self.seconds.evaluate += perf_counter() - started
        return result

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the training depends on; valid at every event."""
        return {
            "position": dict(vars(self.position)),
            "losses": torch.stack(self._losses) if self._losses else torch.empty(0),
            "method": self.method.state_dict(),
            "stage": self.method.stage_state_dict() if self.position.in_stage else None,
            "order": self._order if self.position.in_stage else None,
            "streams": self.method.streams.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume a saved training; the next event is the one that came next there.

        Raises:
            InputError: If the state does not fit this training, which is then unusable.
        """
        self.position = at = Position(**state["position"])
        if at.task + at.in_stage > len(self._tasks):
            raise InputError(f"position: {at} is beyond the {len(self._tasks)} tasks")
        self._losses = list(state["losses"].unbind())
        method, saved = self.method, state["method"]
        method.rebuild(saved["structure"])
        method.load_memory(saved)
        checks.check_samples(self, self._tasks[0])
        if at.in_stage:
            task = self._tasks[at.task]
            stage = checks.check_stage(self, task)
            self._load_order(state.get("order"), task)
            method.set_pool(self._pool(self._unstored(task)))
            method.load_state_dict(saved)
            method.load_stage_state_dict(state["stage"], stage)
            checks.check_batches(self, len(self._losses), self._epoch_size()[0])
        else:
            method.load_state_dict(saved)
        method.streams.load_state_dict(state["streams"])

    def _load_order(self, order: Tensor | None, task: Task) -> None:
        """Restore the order of an online stream."""
        if order is not None:
            raise InputError("order: the saved training is online")
