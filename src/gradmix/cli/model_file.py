"""Commands on a model file: gradmix predict, inspect, forget, export and serve."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix.cli.terminal import output, printable, remark, show, show_json
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError, MissingPackageError

if TYPE_CHECKING:
    from gradmix.classifier import IncrementalClassifier

Model = Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps. Default: as saved.")
]
AT_ONCE = 256  # images per batch


def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 1,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Say which images resemble no learned class.")
    ] = False,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of images of learned classes that may be called unknown.")
    ] = 0.05,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip images that cannot be read.")
    ] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print predictions as JSON.")] = False,
) -> None:
    """Print the most likely class of each image, with its probability."""
    from gradmix.classifier import IncrementalClassifier
    from gradmix.data.image_folders.given import photo_paths

    paths = [path for text in images for path in photo_paths(text, lambda t: remark(printable(t)))]
    classifier = IncrementalClassifier.load(model, device=device)
    rate = false_alarm_rate if unknown else None
    found: list[dict[str, Any]] = []
    for start in range(0, len(paths), AT_ONCE):
        part = paths[start : start + AT_ONCE]
        found += _predictions(classifier, part, top, rate, skip_unreadable)
    if as_json:
        show_json(found)
        return
    for entry in found:
        named = ", ".join(f"{row['class']} {row['probability']:.3f}" for row in entry["classes"])
        named = f"unknown (nearest: {named})" if entry.get("unknown") else named
        show(printable(f"{entry['file']}: {named}"))
    if unknown:
        remark(f"unknown images: {sum(entry['unknown'] for entry in found)} of {len(found)}")


def _predictions(
    classifier: IncrementalClassifier,
    paths: Sequence[Path],
    top: int,
    rate: float | None,
    skip_unreadable: bool,
) -> Iterator[dict[str, Any]]:
    """Return the most likely classes of each readable image."""
    from gradmix.classifier.report import rank

    try:
        rankings = rank(classifier, paths, top, rate, "images")
    except (CorruptFileError, DataNotFoundError) as error:  # DataNotFoundError: a broken link
        if not skip_unreadable:
            raise type(error)(f"{error}; --skip-unreadable skips such images") from error
        if len(paths) == 1:
            remark(printable(f"skipped: {error}"))
            return
        for path in paths:
            yield from _predictions(classifier, [path], top, rate, skip_unreadable)
        return
    for path, ranking in zip(paths, rankings, strict=True):
        rows = [{"class": label, "probability": share} for label, share in ranking.classes]
        entry: dict[str, Any] = {"file": str(path), "classes": rows}
        if ranking.unknown is not None:
            entry |= {"unknown": ranking.unknown, "novelty": ranking.novelty}
        yield entry


def inspect(
    model: Model,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Write the stored images to a .png or .html file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the classes, stored images, history, size and accuracy of a model."""
    from gradmix.classifier import IncrementalClassifier

    if out is not None and Path(out).suffix.lower() not in (".png", ".html"):
        raise InputError(f"out is {out!r}; its name must end in .png or .html")
    classifier = IncrementalClassifier.load(model, device="cpu")  # nothing is computed
    facts = _facts(classifier, Path(model).stat().st_size)
    if as_json:
        show_json(facts)
    else:
        _show(facts, model)
    if out is not None:
        from gradmix.classifier.export import contact_page, contact_sheet, write_file

        page = Path(out).suffix.lower() == ".html"
        write_file(out, (contact_page if page else contact_sheet)(classifier._learned))
        if not as_json:
            show(f"exemplars saved in {out}")


def _facts(classifier: IncrementalClassifier, size: int) -> dict[str, Any]:
    """Return the facts about a model as plain values."""
    learned = classifier._learned
    setup, names, number = learned.setup, learned.labels.known, len(learned.counts)
    kept, held = (
        samples.y.cpu().bincount(minlength=number).tolist()
        for samples in (learned.method.memory, learned.holdout)
    )
    networks = learned.method.networks().values()
    return {
        "bytes": size,
        "method": setup.method,
        "mix": setup.params["mix"],
        "network": setup.model if isinstance(setup.model, str) else type(setup.model).__name__,
        "weights": sum(value.numel() for net in networks for value in net.parameters()),
        "backbone": None if setup.backbone is None else setup.backbone.name,
        "input": list(setup.given.shape),
        "classes": [
            {"class": label, "seen": seen, "exemplars": k, "held_out": h}
            for label, seen, k, h in zip(names, learned.counts, kept, held, strict=True)
        ],
        "history": [report.model_dump() for report in classifier.history_],
    }


def _show(facts: dict[str, Any], model: str) -> None:
    shape = " x ".join(map(str, facts["input"]))
    frozen = f"{facts['backbone']} (frozen), " if facts["backbone"] else ""
    show(
        f"{model}: {facts['bytes']:,} bytes; method {facts['method']}, mix {facts['mix']}, {frozen}"
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
        measured = row["after"] is not None
        after = f"{row['after']:.3f}" if measured else "unknown"
        forgotten = "" if measured else "unknown"
        if row["forgotten"] is not None:
            forgotten = f"{row['forgotten']:.3f}"
        new, more = (Text(", ".join(map(printable, row[name]))) for name in ("new", "more"))
        if not new and not more:
            new = Text("(forgotten)")
        numbers = f"{row['samples']:,}", str(row["epochs"])
        history.add_row(str(row["call"]), new, more, *numbers, after, forgotten)
    output.print(history)


def forget(
    model: Model,
    classes: Annotated[list[str], typer.Argument(help="Classes to remove.")],
    photos: Annotated[
        str | None,
        typer.Option(
            help="Folder with all photos that the class was learned from; with it, ridge and slda "
            "forget exactly."
        ),
    ] = None,
) -> None:
    """Remove classes: their exemplars, their outputs and their names.

    What the rest of a trained network learned from the classes cannot be removed. Ridge and slda
    keep a part of what the classes had in common with others, unless --photos is given.
    """
    from gradmix.classifier import IncrementalClassifier
    from gradmix.files import locked

    if photos is not None and len(classes) != 1:
        raise InputError(f"photos is given for {len(classes)} classes; forget one class at a time")
    with locked(model):
        classifier = IncrementalClassifier.load(model)
        known = {str(label): label for label in classifier._learned.labels.known}
        for name in classes:
            if name not in known:
                known_names = ", ".join(known)
                raise InputError(f"{name!r} is not a class of {model}; known are {known_names}")
            try:
                classifier.forget(known[name], photos)
            except CorruptFileError as error:
                raise CorruptFileError(f"{error}; move such files out of the folder") from error
        classifier._write(model)
    left = map(str, classifier.classes_.tolist())
    removed, remaining = (printable(", ".join(names)) for names in (classes, left))
    show(f"removed {removed} from {model}; remaining: {remaining}")


def export(
    model: Model,
    onnx: Annotated[
        str | None, typer.Argument(metavar="FILE.onnx", help="File to write; the same as --out.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="ONNX file to write. Default: MODEL.onnx.")
    ] = None,
) -> None:
    """Write a model as an ONNX file with a dynamic batch size; needs the extra `export`.

    Normalisation is included. The metadata of the file contain the class names.
    """
    if onnx is not None and out is not None:
        raise InputError(f"{onnx!r} and --out {out!r} are given; give one file to write")
    from gradmix.classifier import IncrementalClassifier

    target = onnx or out or str(Path(model).with_suffix(".onnx"))
    if Path(target).resolve() == Path(model).resolve():
        raise InputError(f"out is {target!r}, which is the model itself; give another file")
    classifier = IncrementalClassifier.load(model, device="cpu")
    remark(f"exporting {model}; this may take a minute")
    classifier.export(target)
    show(f"model exported to {target}")


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    max_megabytes: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Largest upload in megabytes.")
    ] = 10.0,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, max=80, help="Largest photo in megapixels.")
    ] = 50.0,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of photos of known classes that may be called unknown.")
    ] = 0.05,
    device: Device = None,
) -> None:
    """Serve a model as a web page with a JSON API; needs the extra `serve`.

    The model is loaded again when its file is replaced. There is no password: listen on other
    addresses than 127.0.0.1 only in a network that you trust.
    """
    try:
        import python_multipart  # noqa: F401  # FastAPI reads uploads with it
        import uvicorn

        from gradmix.serving.app import ServedModel, create_app
    except ImportError as error:
        raise MissingPackageError(
            "serve needs fastapi, uvicorn and python-multipart; install them with: "
            "pip install 'gradmix[serve]'"
        ) from error

    pixels = round(max_megapixels * 1e6)
    served = ServedModel(model, false_alarm_rate=false_alarm_rate, max_pixels=pixels, device=device)
    app = create_app(served, max_bytes=round(max_megabytes * 1e6))
    shown, family = (f"[{host}]", socket.AF_INET6) if ":" in host else (host, socket.AF_INET)
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --host or --port"
        ) from error
    address = f"http://{shown}:{listening.getsockname()[1]}"
    remark(f"serving {model} on {address} (Ctrl-C stops)")
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listening])
