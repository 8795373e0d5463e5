"""Online learning: every sample arrives once, and the memory is filled during the stream.

A step of the loop is one arrival. Its pool holds the samples that arrive and the memory, so
nothing can depend on later samples: not the replay, not the partners, not the criterion.

    samples arrive → predict them → pool: arrival ∪ memory → plan one batch → step → store them

Samples are stored when the next ones arrive. The memory keeps the exemplars with the lowest random
priority, which is a uniform sample of the stream, or of each class, at every moment.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.training.loop import Training
from gradmix.types import Samples, Task


class OnlineTraining(Training):
    """A training with one pass over each task, whose memory is updated at every step.

    Raises:
        InputError: If the method cannot learn online, or has several epochs.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.method.check_scenario("online")
        if self.method.settings.epochs != 1:
            raise InputError(
                f"epochs is {self.method.settings.epochs}; an online stream is seen once; give 1"
            )

    def _epoch_size(self) -> tuple[int, int]:
        """Return the number of arrivals; the last one may be smaller than a batch."""
        samples = len(self._tasks[self.position.task].train.y)
        batch_size = min(self.method.settings.batch_size, samples)
        return -(-samples // batch_size), batch_size

    def _begin_epoch(self, steps: int, batch_size: int) -> None:
        """Draw the order in which the samples of the task arrive."""
        samples = len(self._tasks[self.position.task].train.y)
        generator = self.method.streams.device("batches")
        self._order = torch.randperm(samples, generator=generator, device=self.fabric.device)
        self._losses = []

    def _read_ahead(self) -> None:
        """Read nothing ahead: a step reads what arrives."""

    def _next_batch(self) -> int:
        """Store the previous arrival; take the next one, predict it and plan its batch."""
        at, method = self.position, self.method
        task = self._tasks[at.task]
        if at.step:
            method.end_task(self._unstored(task))
        counts = method.mixer.counts
        method.set_pool(self._pool(self._arrival(task, at.step)))
        method.mixer.load_counts(counts)  # they cover the whole task
        new = torch.arange(method.pool.num_new, device=method.pool.y.device)
        started = perf_counter()
        labels = method.predict(method.pool.inputs(new)).argmax(dim=1)  # before it is learned
        self._predicted = (labels == method.pool.y[new]).sum()
        predicted = perf_counter()
        method.begin_epoch(at.epoch, new[None])
        self.seconds.evaluate += predicted - started
        self.seconds.criterion += perf_counter() - predicted
        return 0

    def _unstored(self, task: Task) -> Samples:
        """Return the last arrival; after an epoch, whose step is 0 again, that is the last one."""
        return self._arrival(task, self.position.step - 1)

    def _arrival(self, task: Task, step: int) -> Samples:
        """Return the samples that arrive at a step."""
        assert self._order is not None
        rows = self._order.split(self._epoch_size()[1])[step]
        return Samples(task.train.x.index_select(0, rows), task.train.y[rows])

    def _load_order(self, order: Tensor | None, task: Task) -> None:
        samples = torch.arange(len(task.train.y), device=task.train.y.device)
        if order is None or not torch.equal(order.sort().values, samples):
            raise InputError("order: it does not name every sample of the task once")
        self._order = order
