"""What a method declares about itself, and the settings that it therefore refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gradmix._setting_types import Settings
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing import Recipe
from gradmix.settings import task_scenario


class Options(Settings):
    """A method's own settings, all of them numbers; this one has none."""


def read_options(kind: type[Options], given: Mapping[str, float]) -> Options:
    """Return a method's options from their names and values.

    Args:
        kind: The options that the method declares.
        given: Values by name; the others have their defaults.

    Raises:
        InputError: If a name is unknown or a value is not a number within bounds.
    """
    for name in given:
        if name not in kind.model_fields:
            known = kind.model_fields or ["(this method has none)"]
            raise UnknownNameError("option", name, known)
    return kind(**given)


class Capabilities:
    """The class variables in which a method differs from others, and checks of settings.

    The checks are class methods: a sweep calls them before it builds a network.
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


class ExtendsNetwork(Capabilities):
    """For methods that add parts to the network when new classes come; derive from it first."""

    grows: ClassVar[bool] = True
    needs_new_classes: ClassVar[bool] = True
    extends_network: ClassVar[bool] = True
    online: ClassVar[bool] = False
