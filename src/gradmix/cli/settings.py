"""The settings of a run as options, declared once for every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Optional, TypeVar

import typer

from gradmix.cli.arguments import parse_class_order, parse_options, parse_transforms

Command = TypeVar("Command", bound=Callable[..., Any])


class Setting(NamedTuple):
    """An option, by the name of its field in `RunConfig`."""

    field: str
    kind: type  # of one value
    help: str
    flag: str = ""  # if it is not named as the field
    several: bool = False  # whether the field itself has several values
    parse: Callable[[Any], Any] = lambda value: value

    @property
    def name(self) -> str:
        """As the command's parameter."""
        return self.flag or self.field


SETTINGS = (
    Setting("method", str, "Basis method; er by default."),
    Setting("mix", str, "Mix by name, or partners:blend:labels, or none; gradmix+ by default."),
    Setting("model", str, "Network."),
    Setting("epochs", int, "Per task."),
    Setting("lr", float, "Learning rate of SGD."),
    Setting("momentum", float, "Of SGD."),
    Setting("weight_decay", float, "Of SGD."),
    Setting("lr_steps", int, "Epochs at which lr falls to a tenth.", several=True),
    Setting("batch_size", int, "New samples per step."),
    Setting("replay_batch_size", int, "Replayed ones."),
    Setting("exemplars_per_class", int, "Memory per class.", flag="exemplars"),
    Setting("memory_total", int, "Or memory in all."),
    Setting("alpha", float, "Of the mix's Beta distribution."),
    Setting("head", str, "fixed or growing."),
    Setting(
        "options",
        str,
        "The method's own settings, like alpha=0.3.",
        flag="option",
        several=True,
        parse=parse_options,
    ),
    Setting("tau", float, "Of Remix's label rule."),
    Setting("level", str, "What gradient partners judge: class or sample pairs."),
    Setting("tables", int, "Pair tables over λ; 1 is Algorithm 1's."),
    Setting("increments", int, "Classes per task: one number, or one for each.", several=True),
    Setting(
        "class_order", str, "natural, seed:1993, or classes like 3,1,0,2.", parse=parse_class_order
    ),
    Setting(
        "transforms",
        str,
        "Of training images: crop, flip, randaugment; none.",
        several=True,
        parse=parse_transforms,
    ),
    Setting("validation", int, "Training samples to hold out."),
    Setting("evaluate_on", str, "test or validation."),
    Setting("criterion_exemplars", int, "Per new class."),
    Setting("pairing", str, "one-to-one or all-pairs."),
    Setting("average", str, "sample or class."),
    Setting("criterion", str, "exact; of many classes clusters, neighbours; auto by default."),
    Setting("rolling", int, "Parts in which exemplars are embedded, one each epoch."),
    Setting("criterion_block", int, "Numbers the criterion computes at once; bounds its memory."),
    Setting("analyses", str, "Measurements along the run, by name.", several=True),
    Setting("threads", int, "Of PyTorch; 1 by default."),
    Setting("device", str, "auto, cpu, cuda, cuda:1, mps."),
    Setting("precision", str, "32-true, bf16-mixed or 16-mixed."),
)


def with_settings(lists: bool) -> Callable[[Command], Command]:
    """Give a command that takes `**settings` an option for each; if `lists`, with several values.

    Settings that have several values themselves keep meaning one such setting.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        options = [
            inspect.Parameter(
                setting.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    Optional[list[setting.kind] if lists or setting.several else setting.kind],  # type: ignore[name-defined]  # noqa: UP045
                    typer.Option(help=setting.help),
                ],
            )
            for setting in SETTINGS
        ]
        named = [parameter for parameter in own if parameter.kind != parameter.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
        return command

    return decorate


def chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `RunConfig` that the options give a value."""
    return {
        setting.field: setting.parse(settings[setting.name])
        for setting in SETTINGS
        if settings[setting.name] is not None
    }


def chosen_lists(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The same where options have several values: a list of values for each field."""
    return {
        setting.field: [setting.parse(value)]
        if setting.several
        else [setting.parse(one) for one in value]
        for setting in SETTINGS
        if (value := settings[setting.name]) is not None
    }
