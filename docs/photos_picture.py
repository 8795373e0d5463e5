"""Draw docs/photos.svg and print the table of docs/photos.md, from docs/photos.json.

`python -m benchmarks.photos` writes docs/photos.json. This needs the extra `gradmix[figures]`.
"""

import json
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "gradmix"  # the same picture every time
from matplotlib import pyplot  # noqa: E402

HERE = Path(__file__).parent
LABELS = {
    "joint": "logistic regression, all classes at once",
    "default": "ridge (default)",
    "slda": "slda",
    "ncm": "ncm",
    "er": "er, mix by default",
    "er, no mix": "er, no mix",
}
ARRIVALS = ("pairs", "half and half", "one at a time")
rows = json.loads((HERE / "photos.json").read_text())["table"]


def values(data: str, each: int, method: str, arrival: str) -> list[float]:
    """Return the accuracy of every seed."""
    return [
        row["accuracy"]
        for row in rows
        if (row["data"], row["each"], row["method"]) == (data, each, method)
        and (method == "joint" or row["arrival"] == arrival)
    ]


def figure(found: list[float]) -> str:
    """Return mean and standard deviation."""
    spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
    return f"{mean(found):.3f}{spread}"


def table(data: str, sizes: list[int], methods: list[str]) -> str:
    """Return one line per number of photos and arrival, in Markdown."""
    lines = [
        f"**{data}**\n",
        "| photos per class | classes arrive | " + " | ".join(LABELS[m] for m in methods) + " |",
        "|---|---|" + "---|" * len(methods),
    ]
    for each in sizes:
        for arrival in ARRIVALS:
            cells = [values(data, each, method, arrival) for method in methods]
            shown = " | ".join(figure(found) if found else "–" for found in cells)
            lines.append(f"| {each} | {arrival} | {shown} |")
    return "\n".join(lines)


def draw() -> None:
    """Draw accuracy over the number of photos, classes arriving in pairs."""
    names = sorted({row["data"] for row in rows})
    figures, axes = pyplot.subplots(1, len(names), figsize=(9, 3.4), sharey=True)
    for axis, data in zip(axes, names, strict=True):
        sizes = sorted({row["each"] for row in rows if row["data"] == data})
        for method, label in LABELS.items():
            points = [(n, values(data, n, method, "pairs")) for n in sizes]
            points = [(n, found) for n, found in points if found]
            if points:
                style = {"linestyle": "--", "color": "black"} if method == "joint" else {}
                places, means = zip(*[(n, mean(found)) for n, found in points], strict=True)
                axis.plot(places, means, marker="o", label=label, **style)
        axis.set(title=data, xlabel="photos per class", xscale="log", xticks=sizes)
        axis.set_xticklabels([str(n) for n in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on ten classes")
    handles = axes[0].get_legend_handles_labels()
    axes[-1].legend(*handles, fontsize=8, loc="lower right")
    figures.tight_layout()
    figures.savefig(HERE / "photos.svg", metadata={"Date": None})


if __name__ == "__main__":
    for name in sorted({row["data"] for row in rows}):
        counts = sorted({row["each"] for row in rows if row["data"] == name})
        present = {row["method"] for row in rows if row["data"] == name}
        print(table(name, counts, [method for method in LABELS if method in present]))  # noqa: T201
    draw()
