"""The settings of a run as command-line options, generated from their declarations.

Options may take several values at once: `--seeds 0 1 2`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from gradmix._setting_docs import Description, describe, shown
from gradmix._setting_types import parse_seeds, remedy
from gradmix.errors import InputError
from gradmix.settings import PRESETS, MixSettings

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig

Command = TypeVar("Command", bound=Callable[..., Any])


class GradMixCommand(TyperCommand):
    """A command whose repeatable options take several values at once: `--seeds 0 1 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite `--seeds 0 1 2` as `--seeds 0 --seeds 1 --seeds 2` and parse it."""
        many = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spelled: list[str] = []
        option = None
        for arg in args:
            is_option = arg.startswith("-") and not arg[1:2].isdecimal()
            if is_option or option is None:
                option = arg if arg in many else None
                spelled.append(arg)
            elif spelled[-1] == option:
                spelled.append(arg)
            else:
                spelled += [option, arg]
        try:
            return super().parse_args(ctx, spelled)
        except typer.BadParameter as error:
            if error.param is not None and isinstance(error.__cause__, ValidationError):
                first = error.__cause__.errors()[0]
                names = [name for name in error.param.opts if name in args] or error.param.opts
                if expected := remedy(first):
                    raise InputError(f"{names[0]} is {first['input']!r}; {expected}") from None
            raise  # the message of Typer names the value


Texts = list[str] | None  # the values of an option that takes several


def several(about: str, *flags: str) -> Any:
    """Return an option that takes several texts."""
    return typer.Option(*flags, metavar="TEXT ...", help=about)


Data = Annotated[Texts, several("Data sets; see `gradmix list`.")]
Seeds = Annotated[Texts, several("Seeds, such as 0 1 2 or 0-4. Default: 0.")]
Imports = Annotated[
    Texts, several("Modules that register plugins; see docs/cookbook.md.", "--import")
]
Controls = Annotated[
    bool, typer.Option(help="Also run the gradient-free controls of mixes that use gradients.")
]
Jobs = Annotated[int, typer.Option(help="Runs to compute at once, each in a process.")]
Out = Annotated[str, typer.Option(help="Folder for the result files.")]
Again = Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")]
RetryFailed = Annotated[bool, typer.Option(help="Repeat runs that failed earlier.")]
Logs = Annotated[
    Texts,
    several(
        "Write losses and accuracies during the run: csv:FOLDER, tensorboard:FOLDER, "
        "wandb:PROJECT or mlflow:EXPERIMENT.",
        "--log",
    ),
]
LogEvery = Annotated[
    int | None, typer.Option(min=1, help="With --log: steps between logged losses.")
]
Checkpoint = Annotated[
    bool, typer.Option(help="Save checkpoints, and resume stopped runs from them.")
]

KINDS: dict[str, tuple[type, str | None]] = {
    "integer": (int, "INTEGER"),
    "number": (float, "NUMBER"),
    "string": (str, "TEXT"),
    "boolean": (bool, None),
    "any": (int, "INTEGER"),
}
"""The type of a value and its name in help texts, by the kind of the setting."""

OPTIONS = {
    name: setting
    for name, setting in describe().items()
    if name not in ("data", "data_version", "seed", "weights_version")
}


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Add the option to the name of a setting in errors: `exemplars_per_class (--exemplars) is`."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for name, option in options.items():
            text = re.sub(rf"\b{name} is\b", f"{name} ({option}) is", text)
        error.args = (text,)
        raise


def with_options(options: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Give a command with `**settings` these options."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [parameter for parameter in own if parameter.kind != parameter.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
        return command

    return add


def option(
    name: str, setting: Description, text: str, *, flags: Sequence[str] = (), many: bool = False
) -> inspect.Parameter:
    """Return a setting as an option; `many` lets it take several values."""
    kind: Any
    kind, shown = KINDS[setting.kind]
    if many:
        kind, shown = list[kind], f"{shown} ..."
    about = typer.Option(*flags, metavar=shown, help=text)
    annotation = Annotated[Optional[kind], about]  # noqa: UP045
    only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, only, default=None, annotation=annotation)


def help_of(setting: Description) -> str:
    """Return the help of an option with its values, if they are names, and its default."""
    values = ""
    if any(choice not in setting.help for choice in setting.choices):
        values = f" Values: {', '.join(setting.choices)}."
    default = shown(setting.default)
    if any(setting.name in preset for preset in PRESETS.values()):
        default = "depends on the data set"
    elif setting.default is None:
        default = "depends on the mix" if setting.name in MixSettings.model_fields else "none"
    about = setting.help.replace("None:", "if it is not given:")
    return f"{about}{values} Default: {default}."


with_settings = with_options(
    [
        option(name, setting, help_of(setting), flags=setting.flags, many=True)
        for name, setting in OPTIONS.items()
    ]
)
"""Gives a command with `**settings` an option for each setting of a run, with several values."""


def chosen(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the given settings by name, each with a list of values."""
    return {
        name: [value] if setting.is_list else value
        for name, setting in OPTIONS.items()
        if (value := settings[name]) is not None
    }


def chosen_runs(
    data: Texts,
    seeds: Texts,
    settings: Mapping[str, Any],
    imports: Texts,
    controls: bool,
    *,
    file: str | None = None,
    skip_impossible: bool | None = None,
) -> tuple[list[RunConfig], dict[str, str]]:
    """Return the runs of a command line, and the skipped combinations with the reason."""
    from gradmix.plugins import import_plugins
    from gradmix.runs.config import controls_of, expand

    import_plugins(imports or [])
    axes = chosen(settings)
    axes |= {"data": data} if data else {}
    axes |= {"seed": parse_seeds(seeds)} if seeds else {}
    grids: list[Any] = [axes]
    if file is not None:
        from gradmix.runs.sweep import read_grids

        grids = list(read_grids(file, **axes))
    hint = "" if skip_impossible is None else "; --skip-impossible skips it"
    with naming_options({name: one.flags[-1] for name, one in OPTIONS.items() if one.flags}):
        configs, skipped = expand(grids, bool(skip_impossible), remedy=hint)
    if controls:
        every = [one for config in configs for one in (config, *controls_of(config))]
        configs = list(dict.fromkeys(every))
    return configs, skipped
