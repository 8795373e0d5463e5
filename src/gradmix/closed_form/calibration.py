"""What scores mean: calibrated probabilities, and samples of classes that were not learned.

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
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from gradmix.errors import InputError

LOG_RANGE = math.log(1e4)  # the temperature lies within this factor of the spread of the scores


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the T for which softmax(scores / T) has the least cross-entropy (Guo et al. 2017).

    The order of the classes does not change, so neither does the accuracy. The labels count as
    wrong with probability 1 / (B + 1): if all of a few samples are right, certainty would be
    unfounded.

    Args:
        scores: The scores of held-out samples, (B, C). Samples that a head has learned would make
            it look more certain than it is.
        labels: The column of the right class for each sample, (B,).

    Returns:
        The temperature; 1.0 if all scores of each sample are equal.

    Raises:
        InputError: If there are no samples, or labels are not columns of the scores.

    >>> scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> temperature = fit_temperature(scores, torch.tensor([0, 0, 1, 1]))  # three of four right
    >>> (scores[:1] / temperature).softmax(1).round(decimals=2)
    tensor([[0.7000, 0.3000]])
    """
    if len(scores) == 0 or len(scores) != len(labels):
        raise InputError(f"scores has {len(scores)} rows and labels {len(labels)}; both need n ≥ 1")
    if int(labels.min()) < 0 or int(labels.max()) >= scores.shape[1]:
        raise InputError(f"labels must be columns of scores, 0 to {scores.shape[1] - 1}")
    rows, targets = scores.detach().double(), labels.long()
    spread = float(rows.std(1, correction=0).mean())
    if spread == 0:
        return 1.0

    smoothing = 1 / (len(rows) + 1)

    def error(log_temperature: float) -> float:
        scaled = rows / (spread * math.exp(log_temperature))
        return float(F.cross_entropy(scaled, targets, label_smoothing=smoothing))

    found = minimize_scalar(error, bounds=(-LOG_RANGE, LOG_RANGE), method="bounded")
    return spread * math.exp(float(found.x))


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Return the mean gap between confidence and accuracy, over bins of equal width.

    Args:
        probabilities: The predicted probabilities, (B, C).
        labels: The column of the right class for each sample, (B,).
        bins: The number of bins between 0 and 1.
    """
    confidence, predicted = probabilities.max(1)
    place = (confidence * bins).long().clamp(max=bins - 1)
    gap = confidence.double() - (predicted == labels).double()
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, place, gap)
    return float(gaps.abs().sum()) / len(labels)


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
            f"there are {len(novelty)} held-out samples; a false_alarm_rate of "
            f"{false_alarm_rate} needs at least {needed}; hold out more, or allow a rate of "
            f"{math.ceil(1000 / (len(novelty) + 1)) / 1000}"
        )
    return float(torch.sort(novelty).values[rank - 1])


def every_tenth(y: Tensor) -> Tensor:
    """Return a mask of the fifth, fifteenth, … sample of every class, (N,)."""
    held = torch.zeros_like(y, dtype=torch.bool)
    for label in y.unique().tolist():
        held[(y == label).nonzero().flatten()[4::10]] = True
    return held
