"""Accuracy on stored samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradmix.types import Samples

EVALUATION_BATCH = 256  # larger ones are slower on CPUs, networks of convolutions by half


def count_correct(
    predict: Callable[[Tensor], Tensor],
    samples: Samples,
    normalise: Callable[[Tensor], Tensor],
    num_classes: int,
) -> Tensor:
    """How many samples of each class are classified right, (C,) on the host."""
    right = torch.cat(
        [
            predict(normalise(x)).argmax(dim=1) == y
            for x, y in zip(*(part.split(EVALUATION_BATCH) for part in samples), strict=True)
        ]
    )
    return samples.y[right].bincount(minlength=num_classes).cpu()
