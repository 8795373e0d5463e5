"""Calibrated probabilities from scores: a temperature fitted on held-out samples."""

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
    return float(torch.zeros(bins, dtype=torch.float64).index_add(0, place, gap).abs().sum()) / len(
        labels
    )
