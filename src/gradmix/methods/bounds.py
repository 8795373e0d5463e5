"""The two bounds of every comparison: no replay at all, and all data at once."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.base import Method
from gradmix.mixing.plan import Plan
from gradmix.models.heads import drop_output
from gradmix.types import Samples


class FineTuning(Method):
    """Trains on the new data alone: the lower bound.

    Mixing: B1 is mixed within itself. There is no memory, so gradient partners have no meaning
    and are refused.
    """

    replays: ClassVar[bool] = False

    def plan_epoch(self, new: Tensor) -> Plan:
        """B1 alone."""
        return self.planned(new)

    def end_task(self, new: Samples) -> None:
        """Keep nothing."""


class Joint(Method):
    """Trains from scratch on everything seen, at every task: the upper bound.

    Mixing: as in ordinary training, within batches of all classes. Nothing is forgotten, so
    gradient partners have no meaning and are refused. Keeps all data, beyond any budget.
    """

    replays: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._initial = copy.deepcopy(self.model.state_dict())
        self._initial_head = copy.deepcopy(self.head)  # for its shape
        self._kept: list[Samples] = []

    def past(self) -> Samples:
        """Everything seen."""
        if not self._kept:
            return super().past()
        return Samples(*(torch.cat(parts) for parts in zip(*self._kept, strict=True)))

    def grow(self, seen: int) -> None:
        """Start anew from the initial weights; new rows of a growing head are drawn anew."""
        if self.head.out_features != self._initial_head.out_features:
            self.model.head = copy.deepcopy(self._initial_head)
        self.model.load_state_dict(self._initial)
        super().grow(seen)

    def meet(self, pool: Pool) -> None:
        """Take the pool; it has to fit in memory."""
        if pool.streamed:
            raise InputError(
                "joint training keeps all data in memory; these are streamed from files"
            )
        super().meet(pool)

    def epoch_samples(self) -> int:
        """All of the pool."""
        return len(self.pool)

    def plan_epoch(self, new: Tensor) -> Plan:
        """Batches of everything."""
        return self.planned(new)

    def end_task(self, new: Samples) -> None:
        """Keep all."""
        self._kept.append(new)

    def state_dict(self) -> dict[str, Any]:
        """With the data seen, which no memory holds, and the weights to start from."""
        past, initial = self.past(), dict(self._initial)
        return {**super().state_dict(), "kept": {"x": past.x, "y": past.y}, "initial": initial}

    def structure(self) -> dict[str, Any]:
        """With the outputs of the first task."""
        return {**super().structure(), "initial": self._initial_head.out_features}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """With a head of the shape that the first task had."""
        super().rebuild(structure)
        head, outputs = self._initial_head, structure["initial"]
        if head.out_features != outputs:
            with self.streams.as_global("heads"):
                bias = head.bias is not None
                self._initial_head = nn.Linear(head.in_features, outputs, bias=bias)

    def forget(self, label: int) -> None:
        """With the data kept; what training starts from never saw any."""
        super().forget(label)
        x, y = self.past()
        kept = y != label
        self._kept = [Samples(x[kept], y[kept] - (y[kept] > label).long())]

    def drop_outputs(self, label: int) -> None:
        """Networks start with no more outputs than there are."""
        super().drop_outputs(label)
        head, outputs = self._initial_head, self.head.out_features
        if head.out_features > outputs:
            name = self._head_name
            self._initial_head = drop_output(head, outputs)
            for part in ("weight", "bias"):
                key = f"{name}.{part}"
                if key in self._initial:
                    self._initial[key] = self._initial[key][:outputs].clone()

    def load_past(self, state: dict[str, Any]) -> None:
        """With the data seen."""
        super().load_past(state)
        kept = Samples(state["kept"]["x"], state["kept"]["y"])
        self.check_labels(kept.y)
        self._kept = [kept] if len(kept.y) else []

    def load_state_dict(self, state: dict[str, Any], *args: Any) -> None:
        """With the weights to start from, which need not be those this object was made with."""
        super().load_state_dict(state, *args)
        self._initial = dict(state["initial"])
        self._check_initial()
        self._initial_head = self._initial_head.to_empty(device=self.streams.place)

    @property
    def _head_name(self) -> str:
        names = [name for name, module in self.model.named_modules() if module is self.head]
        return str(names[0])

    def _check_initial(self) -> None:
        """What is saved to start from has the network's weights, but for the rows of the head."""
        own = {name: value.shape for name, value in self.model.state_dict().items()}
        for part, value in self._initial_head.state_dict().items():
            own[f"{self._head_name}.{part}"] = value.shape
        if {name: value.shape for name, value in self._initial.items()} != own:
            raise InputError("the saved weights to start from are of another network")
