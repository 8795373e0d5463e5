"""The base of all methods: the part of training that differs between them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gradmix._setting_types import Settings
from gradmix.criterion import PairSelector, evaluating, find_head
from gradmix.criterion.embedding import embed_rows
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError, UnknownNameError
from gradmix.memory import ReplayMemory, class_priorities, random_priority
from gradmix.methods.closed_form_start import start_from_closed_form
from gradmix.methods.optimizer import (
    OPTIMIZERS,
    check_optimizer,
    load_optimizer,
    lr_factor,
    optimizer_state,
)
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Mixer, Plan
from gradmix.models.finetune import FineTuned
from gradmix.models.heads import drop_output, grow_head
from gradmix.models.weights import load_weights
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import TrainingSettings, task_scenario
from gradmix.types import Samples


class Options(Settings):
    """A method's own settings, all of them numbers; this one has none."""


def read_options(kind: type[Options], given: Mapping[str, float]) -> Options:
    """Return a method's options from their names and values.

    Raises:
        InputError: If a name is unknown or a value is not a number within bounds.
    """
    for name in given:
        if name not in kind.model_fields:
            known = kind.model_fields or ["(this method has none)"]
            raise UnknownNameError("option", name, known)
    return kind(**given)


class Stage(NamedTuple):
    """A part of a task's training with an optimizer of its own."""

    name: str
    epochs: int


class Method(ABC):
    """A network, its memory, and how one step trains it.

    For each task the loop calls `begin_task`, then for each of its `stages` `begin_stage`, for
    each epoch `begin_epoch`, which plans the batches, for each batch `train_step`, and finally
    `end_task`. `ER` implements the two abstract methods; most methods derive from it.

    Each of several ranks calls all of them. Batches are planned for all ranks, and `mixed_batch`
    returns this rank's rows. The loss of a step is the mean over these rows; the loop weights it
    by their share of the batch. `term` is for terms of the loss that cover other rows. A method
    whose rows depend on each other has `row_wise = False`; every rank then computes whole batches.

    Args:
        model: The network.
        memory: The exemplars of earlier tasks.
        mixer: Mixes batches.
        selector: Finds harmful class pairs for the mixer.
        settings: How each task is trained.
        streams: All randomness.
        normalise: Turns stored samples into network inputs.
        options: The method's own settings.
        ranks: The processes that compute the run together.
    """

    options_type: ClassVar[type[Options]] = Options
    grows: ClassVar[bool] = False  # whether the head must grow with the classes
    replays: ClassVar[bool] = True  # whether there is a memory that mixing can protect
    trains: ClassVar[bool] = True  # whether there are epochs of training
    adjusts_gradients: ClassVar[bool] = False  # whether `adjust_gradients` changes them
    softmax: ClassVar[bool] = True  # whether labels are learned by a softmax cross-entropy
    plans: ClassVar[bool] = True  # whether `plan_epoch` returns a plan
    selection: ClassVar[str | None] = "random"  # rule for exemplars; None if it is fixed
    row_wise: ClassVar[bool] = True  # whether losses are means over rows, which ranks can share
    needs_new_classes: ClassVar[bool] = False  # whether every task must bring new classes
    extends_network: ClassVar[bool] = False  # whether it adds parts to a `Network`, and needs one
    online: ClassVar[bool] = False  # whether `end_task` can store one batch after another
    extras: ClassVar[frozenset[str]] = frozenset()  # what the memory stores beside the samples

    def __init__(
        self,
        model: nn.Module,
        memory: ReplayMemory,
        mixer: Mixer,
        selector: PairSelector,
        settings: TrainingSettings,
        streams: RandomStreams,
        normalise: Normalise,
        options: Options | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.check_mix(mixer.recipe)
        self.check_adjustment(settings.logit_adjustment)
        check_optimizer(settings.optimizer)
        self.model, self.memory, self.mixer, self.selector = model, memory, mixer, selector
        self.settings, self.streams, self.normalise = settings, streams, normalise
        self.options = self.options_type() if options is None else options
        self.ranks = ranks
        self.stage = Stage("train", settings.epochs)
        self.seen = 0  # classes seen, the current task's included
        self.optimizer: torch.optim.Optimizer | None = None  # of the current stage
        self.adjustment: Tensor | None = None  # (C,) that the loss adds to all logits
        self.new: Tensor | None = None  # (S, |B1|) pool rows of each step's new samples
        self.plan: Plan | None = None  # the batches of the epoch

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
        assert self.new is not None
        return self.new.shape[1] + self.replay_size

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

    @classmethod
    def check_mix(cls, recipe: Recipe | None) -> None:
        """Raise InputError for a mix that has no meaning for this method."""
        if not cls.replays and recipe is not None and recipe.uses_gradients:
            raise InputError(
                f"mix has {recipe.partners!r} partners, which protect a memory, and "
                f"{cls.__name__} replays none; give a mix without gradients"
            )

    @classmethod
    def check_selection(cls, rule: str | None) -> None:
        """Raise InputError for a rule of selection that this method cannot follow."""
        if rule is not None and cls.selection is None:
            raise InputError(
                f"exemplar_selection is {rule!r}, but {cls.__name__} "
                f"{'has its own rule' if cls.replays else 'keeps no exemplars'}; omit it"
            )

    @classmethod
    def check_memory(cls, exemplars_per_class: int | None) -> None:
        """Raise InputError for an empty memory if this method replays exemplars."""
        if cls.replays and exemplars_per_class == 0:
            raise InputError(
                f"exemplars_per_class is 0, and {cls.__name__} replays exemplars; give 1 or more, "
                "or a method that replays none, such as ridge or finetune"
            )

    @classmethod
    def check_adjustment(cls, adjustment: float) -> None:
        """Raise InputError for logit adjustment if the loss has no softmax."""
        if adjustment and not cls.softmax:
            raise InputError(
                f"logit_adjustment is {adjustment}, which is for softmax outputs, and "
                f"{cls.__name__} trains each output alone; give 0, or another method, such as er"
            )

    @classmethod
    def check_scenario(cls, scenario: str) -> None:
        """Raise InputError for a scenario that this method cannot learn."""
        if scenario.startswith("online") and not cls.online:
            raise InputError(
                f"scenario is {scenario!r}, and {cls.__name__} needs all data of a task at once; "
                "give another scenario, or a method that learns online, such as er, mir or der++"
            )
        if cls.needs_new_classes and task_scenario(scenario) != "class-incremental":
            raise InputError(
                f"scenario is {scenario!r}, and {cls.__name__} needs new classes in every task; "
                "give scenario 'class-incremental', or another method, such as er or der++"
            )

    # --- the network ------------------------------------------------------------------------

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, whose gradients the criterion uses."""
        return find_head(self.model)

    @property
    def head_name(self) -> str:
        """The name of the last linear layer among the network's modules."""
        names = [name for name, module in self.model.named_modules() if module is self.head]
        return str(names[0])

    @property
    def draws_randomly(self) -> bool:
        """Whether a forward pass may draw from PyTorch's global generator, as dropout does."""
        return bool(getattr(self.model, "draws_randomly", True))

    @property
    def head_grows(self) -> bool:
        """Whether the head grows with the classes."""
        return self.grows or self.settings.head == "growing"

    def grow(self, seen: int) -> None:
        """Make room for the classes of a new task; `seen` classes are known with it."""
        if self.head_grows:
            generator = self.streams.generator("heads")
            self.model.head = grow_head(self.head, seen, generator=generator)

    # --- what the loop calls ----------------------------------------------------------------

    def stored_samples(self) -> Samples:
        """Return the samples that join the new data in the pool."""
        return self.memory.samples

    @classmethod
    def learns_stored(cls) -> bool:
        """Return whether a task also learns the stored samples of earlier tasks."""
        return cls.replays

    def drop_samples(self) -> None:
        """Remove all stored samples, for a file to share; predictions do not change.

        Raises:
            InputError: If predictions need the samples.
        """
        self.memory.split_off(torch.ones_like(self.memory.y, dtype=torch.bool))

    @property
    def replay_size(self) -> int:
        """How many samples a step replays: as set, or all stored samples if there are fewer."""
        return min(self.settings.replay_batch_size, self.num_replayable)

    @property
    def num_replayable(self) -> int:
        """How many stored samples a step may replay."""
        return len(self.memory)

    def epoch_samples(self) -> int:
        """Return how many samples an epoch covers, counted from the start of the pool."""
        return self.pool.num_new

    def needed_samples(self, first_step: int) -> list[Tensor]:
        """Return the pool rows that this rank needs in each step of the epoch, from one step on.

        Streamed samples are then read ahead. A step may need others, too.
        """
        assert self.new is not None
        steps, plan, ranks = range(first_step, len(self.new)), self.plan, self.ranks
        if plan is not None and plan.index is not None:
            return [plan.needed(step, ranks.rows(plan.y.shape[1])) for step in steps]
        return [self.new[step, ranks.rows(self.new.shape[1])] for step in steps]

    def stages(self) -> Sequence[Stage]:
        """Return the stages of the current task's training."""
        return [Stage("train", self.settings.epochs)]

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Start a task with its data and the memory; `seen` classes are known with it.

        A pretrained network that is fine-tuned starts every task from a head in closed form.
        """
        self.grow(seen)
        self.seen = seen
        self.set_pool(pool)
        if isinstance(self.model, FineTuned):
            start_from_closed_form(self.model, self.head, pool, self.ranks)

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task that begins or resumes."""
        self.pool = pool
        self.mixer.begin_task(pool, self.head.out_features)
        self.selector.begin_task(pool, self.head.out_features)

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage with a new optimizer."""
        self.stage = stage
        self.optimizer = self.new_optimizer()

    def adjust_gradients(self) -> None:  # noqa: B027 – most methods leave them as they are
        """Change the gradients of a step before the optimizer uses them, if `adjusts_gradients`."""

    def remark(self) -> str | None:
        """Return what a user should know about the task that has begun; None if nothing."""
        return None

    def train_mode(self) -> None:
        """Put the modules that the current stage trains in training mode."""
        self.model.train()

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the current stage trains."""
        return list(self.model.parameters())

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimizer for the current stage."""
        return OPTIMIZERS[self.settings.optimizer](self.parameter_groups(), self.settings)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trained parameters; those of a pretrained backbone have a lower rate."""
        if not isinstance(self.model, FineTuned):
            return [{"params": self.parameters()}]
        backbone = self.model.pretrained_parameters()
        inside = {id(parameter) for parameter in self.model.module.parameters()}
        others = [parameter for parameter in self.parameters() if id(parameter) not in inside]
        return [
            {"params": others},
            {"params": backbone, "lr_scale": self.settings.backbone_lr_scale},
        ]

    def learning_rates(self, epoch: int, steps: int) -> list[float]:
        """Return the learning rate of each step of an epoch; see `lr_factor`."""
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
        """Store exemplars of every new class (Algorithm 1, steps 26 and 27)."""
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
        kind = "herding" if rule == "herding" else "kmeans"
        return class_priorities(kind, features, new.y, quota, generator)

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
            InputError: If predictions are not those of a single network.
        """
        return copy.deepcopy(self.model)

    # --- forgetting on purpose --------------------------------------------------------------

    def forget(self, label: int) -> None:
        """Remove a class, its exemplars and its outputs; later classes move up by one.

        Call it between tasks. A head of fixed size gets a new output in place of the old one.
        """
        self.memory.forget(label)
        self.drop_outputs(label)
        self.seen -= 1
        self.mixer.forget_counts()
        self.selector.forget()

    def drop_outputs(self, label: int) -> None:
        """Remove a class from every network."""
        self.model.head = self.without_output(self.head, label)

    def without_output(self, head: nn.Linear, label: int) -> nn.Linear:
        """Return a head without the output `label`."""
        shorter = drop_output(head, label)
        if self.head_grows:
            return shorter
        return grow_head(shorter, head.out_features, generator=self.streams.generator("heads"))

    # --- state ------------------------------------------------------------------------------

    def structure(self) -> dict[str, Any]:
        """Return, as plain JSON, what `rebuild` needs to make networks of the same shape."""
        return {"outputs": self.head.out_features, "seen": self.seen}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Give the networks the shape of a saved state, before tensors are loaded into them."""
        if structure["outputs"] != self.head.out_features:
            self.grow(structure["outputs"])
        self.seen = structure["seen"]

    def networks(self) -> dict[str, nn.Module]:
        """Return every network that a later step depends on."""
        return {"model": self.model}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next task depends on, except random streams and data."""
        return {
            "structure": self.structure(),
            "networks": {name: net.state_dict() for name, net in self.networks().items()},
            "memory": self.memory.state_dict(),
        }

    def stage_state_dict(self) -> dict[str, Any]:
        """Return what the rest of the current stage depends on."""
        assert self.optimizer is not None
        return {
            "optimizer": optimizer_state(self.optimizer),
            "new": self.new,
            "plan": None if self.plan is None else self.plan.state_dict(),
            "counts": self.mixer.counts.clone(),
            "pairs": self.selector.state_dict(),
        }

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the samples that join the new data in the pool."""
        memory = state["memory"]
        if len(memory["y"]) and memory["extras"].keys() != self.extras:
            raise InputError(f"memory.extras: the saved memory stores {sorted(memory['extras'])}")
        self.check_labels(memory["y"])
        self.memory.load_state_dict(memory)

    def check_labels(self, y: Tensor) -> None:
        """Raise InputError unless all saved labels are classes seen."""
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.seen:
            raise InputError(f"memory.y: saved labels are not those of {self.seen} classes")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `rebuild` comes first."""
        self.load_memory(state)
        networks, saved = self.networks(), state["networks"]
        if networks.keys() != saved.keys():
            raise InputError(f"networks: {sorted(saved)} are saved, not {sorted(networks)}")
        for name, network in networks.items():
            load_weights(network, saved[name])

    def load_stage_state_dict(self, state: dict[str, Any], stage: Stage) -> None:
        """Resume a stage in the middle; `set_pool` and `load_state_dict` come first."""
        self.stage = stage
        self.optimizer = self.new_optimizer()
        load_optimizer(self.optimizer, state["optimizer"])
        self.mixer.load_counts(state["counts"])
        self.selector.load_state_dict(state["pairs"])
        self.new = state["new"]
        self.plan = None
        if state["plan"] is not None:
            self.plan = self.mixer.load_plan(state["plan"], self.selector.pairs)
