"""A few pieces of HTML; text that is passed in is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gradmix.report.rows import Spread


def cell(text: str, kind: str = "", about: str = "") -> str:
    """One cell of a table.

    >>> cell("a<b", kind="main")
    '<td class="main">a&lt;b</td>'
    """
    return f"<td{_attributes(kind, about)}>{escape(text)}</td>"


def line(label: str, cells: Iterable[str], kind: str = "", swatch: str = "") -> str:
    """One row of a table; `cells` are from `cell`, `swatch` is a colour to show."""
    mark = f'<i class="swatch" style="background: {escape(swatch)}"></i>' if swatch else ""
    head = f'<th scope="row">{mark}{escape(label)}</th>'
    return f"<tr{_attributes(kind)}>{head}{''.join(cells)}</tr>"


def block(lines: Iterable[str], title: str = "", columns: int = 1) -> str:
    """Rows that belong together, under a title of their own."""
    head = f'<th colspan="{columns}" scope="rowgroup">{escape(title)}</th>'
    first = f'<tr class="block">{head}</tr>' if title else ""
    return f"<tbody>{first}{''.join(lines)}</tbody>"


def table(caption: str, columns: Sequence[str], blocks: Iterable[str]) -> str:
    """A table in a box that scrolls by itself, by keyboard too."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"{''.join(blocks)}</table></div>"
    )


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """Names and values as a description list."""
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries
    )


def format_spread(value: Spread, digits: int = 3) -> str:
    """Mean ± standard deviation.

    >>> format_spread(Spread(0.5, 0.01)), format_spread(Spread(0.5, None))
    ('0.500 ± 0.010', '0.500')
    """
    mean = f"{value.mean:.{digits}f}"
    return mean if value.std is None else f"{mean} ± {value.std:.{digits}f}"


def signed(value: float) -> str:
    """A difference with its sign.

    >>> signed(0.0124), signed(-0.5), signed(-0.0001)
    ('+0.012', '−0.500', '+0.000')
    """
    return f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "seed"), count(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _attributes(kind: str, about: str = "") -> str:
    return "".join(
        f' {name}="{escape(value)}"' for name, value in (("class", kind), ("title", about)) if value
    )
