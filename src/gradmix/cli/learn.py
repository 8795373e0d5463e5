"""gradmix learn: let a model file learn a folder of photos. gradmix shard: write such a folder."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix._setting_docs import describe
from gradmix.cli.settings import naming_options, option, with_options
from gradmix.cli.terminal import (
    messages,
    output,
    photo_bar,
    photo_counter,
    printable,
    remark,
    show,
    show_json,
    showing_progress,
)
from gradmix.errors import DataWarning, FileError, InputError
from gradmix.paths import existing_path
from gradmix.settings import CHOSEN_BY_CLASSIFIER, ClassifierSettings

if TYPE_CHECKING:
    from rich.progress import Progress

    from gradmix.classifier import IncrementalClassifier, Report
    from gradmix.training.loop import Training

OPTIONS = {
    **{"exemplars": "exemplars_per_class", "holdout": "holdout_per_class", "size": "image_size"},
    **{"network": "model", "weights": "weights", "finetune": "finetune"},
    **{"keep_images": "keep_images", "method": "method", "mix": "mix", "epochs": "epochs"},
    **{"lr": "lr", "early_stopping": "early_stopping", "seed": "random_state"},
    **{"threads": "threads", "device": "device", "devices": "devices"},
}
"""The options that are parameters of the classifier, with the parameter's name."""

DEFAULTS: dict[str, Any] = {
    "exemplars_per_class": 32,
    "holdout_per_class": 10,
    "random_state": 0,
    "threads": 1,
}


def _options() -> Iterator[inspect.Parameter]:
    """Return the options of parameters; their help says the defaults of this command."""
    known = {**describe(ClassifierSettings), **describe()}
    for name, parameter in OPTIONS.items():
        default = DEFAULTS.get(parameter, known[parameter].default)
        if parameter not in DEFAULTS and (parameter in CHOSEN_BY_CLASSIFIER or default is None):
            default = "auto" if parameter != "weights" else "none"
        default = {True: "yes", False: "no"}[default] if isinstance(default, bool) else default
        about, _, _ = known[parameter].help.rstrip(".").partition("; None:")
        yield option(name, known[parameter], f"{about}. Default: {default}.")


@with_options(list(_options()))
def learn(
    photos: Annotated[
        str,
        typer.Argument(
            help="Folder that contains a folder of images for each class, or a zip file or "
            "shards of it."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model file; created if it does not exist.")],
    test: Annotated[
        str | None, typer.Option(help="Folder to measure accuracy on, instead of held-out images.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip photos that cannot be read.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    **params: Any,
) -> None:
    """Learn new classes, or more of known ones, from photos, and update the model file.

    The report shows the accuracy on each class before and after, measured on images held out of
    training. If the command is stopped, repeat it: it resumes from its last checkpoint and writes
    an identical file.
    """
    folders = [folder for folder in (photos, test) if folder is not None]
    for folder in folders:
        existing_path(folder)  # before the slow imports
    if os.path.isdir(model):
        raise FileError(f"{model} is a folder; give a file for the model")
    from gradmix.classifier.report import Observer
    from gradmix.data.image_folders.classes import has_own_test
    from gradmix.data.image_folders.source import is_archive
    from gradmix.training.build import processes_outside

    if processes_outside() > 1:
        raise InputError("this command starts its processes itself; use --devices, not torchrun")
    for folder in folders:
        if os.path.isfile(folder) and not is_archive(folder):
            raise InputError(f"{folder} is a file; give a folder with a folder for each class")
    if test is None and has_own_test(photos):
        test = photos
    given = {OPTIONS[name]: value for name, value in params.items() if value is not None}
    other_names = {value: f"--{name}" for name, value in OPTIONS.items() if name != value}
    read = methodcaller("read_folders", photos, test, skip_unreadable)
    checkpoint = Path(f"{model}.checkpoint")
    try:
        with (
            naming_options(other_names),
            showing_progress() as progress,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", DataWarning)  # the report contains them
            bars = messages.is_terminal
            observer: Any = _Bars(progress) if bars else Observer(remark)
            classifier = _learn_into(model, given, read, observer, checkpoint)
    except KeyboardInterrupt:
        resumes = checkpoint.exists()
        how = "repeat the command to resume" if resumes else "there is no checkpoint to resume yet"
        remark(f"stopped: the model file is unchanged; {how}")
        raise
    if as_json:
        show_json(classifier.report_.model_dump())
    else:
        _show(classifier.report_, model, classifier.classes_.tolist())


def _learn_into(
    model: str, given: dict[str, Any], read: Any, observer: Any, checkpoint: Path
) -> IncrementalClassifier:
    """Let the classifier in a file learn with the given parameters, or create the file.

    A stopped call resumes from the checkpoint when it is repeated, and writes an identical file.
    """
    from gradmix.classifier import IncrementalClassifier
    from gradmix.files import locked
    from gradmix.files.atomic_write import remove_leftovers

    with locked(model):
        if os.path.exists(model):
            classifier = IncrementalClassifier.load(model)
        else:
            classifier = IncrementalClassifier(**DEFAULTS)
            if given.get("exemplars_per_class") == 0:  # held-out images are exemplars, too
                classifier.holdout_per_class = 0
        classifier.set_params(**given)
        if classifier._learn(read, observer, str(checkpoint)):
            classifier._write(model)
        else:
            remark("these photos were learned before the last stop; nothing is left to do")
        checkpoint.unlink(missing_ok=True)
        remove_leftovers(checkpoint)
    return classifier


class _Bars:
    """An `Observer` that shows the progress of a call as bars."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self.say = progress, remark
        self.on_photo = photo_counter(progress)
        self._steps = progress.add_task("learning", total=None, status="")

    def on_event(self, training: Training, event: Any) -> None:
        if hasattr(event, "step"):
            stage = training.method.stage
            done = (event.epoch + event.step / event.steps) / stage.epochs
            status = f"{stage.name} epoch {event.epoch + 1}/{stage.epochs}"
            self._progress.update(self._steps, total=1.0, completed=done, status=status)


def _show(report: Report, model: str, known: Sequence[Any]) -> None:
    """Print what was learned, and the accuracy."""
    from gradmix.classifier.report import plural

    new, more = (", ".join(map(printable, names)) for names in (report.new, report.more))
    parts = [f"learned {new}"] if new else []
    parts += [f"more of {more}"] if more else []
    early = ", stopped early" if report.stopped_early else ""
    held = f"; {report.held_out} held out in all" if report.held_out else ""
    show(
        f"{'; '.join(parts)}: {plural(report.samples, 'image')}"
        + (f", {plural(report.epochs, 'epoch')}{early}" if report.epochs else "")
        + held
    )
    if len(known) == 1:
        output.print("accuracy is not measured: there is only one class; learn another one")
    elif report.accuracy:
        output.print(accuracy_table(report))
        measured = {row[0] for row in report.accuracy}
        absent = [printable(label) for label in known if label not in measured]
        if absent:
            output.print(f"not measured, because there are no test images: {', '.join(absent)}")
    else:
        output.print("accuracy is unknown: no images are held out; give --test or --holdout")
    if report.forgotten is not None:
        output.print(f"accuracy lost on earlier classes, on average: {report.forgotten:.3f}")
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


def shard(
    photos: Annotated[
        str,
        typer.Argument(help="Folder that contains a folder of images for each class, or a zip."),
    ],
    to: Annotated[str, typer.Option(help="Folder of the shards; it must not exist.")],
    size: Annotated[int, typer.Option(min=1, help="Size of a shard in MB.")] = 256,
) -> None:
    """Write a folder of photos to tar files, for data that do not fit into memory.

    `gradmix learn SHARDS` and `--data folder:SHARDS` read the shards like the folder: with the same
    classes, photos and order. Photos keep their content. The shards appear when all are complete.
    """
    from gradmix.data.image_folders.write_shards import write_shards

    with showing_progress() as progress:
        bar = photo_bar(progress, "writing shards")
        shards = write_shards(photos, to, size=size * 10**6, progress=bar)
    show(f"{'1 shard' if len(shards) == 1 else f'{len(shards)} shards'} saved in {to}")
