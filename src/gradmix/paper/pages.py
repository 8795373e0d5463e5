"""Reproductions as files: a Markdown page each, with SVG pictures of figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradmix.errors import MissingPackageError
from gradmix.files.atomic_write import write_text
from gradmix.paper.figures import draw
from gradmix.paper.reproductions import SMALL_EPOCHS, Reproduction
from gradmix.paper.tables import FilledTable, printable
from gradmix.runs.tables import to_markdown

SMALL = (
    f"Small scale: narrow networks and at most {SMALL_EPOCHS} epochs per task. "
    "This is not the paper's setting."
)


def title_of(reproduction: Reproduction, scale: str) -> str:
    """Return the title of a page; it names every scale other than the paper's."""
    return reproduction.name if scale == "full" else f"{reproduction.name} ({scale} scale)"


def write_page(
    reproduction: Reproduction, tables: Sequence[FilledTable], folder: Path, scale: str = "full"
) -> tuple[Path, str]:
    """Write a page and its pictures.

    Returns:
        The path of the page, and a message if there are no pictures because matplotlib is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = reproduction.name if scale == "full" else f"{reproduction.name}-{scale}"
    blocks = [f"# {title_of(reproduction, scale)}", reproduction.about]
    blocks += [] if scale == "full" else [SMALL]
    problem = ""
    for filled in tables:
        if filled.chart != "table" and not problem:
            try:
                picture = draw(filled)
            except MissingPackageError as error:
                problem = str(error)
            else:
                name = f"{stem}-{_file_name(filled.table.title)}.svg"
                write_text(folder / name, picture)
                blocks.append(f"![{filled.table.title}]({name})")
        blocks.append(to_markdown(printable(filled).text()).rstrip())
    page = folder / f"{stem}.md"
    write_text(page, "\n\n".join(blocks) + "\n")
    return page, problem


def _file_name(title: str) -> str:
    """Turn a title into a part of a file name.

    >>> _file_name("mnist: RMSE against λ")
    'mnist-rmse-against'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
