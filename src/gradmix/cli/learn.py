"""gradmix learn: let a model file learn a folder of photos."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix.cli.terminal import messages, output, printable, remark, show, showing_progress

if TYPE_CHECKING:
    from rich.progress import Progress

    from gradmix.classifier import Report
    from gradmix.training.loop import Training

DEFAULTS = {"exemplars_per_class": 32, "holdout_per_class": 10, "random_state": 0, "threads": 1}
NO_EXEMPLARS = {"holdout_per_class": 0}  # with --exemplars 0, unless --holdout is given
REFRESH_SECONDS = 0.1


def learn(
    photos: Annotated[
        str,
        typer.Argument(
            help="Folder that contains a folder of images for each class, or a zip of it."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model file; created if it does not exist.")],
    test: Annotated[
        str | None, typer.Option(help="Folder to measure on, instead of held-out images.")
    ] = None,
    exemplars: Annotated[
        int | None, typer.Option(help="Images to store per class. Default: 32.")
    ] = None,
    holdout: Annotated[
        int | None, typer.Option(help="Stored images per class for measuring only. Default: 10.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Pixels per side of resized images. Default: auto."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Network or backbone; see `gradmix list`. Default: auto."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="File with weights of the network or backbone.")
    ] = None,
    finetune: Annotated[
        str | None, typer.Option(help="Layers of a backbone to train: none, last or all.")
    ] = None,
    keep_images: Annotated[
        bool | None, typer.Option(help="Store photos of the exemplars. Default: yes.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method; see `gradmix list`. Default: auto.")
    ] = None,
    mix: Annotated[str | None, typer.Option(help="Mix; see `gradmix list`. Default: auto.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the photos. Default: chosen from their number.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate. Default: 0.01, or 0.05 for a ResNet.")
    ] = None,
    early_stopping: Annotated[
        bool | None, typer.Option(help="Stop when the accuracy stops rising.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip photos that cannot be read.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of a new model. Default: 0.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of PyTorch. Default: 1.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps. Default: auto.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Learn new classes, or more of known ones, from photos, and update the model file.

    The report shows the accuracy on each class before and after, measured on images held out of
    training. If the command is stopped, repeat it: it resumes from its last checkpoint and writes
    an identical file.
    """
    from gradmix.classifier.learn_folder import learn_into
    from gradmix.classifier.progress import Observer
    from gradmix.data.image_folders.read import has_own_test
    from gradmix.errors import DataWarning

    given = {
        "exemplars_per_class": exemplars,
        "holdout_per_class": holdout,
        "image_size": size,
        "model": network,
        "weights": weights,
        "finetune": finetune,
        "keep_images": keep_images,
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
        observer = _Bars(progress) if messages.is_terminal else Observer(remark)
        warnings.simplefilter("ignore", DataWarning)  # the report contains them
        classifier = learn_into(
            model,
            photos,
            test,
            given={name: value for name, value in given.items() if value is not None},
            defaults={**DEFAULTS, **(NO_EXEMPLARS if exemplars == 0 else {})},
            say=remark,
            on_event=observer.on_event,
            on_photo=observer.on_photo,
            skip_unreadable=skip_unreadable,
        )
    report = classifier.report_
    if as_json:
        print(json.dumps(report.model_dump(), indent=2))  # noqa: T201
    else:
        _show(report, model)


@contextmanager
def _stopping() -> Iterator[None]:
    """Tell the user how to continue after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        remark("stopped: the model file is unchanged; repeat the command to resume")
        raise


class _Bars:
    """Shows the progress of a call as bars."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._shown = progress, 0.0
        self._photos = progress.add_task("computing features", total=None, status="", visible=False)
        self._steps = progress.add_task("learning", total=None, status="")

    def on_photo(self, done: int, total: int) -> None:
        status = f"{done} of {total} photos"
        self._progress.update(
            self._photos, total=total, completed=done, status=status, visible=done < total
        )

    def on_event(self, training: Training, event: Any) -> None:
        if hasattr(event, "step") and time.monotonic() - self._shown >= REFRESH_SECONDS:
            self._shown = time.monotonic()
            stage = training.method.stage
            done = (event.epoch + event.step / event.steps) / stage.epochs
            status = f"{stage.name} epoch {event.epoch + 1}/{stage.epochs}"
            self._progress.update(self._steps, total=1.0, completed=done, status=status)


def _show(report: Report, model: str) -> None:
    """Print what was learned, and the accuracy."""
    from gradmix.classifier.report import plural

    new, more = (", ".join(map(printable, names)) for names in (report.new, report.more))
    parts = [f"learned {new}"] if new else []
    parts += [f"more of {more}"] if more else []
    early = ", stopped early" if report.stopped_early else ""
    show(
        f"{'; '.join(parts)}: {plural(report.samples, 'image')}"
        + (f", {plural(report.epochs, 'epoch')}{early}" if report.epochs else "")
    )
    if report.accuracy:
        output.print(accuracy_table(report))
    else:
        output.print("accuracy is unknown: no images are held out; give --test or --holdout")
    if report.forgotten is not None:
        output.print(f"forgotten on average: {report.forgotten:.3f}")
    for text in report.warnings:
        remark(printable(f"warning: {text}"))
    show(f"model saved in {model}")


def accuracy_table(report: Report) -> Table:
    """Return a table of the accuracy on each class before and after."""
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
