"""The base of all methods: the part of training that differs between them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gradmix.closed_form import Ridge, every_tenth, fit_temperature
from gradmix.criterion import evaluating
from gradmix.criterion.embedding import embed_rows
from gradmix.data.pool import Pool
from gradmix.memory import class_priorities, random_priority
from gradmix.memory.replay import first_of_each_class
from gradmix.methods.components import Components, Stage
from gradmix.methods.optimizer import lr_factor
from gradmix.mixing.mixer import Plan
from gradmix.models.finetune import FineTuned
from gradmix.models.parallel import split_like
from gradmix.types import Samples


class Method(Components, ABC):
    """A network, its memory, and how one step trains it.

    For each task the loop calls `begin_task`, then for each of its `stages` `begin_stage`, for
    each epoch `begin_epoch`, which plans the batches, for each batch `train_step`, and finally
    `end_task`. `ER` implements the two abstract methods; most methods derive from it.

    Each of several ranks calls all of them. Batches are planned for all ranks, and `mixed_batch`
    returns this rank's rows. The loss of a step is the mean over these rows; the loop weights it
    by their share of the batch. `term` is for terms of the loss that cover other rows. A method
    whose rows depend on each other has `row_wise = False`; every rank then computes whole batches.
    """

    # --- what a method defines --------------------------------------------------------------

    @abstractmethod
    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Return the batches of an epoch and how they are mixed.

        Args:
            new: Pool rows of the new samples of each step, (S, |B1|).

        Returns:
            The plan; None, with `plans = False`, if batches depend on the network at each step.
        """

    @abstractmethod
    def train_step(self, step: int) -> Tensor:
        """Return the loss of one step; the loop computes its gradient and moves the weights.

        Each of several ranks returns the mean over its rows.
        """

    @property
    def step_rows(self) -> int:
        """How many rows the batch of a step has, on all ranks together."""
        if self.plan is not None:
            return self.plan.y.shape[1]
        return self.new.shape[1] + self.replay_size

    @property
    def new_rows(self) -> int:
        """How many of this rank's rows are new samples, which come first in a batch."""
        number, rows = self.new.shape[1], self.ranks.rows(self.step_rows)
        return max(0, min(number, int(rows.stop)) - int(rows.start))

    def term(self, value: Tensor, share: float = 1.0) -> Tensor:
        """Return a term of the loss that is not a mean over this rank's rows of the batch.

        The loop weights the loss by this rank's share of the rows; the result cancels that.

        Args:
            value: The term.
            share: Share of the rows of the term that this rank has; 1 if `value` is a part of a
                sum.
        """
        if self.ranks.alone:
            return value
        if share == 0:  # a mean over no rows is not a number
            return value.new_zeros(())
        return value * (share / self.ranks.share(self.step_rows))

    # --- what the loop calls ----------------------------------------------------------------

    def stored_samples(self) -> Samples:
        """Return the samples that join the new data in the pool."""
        return self.memory.samples

    @classmethod
    def learns_stored(cls) -> bool:
        """Return whether a task also learns the stored samples of earlier tasks."""
        return cls.replays

    @property
    def replay_size(self) -> int:
        """How many samples a step replays: as set, or all stored samples if there are fewer."""
        return min(self.settings.replay_batch_size, len(self.memory))

    def epoch_samples(self) -> int:
        """Return how many samples an epoch covers, counted from the start of the pool."""
        return self.pool.num_new

    def needed_samples(self, first_step: int) -> list[Tensor]:
        """Return the pool rows that this rank needs in each step of the epoch, from one step on.

        Streamed samples are then read ahead. A step may need others, too.
        """
        steps, plan, ranks = range(first_step, len(self.new)), self.plan, self.ranks
        if plan is not None:
            return [plan.needed(step) for step in steps]
        return [self.new[step, ranks.rows(self.new.shape[1])] for step in steps]

    def stages(self) -> Sequence[Stage]:
        """Return the stages of the current task's training."""
        return [self.new_stage("train")] if self.trains else []

    def new_stage(self, name: str, share: float = 1.0, *, mixed: bool = True) -> Stage:
        """Return a stage whose length is a multiple of the setting `epochs`, at least 1."""
        return Stage(name, max(1, round(self.settings.epochs * share)), mixed)

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Start a task.

        A pretrained network that is fine-tuned starts every task from a head in closed form.

        Args:
            pool: The new samples, followed by the memory.
            seen: Number of classes known with this task.
        """
        self.grow(seen)
        self.seen = seen
        self.set_pool(pool)
        if isinstance(self.model, FineTuned):
            self.start_from_closed_form()

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task that begins or resumes."""
        self.pool = pool
        self.mixer.begin_task(pool, self.head.out_features)
        self.selector.begin_task(pool, self.head.out_features)

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage with a new optimizer."""
        self.stage = stage
        self.optimizer = self.new_optimizer()

    def adjust_gradients(self) -> None:
        """Change the gradients of a step before the optimizer uses them; here not at all."""

    def remark(self) -> str | None:
        """Return what a user should know about the task that has begun; None if nothing."""
        return None

    def train_mode(self) -> None:
        """Put the network in training mode, or in evaluation mode if the stage trains others."""
        self.model.train(self.model in self.trained_modules())

    def learning_rates(self, epoch: int, steps: int) -> list[float]:
        """Return the learning rate of each step of an epoch; see `lr_factor`.

        Args:
            epoch: Number of the epoch in the stage, from 0.
            steps: Steps of an epoch.
        """
        settings, epochs = self.settings, self.stage.epochs
        return [
            settings.lr * lr_factor(settings, epoch + step / steps, 1 / steps, epochs)
            for step in range(steps)
        ]

    def begin_epoch(self, epoch: int, new: Tensor) -> None:
        """Refresh the harmful pairs and plan the batches.

        Args:
            epoch: Number of the epoch, from 0.
            new: Pool rows of the new samples of each step, (S, |B1|).
        """
        self.selector.refresh(self.model, self.head, self.adjustment)
        self.new, self.plan = new, self.plan_epoch(new)

    def end_task(self, new: Samples) -> None:
        """Store exemplars of every new class, if any are replayed (Algorithm 1, steps 26, 27)."""
        if self.replays:
            self.memory.add(new, self.priorities(new))

    def priorities(self, new: Samples) -> Tensor:
        """Return the priorities of the new samples by the rule of selection, (N,)."""
        rule, generator = self.memory.selection or self.selection, self.streams.device("memory")
        if rule == "random":
            return random_priority(len(new.y), generator)
        index = torch.arange(len(new.y), device=new.y.device)  # they come first in the pool
        if rule == "kmeans-inputs":
            features = self.pool.inputs(index).flatten(1)
        else:
            features = embed_rows(self.model, self.head, self.pool.inputs, index, self.ranks)
        quota = self.memory.quota(torch.cat([self.memory.y, new.y]).unique())
        return class_priorities(str(rule), features, new.y, quota, generator)

    @torch.no_grad()
    def start_from_closed_form(self) -> None:
        """Set the head to the ridge regression from the features of the pool to its classes.

        A random head would destroy the features of a pretrained network first. New classes use as
        many samples as the memory holds of an old class, because ridge regression prefers frequent
        classes. The scores are divided by a temperature that is fitted to a tenth of the samples. A
        class without samples gets the lowest score.
        """
        head, pool = self.head, self.pool
        index, old = torch.arange(len(pool), device=pool.y.device), pool.y[pool.num_new :]
        if len(old):
            most = -(-len(old) // len(old.unique()))
            quota = torch.full((int(pool.y.max()) + 1,), most, device=pool.y.device)
            index = first_of_each_class(pool.y, index, quota)
        labels = pool.y[index].cpu()
        embeddings = embed_rows(self.model, head, pool.inputs, index, self.ranks).cpu()  # (n, d)
        held = every_tenth(labels)
        ridge = Ridge(head.in_features, normalise=False)
        ridge.update(embeddings[~held], labels[~held])
        temperature = 1.0
        if bool(held.any()) and len(ridge.classes) > 1:
            places = torch.searchsorted(torch.tensor(ridge.classes), labels[held])
            temperature = fit_temperature(ridge.scores(embeddings[held]), places)
            ridge.update(embeddings[held], labels[held])
        lowest = float(ridge.scores(embeddings).min()) / temperature
        weight, bias = ridge.linear()  # (d, C), (C,)
        classes = list(ridge.classes)
        weights = torch.zeros(head.weight.shape, dtype=head.weight.dtype)
        weights[classes] = (weight.T / temperature).to(weights)
        head.weight.copy_(split_like(weights, head.weight))
        if head.bias is not None:
            biases = torch.full(head.bias.shape, lowest, dtype=head.bias.dtype)
            biases[classes] = (bias / temperature).to(biases)
            head.bias.copy_(split_like(biases, head.bias))

    # --- prediction -------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return class scores of network inputs, (B, C), in evaluation mode."""
        with evaluating(self.model):
            scores: Tensor = self.model(x)
        return scores

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return what is evaluated after a task: "main", and any other predictor of the method."""
        return {"main": self.predict}

    def predictor_module(self) -> nn.Module:
        """Return a copy of the network that maps network inputs to class scores, for export.

        Raises:
            InputError: If predictions do not come from a single network.
        """
        return copy.deepcopy(self.model)
