"""gradmix forget: remove classes from a model file."""

from __future__ import annotations

from typing import Annotated

import typer

from gradmix.cli.terminal import printable, show


def forget(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
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

    The file contains nothing of the classes themselves afterwards. What the rest of a trained
    network learned from them cannot be removed.
    """
    from gradmix.classifier.file import forget_in

    left = forget_in(model, classes, photos).classes_.tolist()
    removed, remaining = (printable(", ".join(map(str, names))) for names in (classes, left))
    show(f"removed {removed} from {model}; remaining: {remaining}")
