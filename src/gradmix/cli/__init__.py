"""The command line: parse, call, print. PyTorch is imported only when something is computed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from gradmix import __version__
from gradmix.cli.arguments import ManyValues
from gradmix.cli.demo import demo
from gradmix.cli.inspect import inspect
from gradmix.cli.learn import learn
from gradmix.cli.list import list_all
from gradmix.cli.predict import predict
from gradmix.cli.report import report
from gradmix.cli.reproduce import reproduce
from gradmix.cli.results import results
from gradmix.cli.run import run
from gradmix.cli.sweep import sweep
from gradmix.cli.terminal import messages, output
from gradmix.errors import GradMixError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Class-incremental learning with gradient-based selective mixup.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: known errors become one line and exit code 2, Ctrl-C exit code 130.

    What the system refuses, such as a write to a full disk, is a line and exit code 1.
    """
    try:
        app(standalone_mode=True)
    except GradMixError as error:
        messages.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        messages.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        messages.print("stopped")
        sys.exit(130)


def _show_version(value: bool) -> None:
    if value:
        output.print(f"gradmix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Class-incremental learning with gradient-based selective mixup."""


app.command()(learn)
app.command()(predict)
app.command()(inspect)
app.command(cls=ManyValues)(run)
app.command(cls=ManyValues)(sweep)
app.command(cls=ManyValues)(results)
app.command(cls=ManyValues)(reproduce)
app.command()(report)
app.command()(demo)
app.command(name="list")(list_all)
