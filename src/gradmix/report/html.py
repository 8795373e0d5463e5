"""Pieces of HTML. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from gradmix.runs.tables import TextCell, TextTable


def to_html(
    table: TextTable,
    *,
    colours: Sequence[str] = (),
    kinds: Sequence[str] = (),
    blocks: Mapping[int, str] | None = None,
) -> str:
    """Write a table in a box that scrolls by mouse and keyboard.

    Args:
        table: The table. Its caption names the box.
        colours: A colour to show before the label of each row.
        kinds: A CSS class for each row.
        blocks: Titles of blocks of rows, by the number of their first row.
    """
    columns = [*table.heads, *table.titles]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = ""
    for place, (labels, cells) in enumerate(table.rows):
        if blocks and place in blocks:
            title = f'<th colspan="{len(columns)}" scope="rowgroup">{escape(blocks[place])}</th>'
            body += f'</tbody><tbody><tr class="block">{title}</tr>'
        kind = f' class="{escape(kinds[place])}"' if kinds and kinds[place] else ""
        colour = colours[place] if colours else ""
        body += f"<tr{kind}>{_labels(labels, colour)}{''.join(map(_cell, cells))}</tr>"
    caption = escape(table.caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    ).replace("<tbody></tbody>", "")


def _labels(labels: Sequence[str], colour: str) -> str:
    mark = f'<i class="swatch" style="background: {escape(colour)}"></i>' if colour else ""
    first, *others = map(escape, labels)
    rest = "".join(f"<td>{label}</td>" for label in others)
    return f'<th scope="row">{mark}{first}</th>{rest}'


def _cell(cell: TextCell) -> str:
    kind = cell.kind or ("main" if cell.bold else "")
    kind = f' class="{escape(kind)}"' if kind else ""
    return f"<td{kind}>{escape(cell.text or '–')}</td>"


def to_description_list(entries: Iterable[tuple[str, str]]) -> str:
    """Write names and values as the content of a description list."""
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries
    )


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "seed"), count(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
