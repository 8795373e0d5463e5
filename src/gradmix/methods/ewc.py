"""Online EWC, elastic weight consolidation: weights that mattered before are held in place.

Sources: Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", PNAS 2017;
Schwarz et al., "Progress & Compress", ICML 2018 (the online form); reference form in
aimagelab/mammoth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.criterion import evaluating
from gradmix.errors import InputError
from gradmix.methods.bounds import FineTuning
from gradmix.methods.components import Options
from gradmix.types import Samples


class EWCOptions(Options):
    """`strength` and `decay` are the reference's for MNIST."""

    strength: Number = setting(90.0, "λ, the weight of the penalty.", ge=0)
    decay: Number = setting(1.0, "γ, the weight of the importances of earlier tasks.", ge=0, le=1)
    samples: Number = setting(500.0, "Most samples per task for the importances.", ge=1)


class EWC(FineTuning):
    """Cross-entropy on B1 + λ · Σ F (θ − θ*)²; there is no replay.

    θ* are the weights after the last task. F ← γ F + F_new, where F_new is the mean of the squared
    gradients of log p(y|x) over samples of the task: the diagonal of the empirical Fisher matrix,
    with the labels of the data and in evaluation mode. The reference also weights each sample by
    p(y|x), and uses all samples. Outputs that a growing head adds are free.

    Mixing: B1 is mixed within itself; F uses unmixed samples. There is no memory to protect, so
    gradient partners are refused.
    """

    options: EWCOptions = EWCOptions()
    online = False
    other_state = ("importance", "anchor")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.importance: dict[str, Tensor] = {}  # F of each trained parameter, by name
        self.anchor: dict[str, Tensor] = {}  # θ*

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name."""
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def train_step(self, step: int) -> Tensor:
        """Return CE(B1) + λ · Σ F (θ − θ*)²."""
        loss = super().train_step(step)
        if not self.importance:
            return loss
        return loss + self.options.strength * self.penalty()

    def penalty(self) -> Tensor:
        """Return Σ F (θ − θ*)² over the parameters as far as they existed before the task."""
        parameters = self.trained()
        terms = [
            (importance * (_rows(parameters[name], importance) - self.anchor[name]).square()).sum()
            for name, importance in self.importance.items()
        ]
        return torch.stack(terms).sum()

    def end_task(self, new: Samples) -> None:
        """Add the importances of this task and hold the present weights; store no samples."""
        importance = self.task_importance()
        for name, before in self.importance.items():
            _rows(importance[name], before).add_(before, alpha=self.options.decay)
        self.importance = importance
        self.anchor = {name: value.detach().clone() for name, value in self.trained().items()}

    def task_importance(self) -> dict[str, Tensor]:
        """Return the mean squared gradient of log p(y|x) over samples of the task, by parameter."""
        number, device = self.pool.num_new, self.pool.y.device
        generator = self.streams.device("importance")
        order = torch.randperm(number, generator=generator, device=device)
        rows = order[: int(self.options.samples)]
        parameters = self.trained()
        totals = {name: torch.zeros_like(value) for name, value in parameters.items()}
        with evaluating(self.model):
            for row in rows.split(1):  # a sample at a time: squares of single gradients
                loss = F.cross_entropy(self.model(self.pool.inputs(row)), self.pool.y[row])
                parts = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                for total, part in zip(totals.values(), parts, strict=True):
                    if part is not None:
                        total += part.square()
        return {name: total.detach() / len(rows) for name, total in totals.items()}

    def drop_outputs(self, label: int) -> None:
        """Remove the class from importances and anchors, too."""
        names = [f"{self.head_name}.{part}" for part in ("weight", "bias")]
        super().drop_outputs(label)
        self.importance, self.anchor = (
            {
                name: torch.cat([kept[:label], kept[label + 1 :]]) if name in names else kept
                for name, kept in values.items()
            }
            for values in (self.importance, self.anchor)
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check importances and anchors, too."""
        super().load_state_dict(state)
        self._check("importance", self.importance)
        self._check("anchor", self.anchor)
        if self.importance.keys() != self.anchor.keys() or any(
            bool((value < 0).any()) for value in self.importance.values()
        ):
            raise InputError("importance: values are negative, or do not belong to the anchor")

    def _check(self, kind: str, saved: dict[str, Tensor]) -> None:
        """Raise InputError unless saved values fit the parameters; the head may have grown."""
        shapes = {name: value.shape for name, value in self.trained().items()}
        if saved and saved.keys() != shapes.keys():
            raise InputError(f"{kind}: the saved values belong to another network")
        for name, value in saved.items():
            if value.shape != shapes[name] and (
                name.rpartition(".")[0] != self.head_name
                or value.shape[1:] != shapes[name][1:]
                or len(value) > shapes[name][0]
            ):
                raise InputError(f"{kind}.{name} has shape {tuple(value.shape)}")


def _rows(parameter: Tensor, before: Tensor) -> Tensor:
    """Return the rows of a parameter that existed before the head grew."""
    return parameter if parameter.shape == before.shape else parameter[: len(before)]
