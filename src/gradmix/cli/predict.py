"""gradmix predict: classify images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradmix.cli.terminal import printable, remark, show

if TYPE_CHECKING:
    from gradmix.classifier import IncrementalClassifier
    from gradmix.classifier.report import Ranking

AT_ONCE = 256  # images per batch


def predict(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
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
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps. Default: as saved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print predictions as JSON.")] = False,
) -> None:
    """Print the most likely class of each image, with its probability."""
    from gradmix.classifier import IncrementalClassifier
    from gradmix.data.image_folders.given import photo_paths

    paths = [path for text in images for path in photo_paths(text)]
    classifier = IncrementalClassifier.load(model, device=device)
    rate = false_alarm_rate if unknown else None
    found = [
        {"file": str(path), **_entry(ranking)}
        for start in range(0, len(paths), AT_ONCE)
        for path, ranking in _rankings(
            classifier, paths[start : start + AT_ONCE], top, rate, skip_unreadable
        )
    ]
    if as_json:
        print(json.dumps(found, indent=2))  # noqa: T201
        return
    for entry in found:
        named = ", ".join(f"{row['class']} {row['probability']:.3f}" for row in entry["classes"])
        named = f"unknown (nearest: {named})" if entry.get("unknown") else named
        show(printable(f"{entry['file']}: {named}"))


def _entry(ranking: Ranking) -> dict[str, Any]:
    rows = [{"class": label, "probability": share} for label, share in ranking.classes]
    if ranking.unknown is None:
        return {"classes": rows}
    return {"classes": rows, "unknown": ranking.unknown, "novelty": ranking.novelty}


def _rankings(
    classifier: IncrementalClassifier,
    paths: Sequence[Path],
    top: int,
    rate: float | None,
    skip_unreadable: bool,
) -> Iterator[tuple[Path, Ranking]]:
    """Return the most likely classes of each readable image."""
    from gradmix.classifier.report import rank
    from gradmix.errors import CorruptFileError, DataNotFoundError

    try:
        yield from zip(paths, rank(classifier, paths, top, rate, "images"), strict=True)
    except (CorruptFileError, DataNotFoundError) as error:  # DataNotFoundError: a broken link
        if not skip_unreadable:
            raise type(error)(f"{error}; --skip-unreadable skips such images") from error
        if len(paths) == 1:
            remark(printable(f"skipped: {error}"))
            return
        for path in paths:
            yield from _rankings(classifier, [path], top, rate, skip_unreadable)
