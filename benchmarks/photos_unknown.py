"""Measure how well the classifier's defaults recognise photos of classes that were not learned.

    python -m benchmarks.photos_unknown cifar10-jpeg.zip tiny-imagenet-part.zip

Half of ten classes are learned from 75 photos each, with 10 of them held out; the others are new.
Figures are means over five choices of the classes: the AUROC of `novelty`, the share of new photos
that `predict(X, unknown=...)` calls unknown, and the share of photos of learned classes for which
it does so by mistake. Each photo passes the backbone once; ridge then learns the embeddings.
"""

from __future__ import annotations

import sys
import zipfile
from statistics import mean

import numpy as np
from sklearn.metrics import roc_auc_score

from gradmix import IncrementalClassifier

CLASSES, LEARNED, TRAIN, TEST, SEEDS = 10, 5, 75, 25, 5
RATES = (0.05, 0.1)


def read(path: str) -> dict[str, list[bytes]]:
    """Return the first photos of each of ten classes spread over a zip file."""
    found: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(path) as archive:
        names: dict[str, list[str]] = {}
        for name in archive.namelist():
            if "train/" in name and name.lower().endswith((".jpg", ".jpeg")):
                names.setdefault(name.split("/")[-2], []).append(name)
        full = sorted(label for label, own in names.items() if len(own) >= TRAIN + TEST)
        for label in full[:: max(1, len(full) // CLASSES)][:CLASSES]:
            found[label] = [archive.read(name) for name in names[label][: TRAIN + TEST]]
    return found


def measure(path: str) -> None:
    photos = read(path)
    labels = np.repeat(list(photos), TRAIN + TEST)
    first = next(iter(photos))
    embedder = IncrementalClassifier(random_state=0).fit(photos[first][:20], ["a", "b"] * 10)
    x = embedder.embed([photo for own in photos.values() for photo in own])  # (N, 1280)
    test = np.tile(np.arange(TRAIN + TEST) >= TRAIN, len(photos))
    rows = []
    for seed in range(SEEDS):
        chosen = np.random.default_rng(seed).permutation(list(photos))[:LEARNED]
        known = np.isin(labels, chosen)
        classifier = IncrementalClassifier(
            model="linear", holdout_per_class=10, random_state=seed, threads=1
        )
        classifier.fit(x[known & ~test], labels[known & ~test])
        queries, new = x[test], ~known[test]
        row = [roc_auc_score(new, classifier.novelty(queries))]
        row += [roc_auc_score(new, -classifier.predict_proba(queries).max(axis=1))]
        for rate in RATES:
            called = classifier.predict(queries, unknown="?", false_alarm_rate=rate) == "?"
            row += [called[new].mean(), called[~new].mean()]
        rows.append(row)
    names = ["AUROC of novelty", "AUROC of the highest probability"]
    names += [f"{what} at a rate of {rate}" for rate in RATES for what in ("found", "false alarms")]
    print(f"{path}: {', '.join(photos)}")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        print(f"  {name}: {mean(map(float, values)):.3f}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        measure(argument)
