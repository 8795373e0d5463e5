"""Closed-form methods: classifiers on frozen features that forget nothing by construction.

A task has no epochs. At its end, sums over its samples are added to stored sums, from which the
head is computed. Learning classes in any order and in any number of tasks gives the same result as
learning them jointly, up to rounding. Nothing is replayed or mixed.

Sources: ridge regression on random features as in RanPAC (McDonnell et al., NeurIPS 2023), nearest
class mean (Rebuffi et al., CVPR 2017), streaming LDA (Hayes and Kanan, CVPR Workshops 2020).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.closed_form import SLDA, CalibratedHead, ClosedFormHead, NearestMean, Ridge
from gradmix.errors import InputError
from gradmix.methods.base import Method
from gradmix.methods.components import Options
from gradmix.models.network import Network
from gradmix.types import Samples


class ClosedForm(Method):
    """A method whose head is computed from sums over samples.

    It needs a network without layers before the head (`linear`), because it trains none. The
    network's own head stays unused; the method predicts with the closed-form one.

    Mixing: there are no training steps, so every mix is refused. Criterion: none.
    """

    replays = False
    trains = False
    solver_type: ClassVar[type[ClosedFormHead]]
    sample_weights: Tensor | None = None  # of the next task's samples, (N,)

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not isinstance(model, Network) or [*model.shared, *model.special]:
            raise InputError(
                f"model is a {type(model).__name__}; {type(self).__name__} trains no layers and "
                "needs model='linear', on frozen features"
            )
        self.calibrated = CalibratedHead(self.new_solver())

    def new_solver(self) -> ClosedFormHead:
        """Return an empty closed-form head."""
        return self.solver_type(self.head.in_features)

    def plan_epoch(self, new: Tensor) -> None:
        """Plan nothing."""

    def train_step(self, step: int) -> Tensor:
        """Raise InputError: there are no steps."""
        raise InputError(f"{type(self).__name__} has no training steps")

    def end_task(self, new: Samples) -> None:
        """Add the task's samples, which come first in the pool, to the sums."""
        self.calibrated.learn(self.pool.inputs, new.y, self.sample_weights)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return calibrated class scores, (B, C); very low ones for classes never learned.

        Their softmax gives calibrated probabilities.
        """
        return self.calibrated.scores(x, self.head.out_features)

    def predictor_module(self) -> nn.Module:
        """Return the closed-form head as a module: network inputs → calibrated scores, (B, C)."""
        return self.calibrated.module(self.head.out_features)

    def forget(self, label: int, embeddings: Tensor | None = None) -> None:
        """Remove a class from the sums as exactly as they allow; see `ClosedFormHead.forget`."""
        super().forget(label)
        self.calibrated.forget(label, embeddings)

    def state_dict(self) -> dict[str, Any]:
        """Add the sums."""
        return {**super().state_dict(), **self.calibrated.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums, too."""
        super().load_state_dict(state)
        self.calibrated.load_state_dict(state, self.seen)


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

    options: RidgeOptions = RidgeOptions()

    def new_solver(self) -> ClosedFormHead:
        """Return an empty ridge head; its random features come from the stream "features"."""
        features, generator = int(self.options.features), self.streams.generator("features")
        return Ridge(self.head.in_features, features=features, generator=generator)


class NearestClassMean(ClosedForm):
    """The class with the nearest mean feature."""

    solver_type = NearestMean


class LinearDiscriminant(ClosedForm):
    """Linear discriminant analysis with one shared covariance (SLDA)."""

    solver_type = SLDA
