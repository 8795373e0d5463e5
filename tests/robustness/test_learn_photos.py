"""`gradmix learn` and `gradmix predict` work on photos of several formats and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from gradmix.cli.commands import app

COLOURS = {"blue": (30, 60, 200), "red": (200, 60, 30)}


def photo(colour: tuple[int, int, int], size: tuple[int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-30, 31, (size[1] // 4, size[0] // 4, 3))
    pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize(size)


def gradmix(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param((64, 64), ["--epochs", "1"], id="64x64, 1 epoch"),
        pytest.param((64, 64), [], id="64x64", marks=pytest.mark.slow),
        pytest.param((3000, 4000), [], id="3000x4000", marks=pytest.mark.slow),
    ],
)
def test_learn_and_predict(tmp_path: Path, size: tuple[int, int], options: list[str]) -> None:
    folder = tmp_path / "photos"
    endings = (*(".jpg",) * 8, ".gif", ".tif")
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number, ending in enumerate(endings):
            photo(colour, size, number).save(folder / name / f"{number}{ending}")
        (folder / name / "notes.txt").write_text("not a photo")
    said = gradmix("learn", folder, "--model", tmp_path / "model.gradmix", *options)
    assert "learned blue, red" in said
    assert "photos: skipped 2 files without an image extension: 2 .txt" in said
    said = gradmix("predict", tmp_path / "model.gradmix", folder / "red" / "8.gif")
    assert ("8.gif: " if options else "8.gif: red") in said
