"""Compare a plain CNN replay loop with the classifier and every mix, without pretrained weights.

    python -m benchmarks.photos_scratch cifar10.zip --seeds 20 21 22 23 24

The zip holds photos of 32 pixels in folders train/<class>/ and test/<class>/. Classes arrive two at
a time, 200 photos each, and 32 exemplars per class are stored. The plain loop is a simple baseline:
three convolutions with BatchNorm, SGD, batches of 32 new and 32 replayed photos. It takes as many
steps as the classifier. Each line is the accuracy on all ten classes at the end.
"""

from __future__ import annotations

import argparse
import io
import math
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import gradmix
from gradmix.classifier.setup import STEPS

EACH, EXEMPLARS, BATCH = 200, 32, 32
MIXES = ("none", "mixup", "remix", "balanced-remix", "gradmix", "gradmix+")


def read(path: Path, split: str, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first photos of each class, uint8 (N, H, W, 3), and their labels."""
    with zipfile.ZipFile(path) as archive:
        names: dict[str, list[str]] = {}
        for name in sorted(archive.namelist()):
            if f"{split}/" in name and name.lower().endswith((".jpg", ".jpeg")):
                names.setdefault(name.split("/")[-2], []).append(name)
        chosen = [(k, n) for k, kind in enumerate(sorted(names)) for n in names[kind][:each]]
        photos = [
            np.array(Image.open(io.BytesIO(archive.read(n))).convert("RGB")) for _, n in chosen
        ]
    return np.stack(photos), np.array([label for label, _ in chosen])


def draw(y: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows of EACH random photos of every class."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.choice(np.flatnonzero(y == label), EACH, replace=False) for label in np.unique(y)]
    )


def plain_network() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def inputs(photos: Tensor) -> Tensor:
    x = photos.float().div(127.5).sub(1)
    return x.contiguous(memory_format=torch.channels_last)


def plain_loop(X: Tensor, y: Tensor, test: Tensor, seed: int) -> Tensor:
    """Learn two classes at a time with replay; return predictions for the test photos."""
    torch.manual_seed(seed)
    network = plain_network().to(memory_format=torch.channels_last)
    stored = torch.empty(0, dtype=torch.int64)
    for first in range(0, 10, 2):
        new = torch.isin(y, torch.tensor([first, first + 1])).nonzero().flatten()
        optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
        network.train()
        epochs = math.ceil(STEPS / (len(new) // BATCH))
        for _ in range(epochs):
            for rows in new[torch.randperm(len(new))].split(BATCH):
                replay = stored[torch.randperm(len(stored))[:BATCH]]
                batch = torch.cat([rows, replay])
                loss = F.cross_entropy(network(inputs(X[batch])), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        kept = [new[y[new] == label][:EXEMPLARS] for label in (first, first + 1)]
        stored = torch.cat([stored, *kept])
    network.eval()
    with torch.no_grad():
        return torch.cat([network(inputs(part)).argmax(1) for part in test.split(500)])


def classifier(X: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int, mix: str) -> np.ndarray:
    """Learn the same with the classifier's defaults; return predictions for the test photos."""
    learner = gradmix.IncrementalClassifier(
        model="cnn", mix=mix, exemplars_per_class=EXEMPLARS, random_state=seed, threads=1
    )
    for first in range(0, 10, 2):
        new = (y == first) | (y == first + 1)
        learner.partial_fit(X[new], y[new])
    return np.asarray(learner.predict(test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("path", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22, 23, 24])
    parser.add_argument("--mixes", nargs="+", default=["plain", *MIXES])
    given = parser.parse_args()
    torch.set_num_threads(1)
    (X, y), (test, truth) = read(given.path, "train", 2000), read(given.path, "test", 500)
    for seed in given.seeds:
        rows = draw(y, seed)
        for mix in given.mixes:
            began = time.process_time()
            if mix == "plain":
                as_tensors = (torch.from_numpy(a).permute(0, 3, 1, 2) for a in (X[rows], test))
                photos, unseen = as_tensors
                found = plain_loop(photos, torch.from_numpy(y[rows]), unseen, seed).numpy()
            else:
                found = classifier(X[rows], y[rows], test, seed, mix)
            spent = time.process_time() - began
            print(f"seed {seed} {mix}: {(found == truth).mean():.4f}, {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
