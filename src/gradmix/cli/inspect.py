"""gradmix inspect: show the classes, exemplars and history of a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix.cli.terminal import output, printable, show

if TYPE_CHECKING:
    from gradmix.classifier import IncrementalClassifier


def inspect(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Write the stored images to a .png or .html file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the classes, stored images, history, size and accuracy of a model."""
    from gradmix.classifier import IncrementalClassifier
    from gradmix.errors import InputError

    if out is not None and Path(out).suffix.lower() not in (".png", ".html"):
        raise InputError(f"out is {out!r}; its name must end in .png or .html")
    classifier = IncrementalClassifier.load(model, device="cpu")  # nothing is computed
    facts = describe(classifier, Path(model).stat().st_size)
    if as_json:
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _show(facts, model)
    if out is not None:
        _write_sheet(classifier, out)
        if not as_json:
            show(f"exemplars saved in {out}")


def describe(classifier: IncrementalClassifier, size: int) -> dict[str, Any]:
    """Return the facts about a model as plain values."""
    learned = classifier._learned
    memory, holdout, setup = learned.method.memory, learned.holdout, learned.setup
    kept = memory.y.cpu().bincount(minlength=len(learned.counts)).tolist()
    held = [0] * len(kept)
    if holdout is not None and len(holdout):
        held = holdout.y.cpu().bincount(minlength=len(kept)).tolist()
    network = setup.model
    weights = sum(
        value.numel() for net in learned.method.networks().values() for value in net.parameters()
    )
    return {
        "bytes": size,
        "method": setup.method,
        "mix": setup.params["mix"],
        "network": network if isinstance(network, str) else type(network).__name__,
        "weights": weights,
        "backbone": None if setup.backbone is None else setup.backbone.name,
        "input": list(setup.given.shape),
        "classes": [
            {"class": label, "seen": seen, "exemplars": k, "held_out": h}
            for label, seen, k, h in zip(
                learned.labels.known, learned.counts, kept, held, strict=True
            )
        ],
        "history": [report.model_dump() for report in classifier.history_],
    }


def _show(facts: dict[str, Any], model: str) -> None:
    shape = " x ".join(map(str, facts["input"]))
    frozen = f"{facts['backbone']} (frozen), " if facts["backbone"] else ""
    show(
        f"{model}: {facts['bytes']:,} bytes; {facts['method']}, {facts['mix']}, {frozen}"
        f"{facts['network']} with {facts['weights']:,} weights, inputs {shape}"
    )
    columns = [Column(name, justify="right") for name in ("seen", "exemplars", "held out")]
    table = Table("class", *columns)
    for row in facts["classes"]:
        counts = (f"{row[name]:,}" for name in ("seen", "exemplars", "held_out"))
        table.add_row(Text(printable(row["class"])), *counts)
    output.print(table)
    history = Table("call", "new", "more of", "images", "epochs", "accuracy after", "forgotten")
    for row in facts["history"]:
        after, forgotten = (_figure(row[name]) for name in ("after", "forgotten"))
        new, more = (Text(", ".join(map(printable, row[name]))) for name in ("new", "more"))
        forgotten = "" if row["after"] is not None and row["forgotten"] is None else forgotten
        numbers = f"{row['samples']:,}", str(row["epochs"])
        history.add_row(str(row["call"]), new, more, *numbers, after, forgotten)
    output.print(history)


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _write_sheet(classifier: IncrementalClassifier, out: str) -> None:
    from gradmix.classifier.export import contact_page, contact_sheet
    from gradmix.errors import FileError
    from gradmix.files.atomic_write import replacing

    page = Path(out).suffix.lower() == ".html"
    learned = classifier._learned
    if page:  # class names come from folders and may contain bytes that are not text
        content = contact_page(learned).encode(errors="backslashreplace")
    else:
        content = contact_sheet(learned)
    try:
        with replacing(out) as file:
            file.write(content)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        raise FileError(f"{out!r} cannot be written: {error}") from error
