"""Accuracy over the number of epochs, with and without gradients, for docs/science.md.

`python -m docs.figures.science` prints the tables of the page.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gradmix
from gradmix.paper.pages import STYLE
from gradmix.runs.results import RunResult

RESULTS = Path(__file__).parents[2] / "results"
PHOTOS = "folder:cifar10-jpeg.zip@16"
CONTROL, VETO = "balanced-remix", "gradient-class-balanced:linear:remix"
LINES = {  # mix: label, colour, dashes
    "none": ("no mix", "tab:grey", "-"),
    "mixup": ("mixup", "tab:brown", "-"),
    "remix": ("remix", "tab:green", "-"),
    CONTROL: ("balanced control", "tab:blue", "-"),
    VETO: ("balanced draw with veto", "tab:orange", "--"),
    "gradmix": ("gradmix (Algorithm 1)", "tab:red", "--"),
    "gradmix+": ("gradmix+", "tab:purple", "--"),
}


def runs_in(folder: str, data: str) -> list[RunResult]:
    """Return the runs of a data set that use the memory's gradient, with τ = 0.5 or the mix's."""
    return [
        run
        for run in gradmix.ResultStore(RESULTS / folder).results()
        if run.config["data"] == data
        and run.config["gradient"] == "memory"
        and run.config["tau"] in ((0.5,) if run.config["mix"] == CONTROL else (0.5, None))
        and run.config["schedule"] == ("cosine" if data == PHOTOS else "steps")
        and not (data != PHOTOS and run.config["transforms"])
    ]


def values(runs: Sequence[RunResult], mix: str, epochs: int) -> list[float]:
    """Return the average accuracy of every seed."""
    return [
        run.metrics["average_accuracy"]
        for run in sorted(runs, key=lambda run: int(run.config["seed"]))
        if (run.config["mix"], run.config["epochs"]) == (mix, epochs)
    ]


def draw(path: Path) -> None:
    """Draw the accuracy of every mix over the number of epochs."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        axes = figure.subplots(1, 3)
        for axis, (folder, data, title) in zip(
            axes,
            [
                ("validation", "mnist", "MNIST, validation images"),
                ("validation", "fashion-mnist", "Fashion-MNIST, validation images"),
                ("photo-steps", PHOTOS, "photos from scratch, test photos"),
            ],
            strict=True,
        ):
            _draw_lines(axis, runs_in(folder, data))
            axis.set_title(title, loc="left", fontsize=9)
            axis.set_xlabel("epochs per task")
        axes[0].set_ylabel("average accuracy")
        handles = dict(pair for axis in axes for pair in zip(*_by_label(axis), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _by_label(axis: Axes) -> tuple[list[str], list[object]]:
    handles, labels = axis.get_legend_handles_labels()
    return labels, handles


def _draw_lines(axis: Axes, runs: Sequence[RunResult]) -> None:
    epochs = sorted({run.config["epochs"] for run in runs if run.config["mix"] == VETO})
    for mix, (label, colour, dashes) in LINES.items():
        points = [(number, values(runs, mix, number)) for number in epochs]
        points = [(number, found) for number, found in points if found]
        if points:
            means = [fmean(found) for _, found in points]
            numbers = [number for number, _ in points]
            axis.plot(numbers, means, dashes, color=colour, label=label, marker="o", markersize=3)
    axis.set_xscale("log", base=2)
    axis.set_xticks(epochs, [str(number) for number in epochs])
    axis.minorticks_off()


def _print(folder: str, data: str) -> None:
    runs = runs_in(folder, data)
    epochs = sorted({run.config["epochs"] for run in runs})
    for mix in LINES:
        cells = [values(runs, mix, number) for number in epochs]
        shown = [
            f"{fmean(found):.3f} ± {stdev(found):.3f}" if len(found) > 1 else f"{found[0]:.3f}"
            for found in cells
            if found
        ]
        print(data, mix, epochs, " | ".join(shown))  # noqa: T201


if __name__ == "__main__":
    _print("validation", "mnist")
    _print("validation", "fashion-mnist")
    _print("photo-steps", PHOTOS)
