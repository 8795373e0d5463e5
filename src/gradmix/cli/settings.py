"""The settings of a run as command-line options, generated from their declarations.

Options may take several values at once: `--seeds 0 1 2`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer
from typer.core import TyperCommand

from gradmix import __version__
from gradmix._setting_docs import Description, describe
from gradmix._setting_types import parse_seeds
from gradmix.errors import InputError
from gradmix.settings import PRESETS

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig

Command = TypeVar("Command", bound=Callable[..., Any])


class ManyValues(TyperCommand):
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
        return super().parse_args(ctx, spelled)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gradmix {__version__}")
        raise typer.Exit


def general_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Class-incremental learning with gradient-based selective mixup."""


def parse_class_order(text: str | None) -> str | tuple[int, ...] | None:
    """Return natural or seed:N as it is, and classes separated by commas as a tuple."""
    if text is None or not text[:1].isdecimal():
        return text
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"class_order is {text!r}; give natural, seed:1993, or classes such as 3,1,0,2"
        )
    return tuple(int(part) for part in parts)


def parse_options(texts: list[str] | None) -> tuple[tuple[str, float], ...] | None:
    """Return the pairs of name=number, sorted by name.

    >>> parse_options(["beta=1", "alpha=0.5"])
    (('alpha', 0.5), ('beta', 1.0))
    """
    if texts is None:
        return None
    pairs: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"option is {text!r}; give name=number, such as alpha=0.3") from None
        if name in pairs:
            raise InputError(
                f"option {name} is given twice, {pairs[name]:g} and {number:g}; give it once, or "
                "list several in the file of a sweep: options = [{...}, {...}]"
            )
        pairs[name] = number
    return tuple(sorted(pairs.items()))


def parse_transforms(names: list[str] | None) -> tuple[str, ...] | None:
    """Return the names as a tuple; "none" alone is the empty tuple."""
    return None if names is None else () if names == ["none"] else tuple(names)


Data = Annotated[list[str] | None, typer.Option(help="Data sets; see `gradmix list`.")]
Seeds = Annotated[list[str] | None, typer.Option(help="Seeds, such as 0 1 2 or 0-4. Default: 0.")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="Modules that register plugins; see docs/cookbook.md."),
]
Controls = Annotated[
    bool, typer.Option(help="Also run the gradient-free controls of mixes that use gradients.")
]
Jobs = Annotated[int, typer.Option(help="Runs to compute at once, each in a process.")]
Out = Annotated[str, typer.Option(help="Folder for the result files.")]
Again = Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")]
RetryFailed = Annotated[bool, typer.Option(help="Repeat runs that failed earlier.")]
Checkpoint = Annotated[
    bool, typer.Option(help="Save checkpoints, and resume stopped runs from them.")
]

KINDS: dict[str, type] = {"integer": int, "number": float, "string": str}
FLAGS = {"exemplars_per_class": ("--exemplars-per-class", "--exemplars"), "options": ("--option",)}
PARSERS: dict[str, Callable[[Any], Any]] = {
    "options": parse_options,
    "class_order": parse_class_order,
    "transforms": parse_transforms,
}
BY_DATA = {name for preset in PRESETS.values() for name in preset}
"""Settings whose default depends on the data set."""

OPTIONS = {
    name: d for name, d in describe().items() if name not in ("data", "data_version", "seed")
}


def with_settings(command: Command) -> Command:
    """Give a command with `**settings` an option for each setting.

    Options take several values. A setting that is a list itself takes one list.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    named = [parameter for parameter in own if parameter.kind != parameter.VAR_KEYWORD]
    options = [_parameter(description) for description in OPTIONS.values()]
    command.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
    return command


def _parameter(setting: Description) -> inspect.Parameter:
    kind: Any = KINDS[setting.kind]
    option = typer.Option(*FLAGS.get(setting.name, ()), help=help_of(setting))
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[list[kind]], option],  # noqa: UP045 - kind is a variable
    )


def help_of(setting: Description) -> str:
    """Return the help of an option with its default."""
    if setting.name in BY_DATA:
        default = "depends on the data set"
    elif setting.default is None:
        default = "depends on the mix" if setting.name in ("alpha", "tables") else "none"
    elif isinstance(setting.default, list):
        default = " ".join(map(str, setting.default)) or "none"
    else:
        default = str(setting.default)
    return f"{setting.help} Default: {default}."


def chosen(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the given settings by name, each with a list of values."""
    return {
        name: [PARSERS.get(name, _same)(one) for one in ([value] if setting.is_list else value)]
        for name, setting in OPTIONS.items()
        if (value := settings[name]) is not None
    }


def _same(value: Any) -> Any:
    return value


def chosen_runs(
    data: list[str] | None,
    seeds: list[str] | None,
    settings: Mapping[str, Any],
    *,
    file: str | None = None,
    imports: list[str] | None = None,
    controls: bool = False,
    skip_impossible: bool = False,
) -> tuple[list[RunConfig], dict[str, str]]:
    """Return the runs of a command line, and the skipped combinations with the reason."""
    from gradmix.runs.config import controls_of, expand

    if imports:
        from gradmix.plugins import import_plugins

        import_plugins(imports)
    axes = chosen(settings)
    axes |= {"data": list(data)} if data else {}
    axes |= {"seed": parse_seeds(seeds)} if seeds else {}
    if file is None:
        grids: list[Any] = [axes]
    else:
        from gradmix.runs.grid import read_grids

        grids = list(read_grids(file, **axes))
    configs, skipped = expand(grids, skip_impossible)
    if controls:
        every = [one for config in configs for one in (config, *controls_of(config))]
        configs = list(dict.fromkeys(every))
    return configs, skipped
