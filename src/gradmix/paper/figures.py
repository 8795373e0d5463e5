"""Sheets as SVG pictures; needs matplotlib, which the extra `figures` installs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from gradmix.errors import MissingPackageError
from gradmix.paper.sheets import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gradmix",  # the same picture is the same file
    "svg.fonttype": "none",  # text stays text
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def draw(sheet: Sheet) -> str:
    """The picture of a sheet: lines, bars, or a heat map."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "figures need matplotlib; install it with: pip install 'gradmix[figures]'"
        ) from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.add_subplot()
        {"lines": _lines, "bars": _bars, "heatmap": _heatmap}[sheet.form](axes, sheet)
        axes.set_title(sheet.title, loc="left")
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _values(sheet: Sheet, row: int) -> tuple[list[float], list[float]]:
    """Means and standard deviations; nothing where nothing was run."""
    cells = sheet.cells[row]
    nothing = float("nan")
    return (
        [nothing if cell is None else cell.mean for cell in cells],
        [0.0 if cell is None else cell.std or 0.0 for cell in cells],
    )


def _lines(axes: Axes, sheet: Sheet) -> None:
    x = [float(name) for name in sheet.columns]
    for number, label in enumerate(sheet.rows):
        mean, std = _values(sheet, number)
        axes.plot(x, mean, marker="o", markersize=3, label=label)
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    if all(value.is_integer() for value in x):
        axes.set_xticks(x)
    axes.set_xlabel(sheet.corner)
    _legend(axes, sheet)


def _bars(axes: Axes, sheet: Sheet) -> None:
    width = 0.8 / len(sheet.rows)
    for number, label in enumerate(sheet.rows):
        mean, std = _values(sheet, number)
        x = [place + (number - (len(sheet.rows) - 1) / 2) * width for place in range(len(mean))]
        axes.bar(x, mean, width, yerr=std, label=label, error_kw={"linewidth": 0.8})
    long = max(map(len, sheet.columns)) > 8 and len(sheet.columns) > 4
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {}
    axes.set_xticks(range(len(sheet.columns)), sheet.columns, **turned)
    axes.set_xlabel(sheet.corner)
    _legend(axes, sheet)


def _legend(axes: Axes, sheet: Sheet) -> None:
    if len(sheet.rows) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _heatmap(axes: Axes, sheet: Sheet) -> None:
    image = axes.imshow([_values(sheet, row)[0] for row in range(len(sheet.rows))], cmap="viridis")
    axes.set_xticks(range(len(sheet.columns)), sheet.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(sheet.rows)), sheet.rows)
    axes.set_xlabel("its partner's class")
    axes.set_ylabel("class")
    axes.figure.colorbar(image, ax=axes)
