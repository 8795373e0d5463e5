"""Reproductions as files: a Markdown page each, and pictures of what are figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradmix.errors import MissingPackageError
from gradmix.files.atomic_write import write_text
from gradmix.paper.figures import draw
from gradmix.paper.reproductions import SMALL_EPOCHS, Reproduction
from gradmix.paper.sheets import Sheet, printed
from gradmix.runs.formats import to_markdown

SMALL = (
    "At a small scale, with narrow networks and at most "
    f"{SMALL_EPOCHS} epochs per task: not the paper's setting."
)


def title_of(reproduction: Reproduction, scale: str) -> str:
    """Its name; anything but the paper's scale is said there."""
    return reproduction.name if scale == "full" else f"{reproduction.name} ({scale} scale)"


def write_page(
    reproduction: Reproduction, sheets: Sequence[Sheet], folder: Path, scale: str = "full"
) -> tuple[Path, str]:
    """Write a page, and its pictures first; its path, and why there are no pictures if so."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = reproduction.name if scale == "full" else f"{reproduction.name}-{scale}"
    parts = [f"# {title_of(reproduction, scale)}", reproduction.about]
    parts += [] if scale == "full" else [SMALL]
    problem = ""
    for sheet in sheets:
        if sheet.form != "table" and not problem:
            try:
                picture = draw(sheet)
            except MissingPackageError as error:
                problem = str(error)
            else:
                name = f"{stem}-{_file_name(sheet.title)}.svg"
                write_text(folder / name, picture)
                parts.append(f"![{sheet.title}]({name})")
        parts.append(to_markdown(printed(sheet)).rstrip())
    page = folder / f"{stem}.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return page, problem


def _file_name(title: str) -> str:
    """A part of a file name.

    >>> _file_name("mnist: RMSE against λ")
    'mnist-rmse-against'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
