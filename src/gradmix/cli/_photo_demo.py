"""The photos of gradmix demo: pieces of photos that come with scikit-learn and scikit-image.

No package contains many labelled photos, so the demo cuts a few photos into pieces. A class is the
photo that a piece comes from. This is easier than real classes, and the demo says so.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradmix.cli.learn import accuracy_table
from gradmix.cli.terminal import output, remark, show

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gradmix.classifier import IncrementalClassifier

    Pixels = npt.NDArray[np.uint8]

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


class Pieces(NamedTuple):
    """The pieces of a photo, (N, 64, 64, 3)."""

    train: Pixels
    test: Pixels


def demo_photos() -> None:
    """Learn pieces of photos in two calls, and predict an unknown photo and a whole one."""
    from gradmix.classifier import IncrementalClassifier
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
    _show_other_view(classifier)
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


def _show_other_view(classifier: IncrementalClassifier) -> None:
    """Print the classes of a whole photo that shows a learned object from another side."""
    from gradmix.classifier.report import rank

    path = _path(*OTHER_VIEW)
    [found] = rank(classifier, path, 3)
    classes = ", ".join(f"{label} {share:.3f}" for label, share in found.classes)
    show(f"{path.name}, a whole photo of the motorcycle from another side: {classes}")
