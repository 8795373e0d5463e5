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
    help="Learn new classes over time, from photos or data sets, and keep the old ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # tables would cut off long options in narrow terminals
)
COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "learn": (learn, "Learn new classes, or more of known ones, from photos."),
    "predict": (predict, "Print the most likely class of each image."),
    "inspect": (inspect, "Show the classes, history and accuracy of a model."),
    "forget": (forget, "Remove classes from a model."),
    "export": (export, "Write a model as an ONNX file."),
    "serve": (serve, "Serve a model as a web page with a JSON API."),
    "shard": (shard, "Write a folder of photos to tar files, for large data."),
    "run": (run, "Learn a data set class by class, and write results."),
    "sweep": (sweep, "Run every combination of the given values."),
    "results": (results, "Show tables of results over seeds."),
    "reproduce": (reproduce, "Reproduce tables and figures of the paper."),
    "report": (report, "Write results as one HTML page."),
    "demo": (demo, "Learn photos, then compare mixes on handwritten digits."),
    "list": (list_all, "Show data sets, methods, mixes, networks and metrics."),
    "doctor": (doctor, "Show versions, devices, data sets and installed extras."),
}
for name, (command, summary) in COMMANDS.items():
    app.command(name=name, short_help=summary, cls=GradMixCommand)(command)


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
