"""What a method consists of: options, network, memory, mixer, optimizer; and its saved state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gradmix._setting_types import Settings
from gradmix.criterion import PairSelector, find_head
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError, UnknownNameError
from gradmix.memory import ReplayMemory
from gradmix.methods.optimizer import OPTIMIZERS, check_optimizer, load_optimizer, optimizer_state
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Mixer, Plan
from gradmix.models.finetune import FineTuned
from gradmix.models.heads import drop_output, grow_head
from gradmix.models.network import new_linear
from gradmix.models.weights import load_weights
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import TrainingSettings, task_scenario


class Stage(NamedTuple):
    """A part of a task's training with an optimizer of its own."""

    name: str
    epochs: int
    mixed: bool = True  # whether its batches are mixed, if there is a mix


class Options(Settings):
    """A method's own settings, all of them numbers; this one has none."""


class Components:
    """The components of a method, the settings that it refuses, and its state in files.

    The class variables are what a method declares about itself. The checks of settings are class
    methods: a sweep calls them before it builds a network.

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

    options: Options = Options()  # the method's own settings; those of the class are the defaults
    grows: ClassVar[bool] = False  # whether the head must grow with the classes
    replays: ClassVar[bool] = True  # whether there is a memory that mixing can protect
    trains: ClassVar[bool] = True  # whether there are epochs of training
    softmax: ClassVar[bool] = True  # whether labels are learned by a softmax cross-entropy
    plans: ClassVar[bool] = True  # whether `plan_epoch` returns a plan
    selection: ClassVar[str | None] = "random"  # rule for exemplars; None: another one of its own
    row_wise: ClassVar[bool] = True  # whether losses are means over rows, which ranks can share
    needs_new_classes: ClassVar[bool] = False  # whether every task must bring new classes
    online: ClassVar[bool] = False  # whether `end_task` can store one batch after another
    extras: ClassVar[frozenset[str]] = frozenset()  # what the memory stores beside the samples
    other_networks: ClassVar[tuple[str, ...]] = ()  # attributes with networks to save, or None
    other_state: ClassVar[tuple[str, ...]] = ()  # attributes with tensors or plain values to save

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
        self.options = self.options if options is None else options
        self.ranks = ranks
        self.head_grows = self.grows or settings.head == "growing"  # with the classes
        # Whether a forward pass may draw from PyTorch's global generator, as dropout does.
        self.draws_randomly = bool(getattr(model, "draws_randomly", True))
        self.stage = Stage("train", settings.epochs)
        self.seen = 0  # classes seen, the current task's included
        self.adjustment: Tensor | None = None  # (C,) that the loss adds to all logits
        self.plan: Plan | None = None  # the batches of the epoch
        self.pool: Pool  # the data of the task, from `set_pool` on
        self.optimizer: torch.optim.Optimizer  # of the current stage, from `begin_stage` on
        self.new: Tensor  # (S, |B1|) pool rows of each step's new samples, from `begin_epoch` on

    # --- settings that the method has or refuses ---------------------------------------------

    @classmethod
    def read_options(cls, given: Mapping[str, float]) -> Options:
        """Return the method's options from names and values; the others have their defaults."""
        kind = type(cls.options)
        for name in given:
            if not kind.model_fields:
                raise InputError(
                    f"option (--option) is {name!r}, but this method has no options; omit it"
                )
            if name not in kind.model_fields:
                raise UnknownNameError("option", name, kind.model_fields)
        return kind(**given)

    @classmethod
    def check_mix(cls, recipe: Recipe | None) -> None:
        """Raise InputError for a mix that has no meaning for this method."""
        if not cls.trains and recipe is not None:
            raise InputError(
                f"mix has {recipe.partners!r} partners, but {cls.__name__} has no training steps "
                "and cannot mix; give mix='none'"
            )
        if not cls.replays and recipe is not None and recipe.uses_gradients:
            raise InputError(
                f"mix has {recipe.partners!r} partners, which protect a memory, and "
                f"{cls.__name__} replays none; give a mix without gradients"
            )

    @classmethod
    def check_selection(cls, rule: str | None) -> None:
        """Raise InputError for a rule of selection that this method cannot follow."""
        if rule is not None and (cls.selection is None or not cls.replays):
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
        return next(str(name) for name, module in self.model.named_modules() if module is self.head)

    def grow(self, seen: int) -> None:
        """Make room for the classes of a new task; `seen` classes are known with it."""
        if self.head_grows:
            self.model.head = self.grown(self.head, seen)

    def frozen_copy(self) -> nn.Module:
        """Return a copy of the network in evaluation mode, without gradients."""
        return copy.deepcopy(self.model).requires_grad_(False).eval()

    def grown(self, head: nn.Linear, outputs: int) -> nn.Linear:
        """Return a head with more outputs; each call draws from the stream "heads"."""
        return grow_head(head, outputs, generator=self.streams.generator("heads"))

    def new_layer(self, inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
        """Return a linear layer with the head's device and dtype, drawn from the stream "heads"."""
        generator, like = self.streams.generator("heads"), self.head.weight
        return new_linear(
            inputs, outputs, bias, generator=generator, device=like.device, dtype=like.dtype
        )

    # --- the optimizer ----------------------------------------------------------------------

    def trained_modules(self) -> list[nn.Module]:
        """Return the modules that the current stage trains, except for their frozen parameters."""
        return [self.model]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the current stage trains."""
        every = [p for module in self.trained_modules() for p in module.parameters()]
        return [parameter for parameter in every if parameter.requires_grad]

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer for the stage; a pretrained backbone has a lower learning rate."""
        groups: list[dict[str, Any]] = [{"params": self.parameters()}]
        if isinstance(self.model, FineTuned):
            backbone = self.model.pretrained_parameters()
            inside = {id(parameter) for parameter in backbone}
            others = [parameter for parameter in self.parameters() if id(parameter) not in inside]
            scale = self.settings.backbone_lr_scale
            groups = [{"params": others}, {"params": backbone, "lr_scale": scale}]
        return OPTIMIZERS[self.settings.optimizer](groups, self.settings)

    # --- forgetting on purpose --------------------------------------------------------------

    def forget(self, label: int) -> None:
        """Remove a class, its exemplars and its outputs; later classes move up by one.

        Call it between tasks. A head of fixed size gets a new output in place of the old one.
        """
        self.memory.forget(label)
        self.drop_outputs(label)
        self.seen -= 1
        self.selector.pairs = None

    def drop_outputs(self, label: int) -> None:
        """Remove a class from every network."""
        self.model.head = self.without_output(self.head, label)

    def without_output(self, head: nn.Linear, label: int) -> nn.Linear:
        """Return a head without the output `label`."""
        shorter = drop_output(head, label)
        return shorter if self.head_grows else self.grown(shorter, head.out_features)

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
        named = {name: getattr(self, name) for name in ("model", *self.other_networks)}
        return {name: network for name, network in named.items() if network is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next task depends on, except random streams and data."""
        return {
            "structure": self.structure(),
            "networks": {name: net.state_dict() for name, net in self.networks().items()},
            "memory": self.memory.state_dict(),
            **{name: getattr(self, name) for name in self.other_state},
        }

    def stage_state_dict(self) -> dict[str, Any]:
        """Return what the rest of the current stage depends on."""
        return {
            "optimizer": optimizer_state(self.optimizer),
            "new": self.new,
            "plan": None if self.plan is None else self.plan.state_dict(),
            "counts": self.mixer.counts.clone(),
            "pairs": self.selector.state_dict(),
        }

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the samples that join the new data in the pool, and what `set_pool` may need."""
        memory = state["memory"]
        if len(memory["y"]) and memory["extras"].keys() != self.extras:
            raise InputError(f"memory.extras: the saved memory stores {sorted(memory['extras'])}")
        self.check_labels(memory["y"])
        self.memory.load_state_dict(memory)
        for name in self.other_state:
            setattr(self, name, state[name])

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
