"""The accuracy on photos, from docs/photos.json, which `python -m benchmarks.photos` writes.

`python -m docs.figures.photos` prints the tables of docs/photos.md.
"""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from gradmix.paper.pages import STYLE

Row = dict[str, Any]
LABELS = {
    "joint": "logistic regression, all classes at once",
    "default": "ridge (default)",
    "slda": "slda",
    "ncm": "ncm",
    "er": "er, mix by default",
    "er, no mix": "er, no mix",
}
ARRIVALS = ("pairs", "half and half", "one at a time")


def read_rows(path: Path) -> list[Row]:
    """Return the accuracy of every run."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["table"]
    return rows


def values(rows: list[Row], data: str, each: int, method: str, arrival: str) -> list[float]:
    """Return the accuracy of every seed."""
    return [
        row["accuracy"]
        for row in rows
        if (row["data"], row["each"], row["method"]) == (data, each, method)
        and (method == "joint" or row["arrival"] == arrival)
    ]


def mean_and_spread(found: list[float]) -> str:
    """Return mean and standard deviation."""
    spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
    return f"{mean(found):.3f}{spread}"


def table(rows: list[Row], data: str) -> str:
    """Return one line per number of photos and arrival, in Markdown."""
    sizes = sorted({row["each"] for row in rows if row["data"] == data})
    present = {row["method"] for row in rows if row["data"] == data}
    methods = [method for method in LABELS if method in present]
    lines = [
        f"**{data}**\n",
        "| photos per class | classes arrive | " + " | ".join(LABELS[m] for m in methods) + " |",
        "|---|---|" + "---|" * len(methods),
    ]
    for each in sizes:
        for arrival in ARRIVALS:
            cells = [values(rows, data, each, method, arrival) for method in methods]
            shown = " | ".join(mean_and_spread(found) if found else "–" for found in cells)
            lines.append(f"| {each} | {arrival} | {shown} |")
    return "\n".join(lines)


def draw(source: Path, path: Path) -> None:
    """Draw accuracy over the number of photos, classes arriving in pairs."""
    rows = read_rows(source)
    names = sorted({row["data"] for row in rows})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        axes = figure.subplots(1, len(names), sharey=True)
        for axis, data in zip(axes, names, strict=True):
            _draw_lines(axis, rows, data)
        axes[0].set_ylabel("accuracy on ten classes")
        axes[-1].legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw_lines(axis: Any, rows: list[Row], data: str) -> None:
    sizes = sorted({row["each"] for row in rows if row["data"] == data})
    for method, label in LABELS.items():
        points = [(n, values(rows, data, n, method, "pairs")) for n in sizes]
        points = [(n, found) for n, found in points if found]
        if points:
            style = {"linestyle": "--", "color": "black"} if method == "joint" else {}
            places, means = zip(*[(n, mean(found)) for n, found in points], strict=True)
            axis.plot(places, means, marker="o", label=label, **style)
    axis.set(title=data, xlabel="photos per class", xscale="log")
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.minorticks_off()
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    every = read_rows(Path(__file__).parents[1] / "photos.json")
    for name in sorted({row["data"] for row in every}):
        print(table(every, name))  # noqa: T201
