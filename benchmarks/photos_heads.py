"""Measure heads on frozen EfficientNet-Lite0 features: accuracy, new classes, forgetting.

    python -m benchmarks.photos_heads cifar10.zip --sizes 96 128 160 --cache FOLDER

The zip holds photos in folders train/<class>/ and test/<class>/. Each photo passes through the
backbone once per size; the features are stored in the cache. Settings are chosen on the training
photos alone. Figures are means and standard deviations over seeds, which draw the photos.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from gradmix.closed_form import (
    SLDA,
    ClosedFormHead,
    NearestMean,
    Ridge,
    energy,
    expected_calibration_error,
    fit_temperature,
)
from gradmix.closed_form.heads import oracle_shrinkage
from gradmix.models.pretrained import Backbone, fold_batch_norms, load_pretrained

BATCH = 32
EACH = (20, 100, 200, 500)  # training photos per class
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)  # of logistic regression, its C


class Samples(NamedTuple):
    embeddings: Tensor  # (n, d)
    labels: Tensor  # (n,)

    def where(self, kept: Tensor) -> Samples:
        return Samples(self.embeddings[kept], self.labels[kept])


def embed(backbone: Backbone, path: Path, split: str, each: int, cache: Path) -> Samples:
    """Return the features of the first photos of each class, from the cache where possible."""
    stored = cache / f"{path.stem}-{split}-{each}-{backbone.input_size}.safetensors"
    if not stored.is_file():
        began = time.process_time()
        batches = list(_photos(path, split, each, backbone.input_size))
        module = fold_batch_norms(backbone.module)
        with torch.inference_mode():
            rows = [module(backbone.normalise(photos)) for photos, _ in batches]
        labels = torch.cat([labels for _, labels in batches])
        save_file({"embeddings": torch.cat(rows).clone(), "labels": labels}, stored)
        spent = (time.process_time() - began) / len(labels)
        print(f"{stored.name}: {len(labels)} photos, {1000 * spent:.1f} ms of CPU time each")
    found = load_file(stored)
    return Samples(found["embeddings"], found["labels"])


def _photos(path: Path, split: str, each: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of photos, uint8 (B, 3, size, size), and labels."""
    with zipfile.ZipFile(path) as archive, ThreadPoolExecutor(2) as threads:
        classes: dict[str, list[str]] = {}
        for name in archive.namelist():
            if f"{split}/" in name and name.lower().endswith((".jpg", ".jpeg")):
                classes.setdefault(name.split("/")[-2], []).append(name)
        names = [
            (name, label)
            for label, folder in enumerate(sorted(classes))
            for name in sorted(classes[folder])[:each]
        ]

        def decode(name: str) -> Tensor:
            with Image.open(io.BytesIO(archive.read(name))) as photo:
                small = photo.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            return torch.from_numpy(np.array(small)).permute(2, 0, 1)

        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            photos = torch.stack(list(threads.map(decode, [name for name, _ in part])))
            yield photos, torch.tensor([label for _, label in part])


def draw(pool: Samples, each: int, seed: int) -> Samples:
    """Return `each` samples of each class, drawn without replacement."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for label in pool.labels.unique():
        own = (pool.labels == label).nonzero().flatten()
        rows.append(own[torch.randperm(len(own), generator=generator)[:each]])
    return pool.where(torch.cat(rows))


def _random(features: int, seed: int) -> Ridge:
    return Ridge(1280, features=features, generator=torch.Generator().manual_seed(seed))


def heads(numbers: list[int]) -> dict[str, Callable[[int], ClosedFormHead]]:
    """Return the closed-form heads by name; each is built from a seed."""
    found: dict[str, Callable[[int], ClosedFormHead]] = {
        "nearest mean": lambda seed: NearestMean(1280),
        "slda": lambda seed: SLDA(1280),
        "ridge, no random features": lambda seed: Ridge(1280),
    }
    for number in numbers:
        found[f"ridge, {number} random features"] = lambda seed, n=number: _random(n, seed)  # type: ignore[misc]
    return found


def learn_in_steps(head: ClosedFormHead, train: Samples, step: int) -> None:
    """Learn the classes in ascending order, `step` at a time, and predict once."""
    for classes in train.labels.unique().split(step):
        part = train.where(torch.isin(train.labels, classes))
        head.update(part.embeddings, part.labels)
    head.scores(train.embeddings[:1])


def columns(head: ClosedFormHead, labels: Tensor) -> Tensor:
    return torch.searchsorted(torch.tensor(head.classes), labels)


def accuracy(scores: Tensor, targets: Tensor) -> float:
    return float((scores.argmax(1) == targets).double().mean())


def logistic(train: Samples, test: Samples, penalty: float) -> float:
    rows, queries = F.normalize(train.embeddings), F.normalize(test.embeddings)
    model = LogisticRegression(C=penalty, max_iter=500).fit(rows.numpy(), train.labels.numpy())
    return float(model.score(queries.numpy(), test.labels.numpy()))


def best_penalty(train: Samples) -> float:
    """Choose C on every fifth training sample of each class, held out."""
    held_out = torch.zeros(len(train.labels), dtype=torch.bool)
    held_out[4::5] = True
    fit, check = train.where(~held_out), train.where(held_out)
    return max(PENALTIES, key=lambda penalty: logistic(fit, check, penalty))


def show(name: str, values: list[float], seconds: list[float] | None = None) -> None:
    spread = stdev(values) if len(values) > 1 else 0.0
    spent = f"  {mean(seconds):6.2f} s" if seconds else ""
    print(f"    {name:30} {mean(values):.3f} ± {spread:.3f}{spent}", flush=True)


def accuracies(
    train: Samples, test: Samples, seeds: int, numbers: list[int], sizes: list[int]
) -> None:
    """Print the final accuracy and the CPU time of each head, classes arriving in pairs."""
    pool = int(train.labels.bincount().min())
    for each in (each for each in sizes if each <= pool):
        print(f"  {each} photos per class")
        drawn = [draw(train, each, seed) for seed in range(seeds)]
        for name, build in heads(numbers).items():
            values, seconds = [], []
            for seed, samples in enumerate(drawn):
                head, began = build(seed), time.process_time()
                learn_in_steps(head, samples, 2)
                seconds.append(time.process_time() - began)
                scores = head.scores(test.embeddings)
                values.append(accuracy(scores, columns(head, test.labels)))
            show(name, values, seconds)
        penalty = best_penalty(drawn[0])
        show(f"logistic, jointly (C={penalty:g})", [logistic(s, test, penalty) for s in drawn])


def few_classes(train: Samples, test: Samples, seeds: int, first: int, later: int) -> None:
    """Print accuracies on random choices of classes that arrive in two steps."""
    print(f"  {first} + {later} classes")
    classes = train.labels.unique()
    results: dict[str, list[float]] = {}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        chosen = classes[torch.randperm(len(classes), generator=generator)[: first + later]]
        fit = train.where(torch.isin(train.labels, chosen))
        check = test.where(torch.isin(test.labels, chosen))
        for name, build in heads([]).items():
            head = build(seed)
            learn_in_steps(head, fit, first)
            found = accuracy(head.scores(check.embeddings), columns(head, check.labels))
            results.setdefault(name, []).append(found)
        found = logistic(fit, check, best_penalty(fit))
        results.setdefault("logistic, jointly", []).append(found)
    for name, values in results.items():
        show(name, values)


def mahalanobis(train: Samples, queries: Tensor) -> Tensor:
    """Return the squared Mahalanobis distance to the nearest class mean, (B,)."""
    rows, points = F.normalize(train.embeddings.double()), F.normalize(queries.double())
    means = torch.stack([rows[train.labels == c].mean(0) for c in train.labels.unique()])
    place = torch.searchsorted(train.labels.unique(), train.labels)
    centred = rows - means[place]
    covariance = centred.T @ centred / len(rows)
    weight = oracle_shrinkage(covariance, len(rows))
    scale = covariance.trace() / len(covariance)
    shrunk = (1 - weight) * covariance + weight * scale * torch.eye(len(covariance))
    factor = torch.linalg.cholesky(shrunk.double())
    white = torch.linalg.solve_triangular(factor, torch.cat([points, means]).T, upper=False).T
    return torch.cdist(white[: len(points)], white[len(points) :]).square().min(1).values


def new_classes(train: Samples, test: Samples, seeds: int, each: int) -> None:
    """Print how well scores separate classes that were not learned: AUROC, half the classes."""
    print(f"  AUROC for unlearned classes, half of the classes learned, {each} photos each")
    results: dict[str, list[float]] = {}
    for seed in range(seeds):
        order = torch.randperm(
            int(train.labels.max()) + 1, generator=torch.Generator().manual_seed(seed)
        )
        known = order[: len(order) // 2]
        drawn = draw(train, each + each // 4, seed)
        drawn = drawn.where(torch.isin(drawn.labels, known))
        held_out = torch.arange(len(drawn.labels)) % 5 == 4  # for the temperature
        fit, check = drawn.where(~held_out), drawn.where(held_out)
        new = ~torch.isin(test.labels, known)

        def add(name: str, novelty: Tensor, new: Tensor = new) -> None:
            results.setdefault(name, []).append(roc_auc_score(new.numpy(), novelty.numpy()))

        for name, build in heads([]).items():
            head = build(seed)
            head.update(fit.embeddings, fit.labels)
            held = columns(head, check.labels)
            temperature = fit_temperature(head.scores(check.embeddings), held)
            scores = head.scores(test.embeddings)
            add(f"{name}: probability", -(scores / temperature).softmax(1).max(1).values)
            add(f"{name}: energy", energy(scores, temperature))
        add("Mahalanobis distance", mahalanobis(fit, test.embeddings))
        rows = F.normalize(fit.embeddings)
        means = torch.stack([rows[fit.labels == c].mean(0) for c in known])
        add(
            "distance to the nearest mean", torch.cdist(F.normalize(test.embeddings), means).amin(1)
        )
    for name, values in results.items():
        show(name, values)


def forgetting(train: Samples, test: Samples, seeds: int, each: int) -> None:
    """Print how forgetting without embeddings compares with never having learned the class."""
    print(f"  forgetting one class of {each} photos without its embeddings")
    agreement, exact, approximate = [], [], []
    for seed in range(seeds):
        fit = draw(train, each, seed)
        label = seed % (int(fit.labels.max()) + 1)
        rest, check = fit.where(fit.labels != label), test.where(test.labels != label)
        head, never = Ridge(1280), Ridge(1280)
        head.update(fit.embeddings, fit.labels)
        head.forget(label)
        never.update(rest.embeddings, rest.labels)
        found, expected = head.scores(check.embeddings), never.scores(check.embeddings)
        agreement.append(float((found.argmax(1) == expected.argmax(1)).double().mean()))
        approximate.append(accuracy(found, columns(head, check.labels)))
        exact.append(accuracy(expected, columns(never, check.labels)))
    show("same prediction", agreement)
    show("accuracy, forgotten", approximate)
    show("accuracy, never learned", exact)


def calibration(train: Samples, test: Samples, seeds: int, each: int) -> None:
    """Print the calibration error with a temperature fitted on held-out training samples."""
    print(f"  expected calibration error, {each} photos per class, a fifth held out")
    for name, build in heads([]).items():
        plain, fitted = [], []
        for seed in range(seeds):
            drawn, head = draw(train, each, seed), build(seed)
            held_out = torch.arange(len(drawn.labels)) % 5 == 4
            fit, check = drawn.where(~held_out), drawn.where(held_out)
            head.update(fit.embeddings, fit.labels)
            scores, targets = head.scores(test.embeddings), columns(head, test.labels)
            temperature = fit_temperature(
                head.scores(check.embeddings), columns(head, check.labels)
            )
            plain.append(expected_calibration_error(scores.softmax(1), targets))
            fitted.append(expected_calibration_error((scores / temperature).softmax(1), targets))
        show(f"{name}, T = 1", plain)
        show(f"{name}, fitted T", fitted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("photos", type=Path, help="a zip with train/<class>/ and test/<class>/")
    parser.add_argument("--sizes", type=int, nargs="+", default=[160])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--train", type=int, default=600, help="photos per class in the pool")
    parser.add_argument("--test", type=int, default=300, help="test photos per class")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--random", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--each", type=int, nargs="+", default=EACH, help="photos per class")
    parser.add_argument("--only-accuracy", action="store_true")
    parser.add_argument("--split", type=int, nargs=2, metavar=("FIRST", "LATER"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    for size in options.sizes:
        backbone = load_pretrained("efficientnet-lite0", input_size=size)
        train = embed(backbone, options.photos, "train", options.train, options.cache)
        test = embed(backbone, options.photos, "test", options.test, options.cache)
        print(f"{options.photos.stem} at {size} pixels, {options.seeds} seeds")
        if options.split:
            few_classes(train, test, options.seeds, *options.split)
            continue
        accuracies(train, test, options.seeds, options.random, options.each)
        if options.only_accuracy:
            continue
        new_classes(train, test, options.seeds, 200)
        forgetting(train, test, options.seeds, 200)
        calibration(train, test, options.seeds, 200)


if __name__ == "__main__":
    main()
