"""gradmix predict: classify images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gradmix.cli.terminal import messages, output, printable

AT_ONCE = 256  # images per batch


def predict(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
    images: Annotated[list[str], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 1,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip images that cannot be read.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps. Default: as saved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print predictions as JSON.")] = False,
) -> None:
    """Print the most likely class of each image, with its probability."""
    from gradmix.classifier import IncrementalClassifier

    paths = find_images(images)
    classifier = IncrementalClassifier.load(model, device=device)
    found = list(_predictions(classifier, paths, top, skip_unreadable))
    if as_json:
        print(json.dumps(found, indent=2))  # noqa: T201
        return
    for entry in found:
        named = ", ".join(f"{row['class']} {row['probability']:.3f}" for row in entry["classes"])
        output.print(printable(f"{entry['file']}: {named}"), soft_wrap=True, markup=False)


def find_images(given: Sequence[str]) -> list[Path]:
    """Return the given files, and the images in the given folders that `learn` would read."""
    from gradmix.data.image_folders.classes import image_names
    from gradmix.data.image_folders.source import FileSource
    from gradmix.errors import DataNotFoundError, InputError

    paths: list[Path] = []
    for text in given:
        path = Path(text)
        if path.is_dir():
            found = [path / name for name in image_names(FileSource(path))]
            if not found:
                raise InputError(f"{text} has no image files, such as .jpg, .png or .tif")
            paths += found
        elif path.is_file():
            paths.append(path)
        else:
            raise DataNotFoundError(f"{text}: no such file or folder")
    return paths


def _predictions(
    classifier: Any, paths: Sequence[Path], top: int, skip_unreadable: bool
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(paths), AT_ONCE):
        part = list(paths[start : start + AT_ONCE])
        for path, shares in _shares(classifier, part, skip_unreadable):
            best = (-shares).argsort(kind="stable")[:top]
            rows = [
                {"class": classifier.classes_[k].item(), "probability": float(shares[k])}
                for k in best
            ]
            yield {"file": str(path), "classes": rows}


def _shares(
    classifier: Any, paths: list[Path], skip_unreadable: bool
) -> Iterator[tuple[Path, Any]]:
    """Return the class probabilities of each readable image."""
    from gradmix.errors import CorruptFileError, DataNotFoundError

    try:
        yield from zip(paths, classifier.predict_proba(paths), strict=True)
    except (CorruptFileError, DataNotFoundError) as error:  # DataNotFoundError: a broken link
        if not skip_unreadable:
            raise type(error)(f"{error}; --skip-unreadable skips such images") from error
        if len(paths) == 1:
            skipped = printable(f"{paths[0]} cannot be read and is skipped")
            messages.print(skipped, soft_wrap=True, markup=False)
        else:
            for path in paths:
                yield from _shares(classifier, [path], skip_unreadable)
