"""ER-Ridge: a replayed network, and beside it a ridge regression that forgets nothing.

The network sees few old samples, and its accuracy on old classes falls. A ridge regression on
random features of the inputs is less flexible, but its sums contain all samples of all tasks. Their
probabilities are multiplied.

Sources: ER (Chaudhry et al., 2019); ridge regression on random features as in RanPAC (McDonnell et
al., NeurIPS 2023). The combination is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.closed_form import CalibratedHead, Ridge
from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.components import Options
from gradmix.methods.er import ER


class ERRidgeOptions(Options):
    """Settings of ER-Ridge."""

    features: Number = setting(
        512.0,
        "Random ReLU features of the ridge regression; their sums take 4 · features² bytes.",
        "as much memory as a second MLP of the paper",
        ge=1,
        le=20_000,
        multiple_of=1,
    )


class ERRidge(ER):
    """The product of the probabilities of ER's network and of a ridge regression.

    The ridge regression learns the samples of a task at its start, each once and without
    transforms, so it knows as many classes as the network at any time. The two predictors alone are
    reported as "network" and "ridge".

    Mixing: as ER; the ridge regression is not mixed. Criterion: as ER.
    """

    options: ERRidgeOptions = ERRidgeOptions()
    online = False  # a batch is too small to calibrate on
    ridge: CalibratedHead | None = None  # from the first task on

    def _new_ridge(self, inputs: int) -> CalibratedHead:
        generator = self.streams.generator("features")
        solver = Ridge(inputs, features=int(self.options.features), generator=generator)
        return CalibratedHead(solver)

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Start a task; the ridge regression learns its new samples at once."""
        super().begin_task(pool, seen)
        if self.ridge is None:
            first = torch.zeros(1, dtype=torch.int64, device=pool.y.device)
            self.ridge = self._new_ridge(pool.inputs(first).numel())
        self.ridge.learn(pool.inputs, pool.y[: pool.num_new])

    # --- prediction -------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of network and ridge regression, (B, C)."""
        network = super().predict(x)
        if self.ridge is None:
            return network
        return network.log_softmax(dim=1) + self.ridge_scores(x).log_softmax(dim=1)

    @torch.no_grad()
    def ridge_scores(self, x: Tensor) -> Tensor:
        """Return the calibrated scores of the ridge regression, (B, C); zeros before task 1."""
        outputs = self.head.out_features
        return x.new_zeros(len(x), outputs) if self.ridge is None else self.ridge.scores(x, outputs)

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return the product, and the network and the ridge regression alone."""
        return {"main": self.predict, "network": super().predict, "ridge": self.ridge_scores}

    def predictor_module(self) -> nn.Module:
        """Return the product as a module: network inputs → scores, (B, C)."""
        network = super().predictor_module()
        return network if self.ridge is None else _Product(network, self.ridge, self.head)

    # --- forgetting and state ---------------------------------------------------------------

    def forget(self, label: int) -> None:
        """Remove a class from the network, and as exactly as the sums allow from the ridge."""
        super().forget(label)
        assert self.ridge is not None
        self.ridge.forget(label)

    def state_dict(self) -> dict[str, Any]:
        """Add the sums."""
        ridge = {} if self.ridge is None else self.ridge.state_dict()
        return {**super().state_dict(), **ridge}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums, too; the saved random matrix tells the number of inputs."""
        super().load_state_dict(state)
        self.ridge = None
        if "sums" in state:
            self.ridge = self._new_ridge(self._saved_inputs(state["sums"]))
            self.ridge.load_state_dict(state, self.seen)
        elif self.seen:
            raise InputError("sums: the sums of the ridge regression are missing")

    def _saved_inputs(self, sums: Any) -> int:
        """Return the number of inputs by the saved random matrix, before one is drawn."""
        matrix = sums.get("projection") if isinstance(sums, dict) else None
        features = int(self.options.features)
        if not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.shape[1] != features:
            raise InputError(f"sums: projection is not a matrix with {features} columns")
        return max(len(matrix), 1)


class _Product(nn.Module):
    """The product of the probabilities of a network and of a ridge regression."""

    def __init__(self, network: nn.Module, ridge: CalibratedHead, head: nn.Linear) -> None:
        super().__init__()
        self.network, self.ridge = network, ridge.module(head.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, (B, C)."""
        scores: Tensor = self.network(x).log_softmax(dim=1) + self.ridge(x).log_softmax(dim=1)
        return scores
