"""gradmix export: write a model file as ONNX."""

from __future__ import annotations

from typing import Annotated

import typer

from gradmix.cli.terminal import show


def export(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
    out: Annotated[str, typer.Option("--out", "-o", help="ONNX file to write.")] = "model.onnx",
) -> None:
    """Write a model as an ONNX file with a dynamic batch size; needs the extra `export`.

    Normalisation is included. The metadata of the file contain the class names.
    """
    from gradmix.classifier import IncrementalClassifier

    classifier = IncrementalClassifier.load(model, device="cpu")
    classifier.export(out)
    show(f"model exported to {out}")
