"""gradmix learn: photos in folders by class into a model file, again and again."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix.cli.terminal import messages, output, printable, showing_progress

if TYPE_CHECKING:
    from rich.progress import Progress

    from gradmix.classifier import Report
    from gradmix.training.loop import Event, Training

DEFAULTS = {"exemplars_per_class": 32, "holdout_per_class": 8, "random_state": 0, "threads": 1}
REFRESH_SECONDS = 0.1


def learn(
    photos: Annotated[str, typer.Argument(help="Folder with a folder of images for each class.")],
    model: Annotated[str, typer.Option(help="The file that learns; made if it is not there.")],
    test: Annotated[
        str | None, typer.Option(help="Folder to measure on, instead of what is held out.")
    ] = None,
    exemplars: Annotated[
        int | None, typer.Option(help="Images to keep of each class; 32 by default.")
    ] = None,
    holdout: Annotated[
        int | None, typer.Option(help="Of these, for measuring only; 8 by default.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Pixels a side that images are resized to.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="See `gradmix list`; auto.")] = None,
    method: Annotated[str | None, typer.Option(help="Basis method; er by default.")] = None,
    mix: Annotated[str | None, typer.Option(help="Mix by name; auto by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="By default as many as seem right.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    early_stopping: Annotated[
        bool | None, typer.Option(help="Stop when it does not get better any more.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out photos that cannot be read.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of a new model; 0 by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of PyTorch; 1 by default.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Learn new classes, or more of known ones, from photos, and write them into a model file.

    Shows the accuracy on each class before and after, on images held out of training. Stopped in
    whatever way, the same command goes on where it was and ends with the same file.
    """
    from gradmix.classifier.continuing import learn_into
    from gradmix.data.image_folders.read import has_own_test
    from gradmix.errors import DataWarning

    given = {
        "exemplars_per_class": exemplars,
        "holdout_per_class": holdout,
        "image_size": size,
        "model": network,
        "method": method,
        "mix": mix,
        "epochs": epochs,
        "lr": lr,
        "early_stopping": early_stopping,
        "random_state": seed,
        "threads": threads,
        "device": device,
    }
    if test is None and has_own_test(photos):
        test = photos
    with _stopping(), showing_progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # they are in the report
        classifier = learn_into(
            model,
            photos,
            test,
            given={name: value for name, value in given.items() if value is not None},
            defaults=DEFAULTS,
            say=_say,
            on_event=_follow(progress),
            skip_unreadable=skip_unreadable,
        )
    report = classifier.report_
    if as_json:
        print(json.dumps(report.to_state(), indent=2))  # noqa: T201
    else:
        _show(report, model)


@contextmanager
def _stopping() -> Iterator[None]:
    """Say what a stop means."""
    try:
        yield
    except KeyboardInterrupt:
        _say("the model is as it was; the same command goes on where this one stopped")
        raise


def _say(text: str) -> None:
    messages.print(text, soft_wrap=True, markup=False)


def _follow(progress: Progress) -> Callable[[Training, Event], None]:
    """An observer that moves a bar."""
    bar = progress.add_task("learning", total=None, status="")
    shown = 0.0

    def observe(training: Training, event: Any) -> None:
        nonlocal shown
        if hasattr(event, "step") and time.monotonic() - shown >= REFRESH_SECONDS:
            shown = time.monotonic()
            stage = training.method.stage
            done = (event.epoch + event.step / event.steps) / stage.epochs
            status = f"{stage.name} epoch {event.epoch + 1}/{stage.epochs}"
            progress.update(bar, total=1.0, completed=done, status=status)

    return observe


def _show(report: Report, model: str) -> None:
    """What was learned, and how well."""
    new, more = (", ".join(map(printable, names)) for names in (report.new, report.more))
    parts = [f"learned {new}"] if new else []
    parts += [f"more of {more}"] if more else []
    early = ", stopped early" if report.stopped_early else ""
    output.print(
        f"{'; '.join(parts)}: {report.samples} images, {report.epochs} epochs{early}",
        soft_wrap=True,
        markup=False,
    )
    if report.accuracy:
        output.print(accuracy_table(report))
    else:
        output.print("accuracy is unknown: nothing is held out; give --test or --holdout")
    if report.forgotten is not None:
        output.print(f"forgotten on average: {report.forgotten:.3f}")
    for text in report.warnings:
        messages.print(printable(f"warning: {text}"), soft_wrap=True, markup=False)
    output.print(f"model in {model}", soft_wrap=True, markup=False)


def accuracy_table(report: Report) -> Table:
    """Each class before and after."""
    table = Table(
        "class", *(Column(name, justify="right") for name in ("images", "before", "after"))
    )
    for label, before, after, count in report.accuracy:
        was = "new" if before is None else f"{before:.3f}"
        table.add_row(Text(printable(label)), str(count), was, f"{after:.3f}")
    table.add_section()
    total = sum(count for *_, count in report.accuracy)
    was = "" if report.before is None else f"{report.before:.3f}"
    table.add_row("mean", str(total), was, f"{report.after:.3f}")
    where = "the test folder" if report.measured_on == "eval_set" else "held-out images"
    table.caption = f"accuracy on {where}"
    return table
