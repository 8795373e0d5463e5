"""Recognising samples of classes that were not learned.

The novelty of a sample is its free energy, −T · log Σ exp(score / T) (Liu et al. 2020): low if at
least one class has a high score. It needs nothing but the scores. A threshold set on held-out
samples of the learned classes bounds how many of them are called unknown by mistake.

On frozen EfficientNet-Lite0 features of CIFAR-10 photos, with five classes learned and five new,
the energy of `Ridge` separates new classes with an AUROC of 0.77. The highest probability reaches
0.74, the distance to the nearest class mean 0.71 and the Mahalanobis distance 0.74. These are means
over five choices of classes (`benchmarks/photos_heads.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradmix.errors import InputError


def energy(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the novelty of each sample, (B,): higher for samples unlike every learned class.

    Args:
        scores: The scores of the classes, (B, C).
        temperature: The temperature of the probabilities (see `fit_temperature`).

    >>> energy(torch.tensor([[1.0, 0.0], [0.2, 0.1]]), 0.1)
    tensor([-1.0000, -0.2313])
    """
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; it must be above 0")
    return -temperature * (scores / temperature).logsumexp(1)


def fit_threshold(novelty: Tensor, false_alarm_rate: float) -> float:
    """Return the novelty above which a sample counts as unknown.

    The threshold is the smallest one with this guarantee: a new sample of the learned classes lies
    above it with at most the stated probability, if it is drawn like the held-out ones (the
    quantile of split conformal prediction).

    Args:
        novelty: The novelty of held-out samples of the learned classes, (B,).
        false_alarm_rate: The share of samples of learned classes that may be called unknown.

    Raises:
        InputError: If the rate is not between 0 and 1, or there are too few samples for it.

    >>> fit_threshold(torch.arange(99.0), false_alarm_rate=0.05)
    94.0
    """
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"false_alarm_rate is {false_alarm_rate}; it must be between 0 and 1")
    rank = math.ceil((len(novelty) + 1) * (1 - false_alarm_rate) - 1e-9)  # 1e-9: rounding
    if rank > len(novelty):
        needed = math.ceil(1 / false_alarm_rate - 1e-9) - 1
        raise InputError(
            f"novelty has {len(novelty)} held-out samples; a false_alarm_rate of "
            f"{false_alarm_rate} needs at least {needed}; hold out more, or allow a rate of "
            f"{1 / (len(novelty) + 1):.3f}"
        )
    return float(torch.sort(novelty).values[rank - 1])
