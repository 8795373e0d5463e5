"""What a basis method of class-incremental learning is: the part of training that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion import evaluating, find_head
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError, UnknownNameError
from gradmix.memory import ReplayMemory, random_priority
from gradmix.methods.sgd import SGD
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Mixer
from gradmix.mixing.plan import Plan
from gradmix.models import mlp_gradient
from gradmix.models.heads import drop_output, grow_head
from gradmix.models.weights import load_weights
from gradmix.randomness import RandomStreams
from gradmix.types import MixedBatch, Samples


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
    head: str = "fixed"  # all outputs from the start, or "growing" with the classes

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
        if self.head not in ("fixed", "growing"):
            raise UnknownNameError("head", self.head, ("fixed", "growing"))


@dataclass(frozen=True)
class Options:
    """A method's own settings; this one has none."""


def read_options(kind: type[Options], given: Mapping[str, float]) -> Options:
    """Options by name; unknown names are refused."""
    known = {field.name: field.type for field in fields(kind)}
    for name in given:
        if name not in known:
            raise UnknownNameError("option", name, known or ["(this method has none)"])
        if isinstance(given[name], bool) or not isinstance(given[name], (int, float)):
            raise InputError(f"option {name} is {given[name]!r}; it must be a number")
    return kind(**given)


class Stage(NamedTuple):
    """A stretch of a task's training with an optimizer of its own."""

    name: str
    epochs: int


class Method:
    """A network, its memory and mixer, and how one step trains it.

    The loop calls, for each task: `begin_task`; for each of its `stages`, `begin_stage`; for
    each epoch, `begin_epoch`, which plans its batches; for each of these, `train_step`, whose
    loss the loop takes the gradient of before it moves `optimizer`; and, at the end, `end_task`.
    """

    options_type: ClassVar[type[Options]] = Options
    grows: ClassVar[bool] = False  # whether the head must grow with the classes
    replays: ClassVar[bool] = True  # whether there is a memory that mixing can protect
    extras: ClassVar[frozenset[str]] = frozenset()  # what the memory keeps of exemplars besides

    def __init__(
        self,
        model: nn.Module,
        memory: ReplayMemory,
        mixer: Mixer,
        settings: Settings,
        streams: RandomStreams,
        normalise: Normalise,
        options: Options | None = None,
    ) -> None:
        self.check_mix(mixer.recipe)
        self.model, self.memory, self.mixer = model, memory, mixer
        self.settings, self.streams, self.normalise = settings, streams, normalise
        self.options = self.options_type() if options is None else options
        self.stage = Stage("train", settings.epochs)
        self.seen = 0  # classes met, the current task's included
        self.new: Tensor | None = None  # (S, |B1|) pool indices of each step's new samples
        self.plan: Plan | None = None  # the epoch's batches

    @classmethod
    def check_mix(cls, recipe: Recipe | None) -> None:
        """Refuse mixes that have no meaning for this method."""
        if not cls.replays and recipe is not None and recipe.uses_gradients:
            raise InputError(
                f"mix has {recipe.partners!r} partners, which protect a memory, and "
                f"{cls.__name__} replays none; give a mix without gradients"
            )

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The current stage's, which replaces the last one's."""
        return self.new_optimizer()

    # --- the network ------------------------------------------------------------------------

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, whose gradients the criterion looks at."""
        return find_head(self.model)

    def grow(self, seen: int) -> None:
        """Make room for the classes of a new task, of which `seen` have then been met."""
        if self.grows or self.settings.head == "growing":
            with self.streams.as_global("heads"):
                self.model.head = grow_head(self.head, seen)

    def logits(self, mixed: MixedBatch) -> Tensor:
        """Outputs of the network for a mixed batch, one row per target."""
        outputs: Tensor = self.model(mixed.x, mix=mixed.mix, at=mixed.at)
        return outputs

    # --- what the loop calls ----------------------------------------------------------------

    def past(self) -> Samples:
        """What joins the new data in the pool."""
        return self.memory.samples

    def epoch_samples(self) -> int:
        """How many samples of the pool, from its first on, an epoch passes over."""
        return self.pool.num_new

    def stages(self) -> Sequence[Stage]:
        """What the current task's training consists of."""
        return [Stage("train", self.settings.epochs)]

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Meet the task's data and the memory; `seen` classes are known with this task."""
        self.grow(seen)
        self.seen = seen
        self.meet(pool)

    def meet(self, pool: Pool) -> None:
        """Take the pool of a task, begun now or to be continued."""
        self.pool = pool
        self.mixer.begin_task(pool, self.head.out_features)

    def begin_stage(self, stage: Stage) -> None:
        """Start with a new optimizer."""
        self.stage = stage
        self.optimizer = self.new_optimizer()

    def train_mode(self) -> None:
        """Put what the current stage trains in training mode."""
        self.model.train()

    def parameters(self) -> list[nn.Parameter]:
        """What the current stage trains."""
        return list(self.model.parameters())

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD over what the current stage trains."""
        s = self.settings
        return SGD(self.parameters(), s.lr, s.momentum, s.weight_decay)

    def begin_epoch(self, epoch: int, new: Tensor) -> None:
        """Set the learning rate, refresh the pair tables, plan the epoch's batches.

        `new` are pool indices, (S, |B1|): the new samples of each step.
        """
        passed = sum(epoch >= step for step in self.settings.lr_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * 0.1**passed
        self.mixer.refresh(self.model, self.head)
        self.new, self.plan = new, self.plan_epoch(new)

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """B1 ∪ B2 of every step and how it is mixed; None if that cannot be said before."""
        return self.planned(self.joined(new))

    def planned(self, index: Tensor) -> Plan:
        """How batches of pool indices, (S, B), are mixed."""
        return self.mixer.plan(self.pool.y[index], index)

    def mixed_batch(self, step: int) -> MixedBatch:
        """What a step trains on, as planned: partners, blend, labels."""
        assert self.plan is not None
        return self.mixer.mix(self.plan, step)

    def train_step(self, step: int) -> Tensor:
        """The loss of one step: Algorithm 1, steps 12 to 23, up to the gradient."""
        mixed = self.mixed_batch(step)
        return F.cross_entropy(self.logits(mixed), mixed.targets)

    def layers_by_hand(self) -> list[mlp_gradient.Layer] | None:
        """The layers of an MLP if the gradient of a step can be written out, which is faster.

        So if the loss is that of `train_step` above, inputs are mixed and not hidden states, and
        no method or optimizer of one's own has a say.
        """
        recipe = self.mixer.recipe
        plain = (
            getattr(self.train_step, "__func__", None) is Method.train_step
            and getattr(self.logits, "__func__", None) is Method.logits
            and self.mixed_batch.__module__.startswith("gradmix.")
            and type(self.optimizer) is SGD
            and (recipe is None or recipe.blend != "manifold")
        )
        return mlp_gradient.layers_of(self.model) if plain else None

    def end_task(self, new: Samples) -> None:
        """Keep random exemplars of every new class (Algorithm 1, steps 26 and 27)."""
        self.memory.add(new, random_priority(len(new.y), self.streams.device("memory")))

    # --- replay -----------------------------------------------------------------------------

    def draw_replay(self) -> Tensor:
        """Pool indices of B2: uniform from the memory, or all of it if it is smaller."""
        drawn = self.memory.draw(self.settings.replay_batch_size, self.streams.device("replay"))
        return self.pool.num_new + drawn

    def joined(self, new: Tensor) -> Tensor:
        """Pool indices of B1 ∪ B2 of every step, (S, B)."""
        return torch.cat([new, torch.stack([self.draw_replay() for _ in new])], dim=1)

    # --- use --------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class scores of network inputs, in evaluation mode."""
        with evaluating(self.model):
            scores: Tensor = self.model(x)
        return scores

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """All that is evaluated after a task: "main", and what else a method has."""
        return {"main": self.predict}

    # --- forgetting on purpose --------------------------------------------------------------

    def forget(self, label: int) -> None:
        """Drop a class, its exemplars and its outputs; the classes after it move up by one.

        Between tasks. A head of fixed size gets an output for another class in its place.
        """
        self.memory.forget(label)
        self.drop_outputs(label)
        self.seen -= 1
        self.mixer.forget_pairs()

    def drop_outputs(self, label: int) -> None:
        """Take a class out of every network."""
        self.model.head = self.without_output(self.head, label)

    def without_output(self, head: nn.Linear, label: int) -> nn.Linear:
        """A head after `label` is gone."""
        shorter = drop_output(head, label)
        if self.grows or self.settings.head == "growing":
            return shorter
        with self.streams.as_global("heads"):
            return grow_head(shorter, head.out_features)

    # --- state ------------------------------------------------------------------------------

    def structure(self) -> dict[str, Any]:
        """What `rebuild` needs to give a new object networks of the same shape, as plain JSON."""
        return {"outputs": self.head.out_features, "seen": self.seen}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Give the networks the shape of a saved state, before tensors are loaded into them."""
        if structure["outputs"] != self.head.out_features:
            self.grow(structure["outputs"])
        self.seen = structure["seen"]

    def networks(self) -> dict[str, nn.Module]:
        """Every network that a later step depends on."""
        return {"model": self.model}

    def state_dict(self) -> dict[str, Any]:
        """All that a later step depends on, but for the random streams and the task's data."""
        return {
            "structure": self.structure(),
            "networks": {name: net.state_dict() for name, net in self.networks().items()},
            "memory": self.memory.state_dict(),
            "mixer": self.mixer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "new": self.new,
            "plan": None if self.plan is None else self.plan.state_dict(),
        }

    def load_past(self, state: dict[str, Any]) -> None:
        """Take over what joins the new data in the pool: exemplars of the classes seen."""
        memory = state["memory"]
        if len(memory["y"]) and memory["extras"].keys() != self.extras:
            raise InputError(f"the saved memory keeps {sorted(memory['extras'])} of exemplars")
        self.check_labels(memory["y"])
        self.memory.load_state_dict(memory)

    def check_labels(self, y: Tensor) -> None:
        """InputError unless saved labels are those of the classes seen."""
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.seen:
            raise InputError(f"there are saved labels other than those of {self.seen} classes")

    def load_state_dict(self, state: dict[str, Any], stage: Stage | None = None) -> None:
        """Continue from a saved state, in `stage` if in the middle of a task.

        The loop has called `rebuild` and, in the middle of a task, `meet`.
        """
        self.load_past(state)
        for name, network in self.networks().items():
            load_weights(network, state["networks"][name])
        self.mixer.load_state_dict(state["mixer"])
        if stage is not None:
            self.stage = stage
            self.optimizer = self.new_optimizer()
            self.optimizer.load_state_dict(state["optimizer"])
            self.new = state["new"]
            self.plan = None if state["plan"] is None else self.mixer.load_plan(state["plan"])
