"""Compare the classifier's predictions with the bare network, and its loading with safetensors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, load_file, save_file

from benchmarks.timing import ratio
from gradmix import IncrementalClassifier
from gradmix.classifier.state import copy_of
from gradmix.files import read_state_file

IMAGES = 10_000
CLASSES, EXEMPLARS = 10, 100  # of each: 1,000 in all


def learned(model: str, shape: tuple[int, ...]) -> IncrementalClassifier:
    """Return a classifier with 1,000 random exemplars; speed does not depend on their content."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, size=(CLASSES * EXEMPLARS, *shape)).astype(np.uint8)
    y = np.arange(len(X)) % CLASSES
    classifier = IncrementalClassifier(
        model=model, criterion_exemplars=EXEMPLARS, epochs=1, random_state=0, device="cpu"
    )
    return classifier.fit(X, y)


def predict_over_forward() -> str:
    """Return the time to predict 10,000 byte images of 28 × 28 over a forward pass on floats."""
    classifier = learned("mlp", (1, 28, 28))
    X = np.random.default_rng(1).integers(0, 256, size=(IMAGES, 1, 28, 28)).astype(np.uint8)
    method = classifier._learned.method
    inputs = method.normalise(torch.from_numpy(X))

    @torch.no_grad()
    def bare() -> object:
        return [method.model(part) for part in inputs.split(2048)]

    @torch.no_grad()
    def from_bytes() -> object:
        parts = torch.from_numpy(X).split(2048)
        return [method.model(method.normalise(part)) for part in parts]

    over_bare, over_bytes = (ratio(lambda: classifier.predict(X), it) for it in (bare, from_bytes))
    return f"{over_bare}; over normalisation and forward {over_bytes}"


def load_over_safetensors() -> str:
    """Return the time to load 1,000 exemplars over reading the same tensors from safetensors."""
    parts = []
    for model, shape in (("mlp", (1, 28, 28)), ("resnet18", (3, 32, 32))):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = Path(folder, "my.gradmix"), Path(folder, "my.safetensors")
            learned(model, shape).save(ours)
            tensors = tensors_in(copy_of(read_state_file(ours, "classifier")))
            save_file({name: value.contiguous() for name, value in tensors.items()}, theirs)
            size = ours.stat().st_size / 1e6
            figures = [
                ratio(lambda: IncrementalClassifier.load(ours), lambda read=read: read(theirs))  # noqa: B023
                for read in (used, own)
            ]
            parts.append(
                f"{model}, {size:.1f} MB: {figures[0]} of mapping, {figures[1]} of reading it"
            )
    return "; ".join(parts)


def used(path: Path) -> float:
    """Read the tensors and use them: pages of a mapped file are read when they are used."""
    return sum(float(value.view(-1)[::1024].sum()) for value in load_file(path).values())


def own(path: Path) -> object:
    """Read the tensors into memory of this process, where no other program can change them."""
    return load(path.read_bytes())


def tensors_in(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Return all tensors of a state by their path in it."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    found: dict[str, torch.Tensor] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            found |= tensors_in(item, f"{path}/{key}")
    return found
