"""A closed-form head with calibrated scores, for methods that learn task by task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.closed_form.base import ClosedFormHead
from gradmix.closed_form.calibration import every_tenth, fit_temperature
from gradmix.errors import FileError, InputError

BATCH = 4096  # samples added to the sums at a time, if they are small
NUMBERS = 1 << 24  # inputs that are held at a time, 128 MB in float64
NEVER = -1e4  # score of a class that was never learned


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
        self._add(inputs, y, weights, index[~held])
        self._calibrate(inputs, y, index[held] if bool(held.any()) else index)
        self._add(inputs, y, weights, index[held])

    @property
    def _batch(self) -> int:
        return max(1, min(BATCH, NUMBERS // self.solver.embedding_size))

    def _add(
        self,
        inputs: Callable[[Tensor], Tensor],
        y: Tensor,
        weights: Tensor | None,
        index: Tensor,
    ) -> None:
        for part in index.split(self._batch):
            if len(part):
                own = None if weights is None else weights[part]
                self.solver.update(inputs(part).flatten(1), y[part], own)

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
