"""Figures as SVG pictures. They need matplotlib, which the extra `figures` installs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from gradmix.errors import MissingPackageError
from gradmix.runs.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gradmix",  # the same picture gives the same file
    "svg.fonttype": "none",  # text stays text
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def draw(table: Table) -> str:
    """Return a chart as SVG.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
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
        {"lines": _lines, "bars": _bars, "heatmap": _heatmap}[table.chart](axes, table)
        axes.set_title(table.title, loc="left")
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _values(table: Table) -> list[tuple[str, list[float], list[float]]]:
    """Return label, means and standard deviations of every row; NaN where nothing was run."""
    nothing = float("nan")
    return [
        (
            label,
            [nothing if cell.value is None else cell.value.mean for cell in cells],
            [0.0 if cell.value is None else cell.value.std or 0.0 for cell in cells],
        )
        for (label,), cells in table.rows
    ]


def _lines(axes: Axes, table: Table) -> None:
    x = [float(name) for name in table.groups]
    for label, mean, std in _values(table):
        axes.plot(x, mean, marker="o", markersize=3, label=label)
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    if all(value.is_integer() for value in x):
        axes.set_xticks(x)
    _label(axes, table)


def _bars(axes: Axes, table: Table) -> None:
    width, names = 0.8 / len(table.rows), table.groups
    for number, (label, mean, std) in enumerate(_values(table)):
        x = [place + (number - (len(table.rows) - 1) / 2) * width for place in range(len(mean))]
        axes.bar(x, mean, width, yerr=std, label=label, error_kw={"linewidth": 0.8})
    long = max(map(len, names)) > 8 and len(names) > 4
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {}
    axes.set_xticks(range(len(names)), names, **turned)
    _label(axes, table)


def _label(axes: Axes, table: Table) -> None:
    axes.set_xlabel(table.heads[0])
    if len(table.rows) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _heatmap(axes: Axes, table: Table) -> None:
    image = axes.imshow([means for _, means, _ in _values(table)], cmap="viridis")
    axes.set_xticks(range(len(table.groups)), table.groups, rotation=45, ha="right")
    axes.set_yticks(range(len(table.rows)), [label for (label,), _ in table.rows])
    axes.set_xlabel("partner's class")
    axes.set_ylabel("class")
    axes.figure.colorbar(image, ax=axes)
