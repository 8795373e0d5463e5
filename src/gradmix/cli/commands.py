"""All commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gradmix import __version__
from gradmix.cli.demo import demo
from gradmix.cli.installation import doctor, list_all
from gradmix.cli.learn import learn, shard
from gradmix.cli.model_file import export, forget, inspect, predict, serve
from gradmix.cli.results import report, results
from gradmix.cli.run import run
from gradmix.cli.settings import GradMixCommand
from gradmix.cli.sweep import reproduce, sweep

app = typer.Typer(
    help="Class-incremental learning with gradient-based selective mixup.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(learn, predict, inspect, forget, export, serve, shard),
    *(run, sweep, results, reproduce, report, demo),
)
for command in COMMANDS:
    app.command(cls=GradMixCommand)(command)
app.command(name="list", cls=GradMixCommand)(list_all)
app.command(cls=GradMixCommand)(doctor)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gradmix {__version__}")
        raise typer.Exit


@app.callback()
def general_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Class-incremental learning with gradient-based selective mixup."""
