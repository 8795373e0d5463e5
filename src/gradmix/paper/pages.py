"""Reproductions as files: a Markdown page each, with SVG pictures of figures.

The last line of a page is a comment that says what it shows, so that a later call can add to it.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradmix.errors import InputError, MissingPackageError
from gradmix.files.atomic_write import write_text
from gradmix.files.schema import Schema
from gradmix.methods import find_method
from gradmix.mixing import parse_recipe
from gradmix.paper.reproductions import SMALL_EPOCHS, Reproduction, configs_of, select_lines
from gradmix.paper.tables import Find, fill_tables, printable
from gradmix.runs.config import RunConfig
from gradmix.runs.measures import Summary
from gradmix.runs.tables import Table, to_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL = (
    f"Small scale: narrow networks and at most {SMALL_EPOCHS} epochs per task. "
    "This is not the paper's setting."
)
PAPER_SEEDS = [0, 1, 2, 3, 4]
MARK = "<!-- gradmix reproduce "


class Selection(Schema):
    """What a page shows."""

    mixes: list[str] | None  # None: all of the paper's table
    methods: list[str]  # besides those of the table
    data: list[str]
    seeds: list[int]

    def configs(self, reproduction: Reproduction) -> list[RunConfig]:
        """Return the runs that the selected lines need."""
        return [
            config
            for line in select_lines(reproduction, self.mixes, self.methods).lines
            for name in self.data
            for config in configs_of(line, name, self.seeds, reproduction.scale)
        ]

    def fill(self, reproduction: Reproduction, find: Find) -> list[Table]:
        """Fill the selected lines with the results that exist; see `fill_tables`."""
        selected = select_lines(reproduction, self.mixes, self.methods)
        return fill_tables(selected, self.data, self.seeds, find)

    def joined(self, other: Selection) -> Selection:
        """Return what either of the two shows."""
        every = None if self.mixes is None or other.mixes is None else [*self.mixes, *other.mixes]
        return Selection(
            mixes=every and list(dict.fromkeys(every)),
            methods=list(dict.fromkeys([*self.methods, *other.methods])),
            data=list(dict.fromkeys([*self.data, *other.data])),
            seeds=sorted({*self.seeds, *other.seeds}),
        )

    def known(self) -> tuple[Selection, list[str]]:
        """Return what can be shown, and for every missing plugin a message that names it."""
        problems: list[str] = []

        def is_known(name: str, find: Callable[[str], object]) -> bool:
            try:
                find(name)
            except InputError as error:
                told = f"rows of {name!r} are omitted: {error}; a plugin needs --import MODULE"
                problems.append(told)
                return False
            return True

        mixes = self.mixes and [
            mix for mix in self.mixes if mix == "randaugment" or is_known(mix, parse_recipe)
        ]
        methods = [method for method in self.methods if is_known(method, find_method)]
        return self.model_copy(update={"mixes": mixes, "methods": methods}), problems


def update_page(
    reproduction: Reproduction, selection: Selection, find: Find, folder: Path
) -> tuple[Path, list[str]]:
    """Write a page in a folder with what is selected now and what it showed before.

    Returns:
        The path of the page, and messages about what it lacks.
    """
    path = _page_of(reproduction, folder)
    every = selection
    if path.exists():
        last = path.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
        try:
            content = json.loads(last.removeprefix(MARK).removesuffix(" -->"))
            earlier = Selection.model_validate(content)
        except ValueError:  # the page does not say what it shows: by default everything
            data = list(reproduction.data)
            earlier = Selection(mixes=None, methods=[], data=data, seeds=PAPER_SEEDS)
        every = earlier.joined(selection)
    shown, problems = every.known()
    page, problem = write_page(reproduction, shown.fill(reproduction, find), folder, every)
    return page, [*problems, problem] if problem else problems


def _page_of(reproduction: Reproduction, folder: Path) -> Path:
    suffix = "" if reproduction.scale == "full" else f"-{reproduction.scale}"
    return folder / f"{reproduction.name}{suffix}.md"


def write_page(
    reproduction: Reproduction,
    tables: Sequence[Table],
    folder: Path,
    selection: Selection | None = None,
) -> tuple[Path, str]:
    """Write a page with these tables and their pictures.

    Returns:
        The path of the page, and a message if there are no pictures because matplotlib is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = _page_of(reproduction, folder)
    blocks = [f"# {reproduction.title}", reproduction.about]
    blocks += [] if reproduction.scale == "full" else [SMALL]
    problem = ""
    for table in tables:
        if table.chart != "table" and not problem:
            try:
                picture = draw(table)
            except MissingPackageError as error:
                problem = str(error)
            else:
                title = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
                name = f"{page.stem}-{title}.svg"
                write_text(folder / name, picture)
                blocks.append(f"![{table.title}]({name})")
        blocks.append(to_markdown(printable(table).text()).rstrip())
    blocks += [] if selection is None else [f"{MARK}{selection.model_dump_json()} -->"]
    write_text(page, "\n\n".join(blocks) + "\n")
    return page, problem


# --- pictures, which need matplotlib --------------------------------------------------------------

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


def _values(table: Table) -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield label, means and standard deviations of every row; NaN where nothing was run."""
    for (label,), cells in table.rows:
        values = [cell.value or Summary(math.nan, None) for cell in cells]
        yield label, np.array([v.mean for v in values]), np.array([v.std or 0.0 for v in values])


def _lines(axes: Axes, table: Table) -> None:
    x = [float(name) for name in table.groups]
    for label, mean, std in _values(table):
        axes.plot(x, mean, marker="o", markersize=3, label=label)
        axes.fill_between(x, mean - std, mean + std, alpha=0.15, linewidth=0)
    if all(value.is_integer() for value in x):
        axes.set_xticks(x)
    _label(axes, table)


def _bars(axes: Axes, table: Table) -> None:
    width, names = 0.8 / len(table.rows), table.groups
    for number, (label, mean, std) in enumerate(_values(table)):
        x = np.arange(len(mean)) + (number - (len(table.rows) - 1) / 2) * width
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
