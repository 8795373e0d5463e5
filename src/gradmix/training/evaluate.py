"""Accuracy of a method on stored samples."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.data.pool import Normalise
from gradmix.methods import Method
from gradmix.types import Samples

EVALUATION_BATCH = 2048


def count_correct(method: Method, samples: Samples, normalise: Normalise) -> Tensor:
    """How many samples of each class are classified right, (C,) on the host."""
    right = torch.cat(
        [
            method.predict(normalise(x)).argmax(dim=1) == y
            for x, y in zip(*(part.split(EVALUATION_BATCH) for part in samples), strict=True)
        ]
    )
    return samples.y[right].bincount(minlength=method.mixer.num_outputs).cpu()
