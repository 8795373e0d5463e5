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
from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.closed_form.base import ClosedFormHead
from gradmix.errors import FileError, InputError

LOG_RANGE = math.log(1e4)  # the temperature lies within this factor of the spread of the scores
BATCH = 4096  # samples added to the sums at a time, if they are small
NUMBERS = 1 << 24  # inputs that are held at a time, 128 MB in float64
NEVER = -1e4  # score of a class that was never learned


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


# --- a head with calibrated scores ----------------------------------------------------------


class CalibratedHead:
    """A closed-form head and the temperature of its scores.

    A tenth of the samples of each call calibrates the scores before the head learns it, too. The
    temperature is the geometric mean over all calls, weighted by the number of these samples.

    Args:
        solver: The head, without classes.
    """

    def __init__(self, solver: ClosedFormHead) -> None:
        self.solver = solver
        self._log_temperature, self._calibrated = 0.0, 0  # sum over held-out samples, and number

    def learn(
        self, inputs: Callable[[Tensor], Tensor], y: Tensor, weights: Tensor | None = None
    ) -> None:
        """Add samples to the sums.

        Args:
            inputs: Returns the inputs of rows from 0 to N − 1, (B, …).
            y: The labels of all rows, (N,).
            weights: How often each sample counts, (N,); None: once.
        """
        index, held = torch.arange(len(y), device=y.device), every_tenth(y)

        def add(rows: Tensor) -> None:
            for part in rows.split(self._batch):
                if len(part):
                    own = None if weights is None else weights[part]
                    self.solver.update(inputs(part).flatten(1), y[part], own)

        add(index[~held])
        self._calibrate(inputs, y, index[held] if bool(held.any()) else index)
        add(index[held])

    @property
    def _batch(self) -> int:
        return max(1, min(BATCH, NUMBERS // self.solver.embedding_size))

    def _calibrate(self, inputs: Callable[[Tensor], Tensor], y: Tensor, index: Tensor) -> None:
        if len(self.solver.classes) < 2:
            return
        scores = [
            self.solver.scores(inputs(part).flatten(1))
            for part in index.split(min(1024, self._batch))
        ]
        labels = torch.searchsorted(torch.tensor(self.solver.classes), y[index].cpu())
        temperature = fit_temperature(torch.cat(scores), labels)
        self._log_temperature += len(index) * math.log(temperature)
        self._calibrated += len(index)

    @property
    def temperature(self) -> float:
        """The temperature that turns scores into calibrated probabilities."""
        return math.exp(self._log_temperature / self._calibrated) if self._calibrated else 1.0

    def scores(self, x: Tensor, outputs: int) -> Tensor:
        """Return calibrated scores of inputs, (B, outputs); very low ones for unknown classes."""
        scores = x.new_full((len(x), outputs), NEVER)
        classes = list(self.solver.classes)
        if classes:
            scores[:, classes] = (self.solver.scores(x.flatten(1)) / self.temperature).to(scores)
        return scores

    def module(self, outputs: int) -> nn.Module:
        """Return `scores` as a module in float32, for export."""
        return _SolvedHead(self.solver, outputs, self.temperature)

    def forget(self, label: int, inputs: Tensor | None = None) -> None:
        """Remove a class as exactly as the sums allow; later classes move up by one."""
        self.solver.forget(label, inputs)
        self.solver.shift_labels(label)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and the calibration, as tensors and plain values."""
        calibration = {"log_temperature": self._log_temperature, "samples": self._calibrated}
        return {"sums": self.solver.state_dict(), "calibration": calibration}

    def load_state_dict(self, state: dict[str, Any], seen: int) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The saved state.
            seen: Number of classes seen, which every label must be below.

        Raises:
            InputError: If the state does not fit.
        """
        try:
            self.solver.load_state_dict(state["sums"])
        except FileError as error:
            raise InputError(f"sums: {error}") from error
        if any(label >= seen for label in self.solver.classes):
            raise InputError(f"sums: a label is not one of the {seen} classes")
        saved = state["calibration"]
        self._log_temperature = float(saved["log_temperature"])
        self._calibrated = int(saved["samples"])
        if not abs(self._log_temperature) <= 100 * max(self._calibrated, 0):
            raise InputError(f"calibration: {saved} is not a mean temperature")


class _SolvedHead(nn.Module):
    """A closed-form head as a module, in float32."""

    weight: Tensor
    bias: Tensor

    def __init__(self, solver: ClosedFormHead, outputs: int, temperature: float) -> None:
        super().__init__()
        self.features = solver.feature_module()
        linear, classes = solver.linear(), list(solver.classes)
        weight = torch.zeros(linear.weight.shape[0], outputs, dtype=torch.float64)
        bias = torch.full((outputs,), NEVER, dtype=torch.float64)
        weight[:, classes], bias[classes] = linear.weight / temperature, linear.bias / temperature
        self.register_buffer("weight", weight.float())
        self.register_buffer("bias", bias.float())

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, (B, C)."""
        features: Tensor = self.features(x.flatten(1))
        return features @ self.weight + self.bias
