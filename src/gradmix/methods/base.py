"""What a basis method of class-incremental learning is: the part of training that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import evaluating
from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.mixer import Mixer
from gradmix.randomness import RandomStreams
from gradmix.types import Samples


@dataclass(frozen=True)
class Settings:
    """How a method trains on each task; the defaults are the paper's for MNIST."""

    epochs: int = 20  # passes over a task's data
    lr: float = 0.01  # learning rate of SGD
    momentum: float = 0.9  # not in the paper; without it the order of its rows changes
    weight_decay: float = 0.0  # not in the paper
    lr_steps: tuple[int, ...] = ()  # epochs at which the learning rate falls to a tenth
    batch_size: int = 64  # new samples per step, |B1|
    replay_batch_size: int = 64  # replayed samples per step, |B2|

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "replay_batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if not 0 < self.lr < float("inf"):
            raise InputError(f"lr is {self.lr}; a learning rate is above 0")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum}; it must be at least 0 and below 1")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay is {self.weight_decay}; it must be 0 or more")
        if any(step < 1 for step in self.lr_steps):
            raise InputError(f"lr_steps is {self.lr_steps}; epochs count from 1")


class Stage(NamedTuple):
    """A stretch of a task's training with an optimizer of its own."""

    name: str
    epochs: int


class Method:
    """A network, its memory and mixer, and how one step trains it.

    The loop calls, for each task: `begin_task`; for each of its `stages`, `begin_stage`; for
    each epoch, `begin_epoch`; for each batch of new data, `train_step`, whose loss the loop
    takes the gradient of before it moves `optimizer`; and, at the end, `end_task`.
    """

    def __init__(
        self,
        model: nn.Module,
        memory: ReplayMemory,
        mixer: Mixer,
        settings: Settings,
        streams: RandomStreams,
    ) -> None:
        self.model, self.memory, self.mixer = model, memory, mixer
        self.settings, self.streams = settings, streams
        self.optimizer: torch.optim.Optimizer = self.new_optimizer()

    def stages(self) -> Sequence[Stage]:
        """What the current task's training consists of."""
        return [Stage("train", self.settings.epochs)]

    def begin_task(self, pool: Pool) -> None:
        """Meet the task's data and the memory."""
        self.pool = pool
        self.mixer.begin_task(pool)

    def begin_stage(self, stage: Stage) -> None:
        """Start with a new optimizer."""
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD over all parameters."""
        s = self.settings
        return torch.optim.SGD(
            self.model.parameters(), s.lr, momentum=s.momentum, weight_decay=s.weight_decay
        )

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch's learning rate and refresh the pair table."""
        passed = sum(epoch >= step for step in self.settings.lr_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * 0.1**passed
        self.mixer.refresh(self.model)

    def train_step(self, new: Tensor) -> Tensor:
        """The loss of one step, given the pool indices of the new samples B1."""
        raise TypeError(f"{type(self).__name__} does not say how to train; define train_step")

    def end_task(self, new: Samples) -> None:
        """Choose what the memory keeps of the task."""
        raise TypeError(f"{type(self).__name__} does not say what to keep; define end_task")

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class scores of network inputs, in evaluation mode."""
        with evaluating(self.model):
            scores: Tensor = self.model(x)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """All that a later step depends on, but for the random streams and the task's data."""
        return {
            "model": self.model.state_dict(),
            "memory": self.memory.state_dict(),
            "mixer": self.mixer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; `begin_task` was called with the same data if in a task."""
        self.model.load_state_dict(state["model"])
        self.memory.load_state_dict(state["memory"])
        self.mixer.load_state_dict(state["mixer"])
        self.optimizer.load_state_dict(state["optimizer"])
