"""The classifier's defaults on photos: accuracy and CPU time, as docs/photos.md reports them.

    python -m benchmarks.photos FOLDER --cache CACHE -o docs/photos.json

FOLDER contains cifar10-jpeg.zip and tiny-imagenet-part.zip, with folders train/<class>/ and
test/<class>/. Every photo passes through the backbone once; its embedding is stored in the cache.
`IncrementalClassifier(model="linear")` then learns the embeddings, and holds out as many as it does
of photos. This is what the classifier does after it has embedded photos. `--whole` learns files, to
check this and to measure the time.

A seed draws the classes, their order and the training photos. Test photos are never learned. The
penalty of the logistic regression, which learns all classes at once, is chosen on training photos.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from gradmix import IncrementalClassifier
from gradmix.classifier.call_data import embed_photos
from gradmix.classifier.setup import DEFAULT, HELD_OUT, published_backbone
from gradmix.data.image_folders.read import read_folder

CPU = torch.device("cpu")
ARRIVALS = {"pairs": (2, 2, 2, 2, 2), "half and half": (5, 5), "one at a time": (1,) * 10}
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "slda": {"method": "slda"},
    "ncm": {"method": "ncm"},
    "er": {"method": "er"},
    "er, no mix": {"method": "er", "mix": "none"},
}


class DataSet(NamedTuple):
    """Which photos of a zip file are used."""

    file: str
    train: int  # photos per class from which seeds draw
    test: int
    sizes: tuple[int, ...]  # training photos per class
    groups: int  # disjoint choices of ten classes, one for each seed


DATA = {
    "CIFAR-10 photos": DataSet("cifar10-jpeg.zip", 600, 300, (20, 100, 500), 1),
    "Tiny ImageNet photos": DataSet("tiny-imagenet-part.zip", 100, 25, (20, 100), 5),
}


class Photos(NamedTuple):
    """Embeddings and labels."""

    x: np.ndarray  # (n, d)
    y: np.ndarray  # (n,) class names

    def of(self, names: list[str]) -> Photos:
        """Return the photos of some classes, in the order of the names."""
        rows = np.concatenate([np.flatnonzero(self.y == name) for name in names])
        return Photos(self.x[rows], self.y[rows])


# --- embeddings -----------------------------------------------------------------------------


def files_of(archive: zipfile.ZipFile, part: str) -> dict[str, list[str]]:
    """Return the photos of each class in a part of a zip file."""
    found: dict[str, list[str]] = {}
    for name in sorted(archive.namelist()):
        folders = name.split("/")
        if len(folders) > 2 and folders[-3] == part and folders[-1]:
            found.setdefault(folders[-2], []).append(name)
    return found


@contextmanager
def as_folder(archive: zipfile.ZipFile, names: dict[str, list[str]]) -> Iterator[Path]:
    """Unpack photos into a folder with a folder for each class."""
    with tempfile.TemporaryDirectory() as folder:
        for label, files in names.items():
            Path(folder, label).mkdir()
            for file in files:
                Path(folder, label, file.rsplit("/", 1)[1]).write_bytes(archive.read(file))
        yield Path(folder)


def embedded(path: Path, part: str, classes: list[str], each: int, cache: Path) -> Photos:
    """Return the embeddings of the first photos of some classes; they are computed once."""
    backbone = published_backbone(DEFAULT, None)
    x, y = [], []
    with zipfile.ZipFile(path) as archive:
        files = files_of(archive, part)
        for label in classes:
            stored = cache / f"{path.stem}-{part}-{label}-{each}.safetensors"
            if not stored.is_file():
                with as_folder(archive, {label: files[label][:each]}) as folder:
                    photos, _ = read_folder(folder, size=backbone.input_size)
                save_file({"x": embed_photos(backbone, photos, CPU).numpy()}, stored)
            x.append(load_file(stored)["x"])
            y += [label] * len(x[-1])
    return Photos(np.concatenate(x), np.array(y))


# --- measurements ---------------------------------------------------------------------------


def drawn(pool: Photos, names: list[str], each: int, seed: int) -> Photos:
    """Return `each` training photos of every class, drawn by the seed."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(pool.y == name))[:each] for name in names]
    return Photos(pool.x[np.concatenate(rows)], pool.y[np.concatenate(rows)])


def incremental(
    train: Photos, test: Photos, names: list[str], steps: tuple[int, ...], **params: Any
) -> tuple[float, float]:
    """Return the accuracy on all classes after the last call, and the CPU seconds of the calls."""
    given = {"random_state": 0, "threads": 1, "holdout_per_class": HELD_OUT, **params}
    classifier = IncrementalClassifier(model="linear", **given)
    began, place = time.process_time(), 0
    for number in steps:
        part = train.of(names[place : place + number])
        classifier.partial_fit(part.x, part.y)
        place += number
    seconds = time.process_time() - began
    return classifier.score(test.x, test.y), seconds


def joint(train: Photos, test: Photos) -> float:
    """Return the accuracy of logistic regression on all classes at once."""
    x = normalize(train.x)
    held = np.arange(len(x)) % 5 == 4

    def fitted(penalty: float, rows: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=penalty, max_iter=500).fit(x[rows], train.y[rows])

    best = max(PENALTIES, key=lambda c: fitted(c, ~held).score(x[held], train.y[held]))
    return float(fitted(best, np.ones(len(x), dtype=bool)).score(normalize(test.x), test.y))


def table(name: str, folder: Path, cache: Path, seeds: int, methods: list[str]) -> list[dict]:
    """Return a row for each method, number of photos, arrival and seed of one data set."""
    data = DATA[name]
    with zipfile.ZipFile(folder / data.file) as archive:
        every = sorted(files_of(archive, "train"))
    order = np.random.default_rng(0).permutation(every).tolist()
    rows = []
    for seed in range(seeds):
        start = 10 * (seed % data.groups)
        names = sorted(order[start : start + 10])
        names = np.random.default_rng(seed).permutation(names).tolist()
        pool = embedded(folder / data.file, "train", names, data.train, cache)
        test = embedded(folder / data.file, "test", names, data.test, cache)
        for each in data.sizes:
            train = drawn(pool, names, each, seed)
            common = {"data": name, "each": each, "seed": seed}
            if "joint" in methods:
                rows.append({**common, "method": "joint", "accuracy": joint(train, test)})
            for method in (name for name in methods if name in METHODS):
                for arrival, steps in ARRIVALS.items():
                    found = incremental(train, test, names, steps, **METHODS[method])
                    accuracy, seconds = found
                    row = {"method": method, "arrival": arrival, "accuracy": accuracy}
                    rows.append({**common, **row, "seconds": round(seconds, 2)})
            last = [row for row in rows if row["seed"] == seed and row["each"] == each]
            found = ", ".join(f"{row['method']} {row['accuracy']:.3f}" for row in last)
            print(f"{name}, seed {seed}, {each} photos: {found}", flush=True)
    return rows


def whole(folder: Path, cache: Path, seed: int, each: int = 200) -> dict[str, Any]:
    """Learn files in five calls with the defaults, from photos to predictions, and time it."""
    name, data = "CIFAR-10 photos", DATA["CIFAR-10 photos"]
    path = folder / data.file
    with zipfile.ZipFile(path) as archive:
        train, tests = files_of(archive, "train"), files_of(archive, "test")
        names = np.random.default_rng(seed).permutation(sorted(train)).tolist()
        rng = np.random.default_rng(seed)
        chosen = {label: rng.permutation(train[label][: data.train])[:each] for label in names}
        classifier, seconds = IncrementalClassifier(random_state=0, threads=1), 0.0
        for place in range(0, 10, 2):
            with as_folder(archive, {k: list(chosen[k]) for k in names[place : place + 2]}) as part:
                began = time.process_time()
                classifier.partial_fit(part)
                seconds += time.process_time() - began
        with as_folder(archive, {k: tests[k][: data.test] for k in names}) as part:
            accuracy = classifier.score(part)
    pool = embedded(path, "train", names, data.train, cache)
    test = embedded(path, "test", names, data.test, cache)
    samples = drawn(pool, names, each, seed)
    short, _ = incremental(samples, test, names, ARRIVALS["pairs"])
    with tempfile.TemporaryDirectory() as where:
        classifier.save(Path(where, "f"))
        size = Path(where, "f").stat().st_size
    return {
        "data": name,
        "each": each,
        "seed": seed,
        "accuracy": accuracy,
        "accuracy_of_embeddings": short,
        "joint": joint(samples, test),
        "seconds": round(seconds, 1),
        "bytes": size,
    }


def main() -> None:
    """Measure, and write the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    every = ["joint", *METHODS]
    parser.add_argument("--methods", nargs="+", default=every, choices=every)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--whole", type=int, default=1, help="seeds of the acceptance case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # few samples
    options.cache.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in options.data:
        rows += table(name, options.folder, options.cache, options.seeds, options.methods)
    cases = [whole(options.folder, options.cache, seed) for seed in range(options.whole)]
    for case in cases:
        print(case)
    if options.out.exists():  # rows of other methods stay
        before = json.loads(options.out.read_text())
        measured = {(row["data"], row["method"]) for row in rows}
        rows = [r for r in before["table"] if (r["data"], r["method"]) not in measured] + rows
        cases = cases or before["whole"]
    options.out.write_text(json.dumps({"table": rows, "whole": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
