"""The figures of the explanations: the criterion, forgetting, and the gain of each mix."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import gradmix
from gradmix.paper.pages import STYLE
from gradmix.runs.results import RunResult
from gradmix.settings import changed_settings

SHOWN = {"data", "method", "mix", "seed", "validation", "analyses"}  # all else is the default
CONTROL = "shuffle:linear:remix"  # gradmix+ without gradients, also with τ = 0.75
LINES = {
    "none": "ER: 32 exemplars per class",
    "remix": "ER with Remix",
    "gradmix+": "ER with gradmix+",
}
MIXES = {
    "mixup": "mixup",
    "manifold-mixup": "manifold-mixup",
    "cutmix": "cutmix",
    "balanced-mixup": "balanced-mixup",
    "remix": "remix",
    "gradmix": "gradmix",
    "gradmix+": "gradmix+",
    CONTROL: "control of gradmix+",
}
DATA = {"mnist": ("MNIST", "tab:blue"), "fashion-mnist": ("Fashion-MNIST", "tab:orange")}
PRODUCTS = (
    ("A", "Bᵀ", "normaliser of the softmax"),
    ("A ⊙ S", "Bᵀ", "part of $s_i$"),
    ("A", "(B ⊙ S)ᵀ", "part of $s_j$"),
)


def draw(results: Path, folder: Path) -> None:
    """Draw the figures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        run
        for run in gradmix.ResultStore(results).results()
        if run.config["method"] == "er"
        and run.config["seed"] < 5
        and set(changed_settings(run.config))
        <= (SHOWN | {"tau"} if run.config["mix"] == CONTROL else SHOWN)
    ]
    with mpl.rc_context(STYLE):
        _save(_criterion(), folder / "criterion.svg")
        _save(_forgetting(runs), folder / "forgetting.svg")
        _save(_gains(runs), folder / "when_mixing_helps.svg")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def _by_seed(runs: Sequence[RunResult], data: str, mix: str) -> dict[int, RunResult]:
    return {
        run.config["seed"]: run
        for run in runs
        if (run.config["data"], run.config["mix"]) == (data, mix)
    }


def _forgetting(runs: Sequence[RunResult]) -> Figure:
    """The accuracy on the first task of MNIST while later tasks are learned."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for mix, label in LINES.items():
        found = _by_seed(runs, "mnist", mix)
        matrix = np.mean([run.accuracy for run in found.values()], axis=0)  # (after task, task)
        axes.plot(range(1, 6), matrix[:, 0], marker="o", label=f"{label} ({len(found)} seeds)")
    axes.set(xlabel="after task", ylabel="accuracy on task 1", xticks=range(1, 6), ylim=(0.5, 1.02))
    axes.legend(frameon=False)
    return figure


def _gains(runs: Sequence[RunResult]) -> Figure:
    """The difference of each mix to plain ER with the same seed: mean and range."""
    figure = Figure(figsize=(6.5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for shift, (data, (name, colour)) in zip((-0.15, 0.15), DATA.items(), strict=True):
        plain = _by_seed(runs, data, "none")
        for place, mix in enumerate(MIXES):
            gains = [
                run.metrics["average_accuracy"] - plain[seed].metrics["average_accuracy"]
                for seed, run in _by_seed(runs, data, mix).items()
            ]
            axes.plot([place + shift] * 2, [min(gains), max(gains)], color="grey", lw=1)
            label = name if place == 0 else None
            axes.plot(place + shift, fmean(gains), "o", color=colour, label=label)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(range(len(MIXES)), MIXES.values(), rotation=25, ha="right")
    axes.set_ylabel("gain over ER")
    axes.legend(frameon=False)
    return figure


def _criterion() -> Figure:
    """Left: which direction helps. Right: the shapes of the three products."""
    figure = Figure(figsize=(8, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 2.2))
    for x, y, colour, text in (
        (0.0, 1.0, "black", "$\\bar{g}$, the memory's gradient"),
        (0.8, 0.55, "tab:green", "$\\tilde{g}$ of a helpful pair"),
        (0.75, -0.6, "tab:red", "$\\tilde{g}$ of a harmful pair"),
    ):
        left.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 2})
        left.text(x + 0.08, y, text, color=colour, va="center")
    left.axhline(0, color="grey", lw=0.8, linestyle=":")
    left.set(xlim=(-0.2, 2.2), ylim=(-0.9, 1.2))
    for place, product in enumerate(PRODUCTS):
        _draw_product(right, 4.2 * place, *product)
    right.set(xlim=(-0.6, 12.2), ylim=(-0.8, 3.2))
    for axes in (left, right):
        axes.set_axis_off()
    return figure


def _draw_product(axes: Any, x: float, first: str, second: str, meaning: str) -> None:
    """Draw an (N, C) matrix, a (C, N) matrix above its product, and the (N, N) product."""
    for place, size, colour, text in (
        ((x, 0), (0.9, 2), "tab:blue", first),
        ((x + 1.1, 2.2), (2, 0.9), "tab:orange", second),
        ((x + 1.1, 0), (2, 2), "tab:purple", "one number\nper pair"),
    ):
        axes.add_patch(Rectangle(place, *size, facecolor=colour, alpha=0.25, edgecolor=colour))
        middle = (place[0] + size[0] / 2, place[1] + size[1] / 2)
        axes.text(*middle, text, ha="center", va="center", fontsize=8)
    axes.text(x + 1.5, -0.5, meaning, ha="center")
