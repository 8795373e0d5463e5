"""What a method consists of: network, memory, mixer, selector, optimizer; and its saved state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradmix.criterion import PairSelector, find_head
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods.capabilities import Capabilities, Options
from gradmix.methods.optimizer import (
    OPTIMIZERS,
    check_optimizer,
    load_optimizer,
    optimizer_state,
)
from gradmix.mixing.mixer import Mixer, Plan
from gradmix.models.finetune import FineTuned
from gradmix.models.heads import drop_output, grow_head
from gradmix.models.weights import load_weights
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import TrainingSettings


class Stage(NamedTuple):
    """A part of a task's training with an optimizer of its own."""

    name: str
    epochs: int


class Parts(Capabilities):
    """The parts of a method, and their state in files.

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
        self.pool: Pool  # the data of the task; `set_pool` takes it

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

    # --- the optimizer ----------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the current stage trains: those that are not frozen."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimizer for the current stage."""
        return OPTIMIZERS[self.settings.optimizer](self.parameter_groups(), self.settings)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trained parameters; a pretrained backbone has a lower learning rate."""
        if not isinstance(self.model, FineTuned):
            return [{"params": self.parameters()}]
        backbone = self.model.pretrained_parameters()
        inside = {id(parameter) for parameter in self.model.module.parameters()}
        others = [parameter for parameter in self.parameters() if id(parameter) not in inside]
        return [
            {"params": others},
            {"params": backbone, "lr_scale": self.settings.backbone_lr_scale},
        ]

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

    def drop_samples(self) -> None:
        """Remove all stored samples, for a file to share; predictions do not change.

        Raises:
            InputError: If predictions need the samples.
        """
        self.memory.split_off(torch.ones_like(self.memory.y, dtype=torch.bool))

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
            raise InputError(f"memory.y: a saved label is not one of the {self.seen} classes")

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
