"""Closed-form methods: classifiers on frozen features that forget nothing by construction.

A task has no epochs. At its end, sums over its samples are added to stored sums, from which the
head is computed. Learning classes in any order and in any number of tasks gives the same result as
learning them jointly, up to rounding. Nothing is replayed or mixed.

Sources: ridge regression on random features as in RanPAC (McDonnell et al., NeurIPS 2023), nearest
class mean (Rebuffi et al., CVPR 2017), streaming LDA (Hayes and Kanan, CVPR Workshops 2020).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.closed_form import SLDA, ClosedFormHead, NearestMean, Ridge, fit_temperature
from gradmix.errors import FileError, InputError
from gradmix.methods.base import Method
from gradmix.methods.closed_form_start import every_tenth
from gradmix.methods.parts import Options, Stage
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Plan
from gradmix.models.network import Network
from gradmix.types import Samples

FEATURE_BATCH = 4096  # samples added to the sums at a time
NEVER = -1e4  # score of a class that was never learned


class ClosedForm(Method):
    """A method whose head is computed from sums over samples.

    It needs a network without layers before the head (`linear`), because it trains none. The
    network's own head stays unused; the method predicts with the closed-form one.

    Mixing: there are no training steps, so every mix is refused. Criterion: none.
    """

    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None
    trains: ClassVar[bool] = False

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not isinstance(model, Network) or any(True for _ in [*model.shared, *model.special]):
            raise InputError(
                f"model is a {type(model).__name__}; {type(self).__name__} trains no layers and "
                "needs model='linear', on frozen features"
            )
        self.solver = self.new_solver()
        self.sample_weights: Tensor | None = None  # of the next task's samples, (N,)
        self._log_temperature, self._calibrated = 0.0, 0  # sum over held-out samples, and number

    @abstractmethod
    def new_solver(self) -> ClosedFormHead:
        """Return an empty closed-form head."""

    @classmethod
    def check_mix(cls, recipe: Recipe | None) -> None:
        """Raise InputError for every mix: there are no training steps to mix."""
        if recipe is not None:
            raise InputError(
                f"mix has {recipe.partners!r} partners, and {cls.__name__} has no training steps; "
                "give mix='none'"
            )

    def stages(self) -> Sequence[Stage]:
        """Return no stages: nothing is trained."""
        return []

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Plan nothing."""
        return None

    def train_step(self, step: int) -> Tensor:
        """Raise InputError: there are no steps."""
        raise InputError(f"{type(self).__name__} has no training steps")

    def end_task(self, new: Samples) -> None:
        """Add the task's samples to the sums; a tenth of them calibrates the scores first."""
        index = torch.arange(len(new.y), device=new.y.device)  # they come first in the pool
        held = every_tenth(new.y)
        self._add(index[~held])
        self._calibrate(index[held] if bool(held.any()) else index)
        self._add(index[held])

    def _add(self, index: Tensor) -> None:
        for part in index.split(FEATURE_BATCH):
            if len(part):
                weights = None if self.sample_weights is None else self.sample_weights[part]
                self.solver.update(self.pool.inputs(part).flatten(1), self.pool.y[part], weights)

    def _calibrate(self, index: Tensor) -> None:
        """Fit the temperature of the scores; the mean over all tasks, weighted by samples."""
        if len(self.solver.classes) < 2:
            return
        scores = [self.solver.scores(self.pool.inputs(i).flatten(1)) for i in index.split(1024)]
        classes = torch.tensor(self.solver.classes)
        labels = torch.searchsorted(classes, self.pool.y[index].cpu())
        temperature = fit_temperature(torch.cat(scores), labels)
        self._log_temperature += len(index) * math.log(temperature)
        self._calibrated += len(index)

    @property
    def temperature(self) -> float:
        """The temperature that turns scores into calibrated probabilities."""
        return math.exp(self._log_temperature / self._calibrated) if self._calibrated else 1.0

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return calibrated class scores, (B, C); very low ones for classes never learned.

        Their softmax gives calibrated probabilities.
        """
        scores = x.new_full((len(x), self.head.out_features), NEVER)
        classes = list(self.solver.classes)
        if classes:
            own = self.solver.scores(x.flatten(1)) / self.temperature
            scores[:, classes] = own.to(scores)
        return scores

    def predictor_module(self) -> nn.Module:
        """Return the closed-form head as a module: network inputs → calibrated scores, (B, C)."""
        return _SolvedHead(self.solver, self.head.out_features, self.temperature)

    def forget(self, label: int, embeddings: Tensor | None = None) -> None:
        """Remove a class from the sums as exactly as they allow; see `ClosedFormHead.forget`."""
        super().forget(label)
        self.solver.forget(label, embeddings)
        self.solver.shift_labels(label)

    def state_dict(self) -> dict[str, Any]:
        """Add the sums."""
        calibration = {"log_temperature": self._log_temperature, "samples": self._calibrated}
        sums = self.solver.state_dict()
        return {**super().state_dict(), "sums": sums, "calibration": calibration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums, too."""
        super().load_state_dict(state)
        try:
            self.solver.load_state_dict(state["sums"])
        except FileError as error:
            raise InputError(f"sums: {error}") from error
        if any(label >= self.seen for label in self.solver.classes):
            raise InputError(f"sums: a label is not one of the {self.seen} classes")
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


class RidgeOptions(Options):
    """Settings of ridge regression."""

    features: Number = setting(
        0.0,
        "Random ReLU features; 0 uses the embeddings.",
        "RanPAC",
        ge=0,
        le=20_000,
        multiple_of=1,
    )


class RidgeRegression(ClosedForm):
    """Ridge regression from features to one-hot labels, with a regulariser chosen by GCV."""

    options_type: ClassVar[type[Options]] = RidgeOptions
    options: RidgeOptions

    def new_solver(self) -> ClosedFormHead:
        """Return an empty ridge head; its random features come from the stream "features"."""
        return Ridge(
            self.head.in_features,
            features=int(self.options.features),
            generator=self.streams.generator("features"),
        )


class NearestClassMean(ClosedForm):
    """The class with the nearest mean feature."""

    def new_solver(self) -> ClosedFormHead:
        """Return an empty nearest-mean head."""
        return NearestMean(self.head.in_features)


class LinearDiscriminant(ClosedForm):
    """Linear discriminant analysis with one shared covariance (SLDA)."""

    def new_solver(self) -> ClosedFormHead:
        """Return an empty LDA head."""
        return SLDA(self.head.in_features)
