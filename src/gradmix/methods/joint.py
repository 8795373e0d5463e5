"""Joint training on all data seen: the upper bound of every comparison."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.er import ER
from gradmix.mixing.mixer import Plan
from gradmix.models.heads import drop_output
from gradmix.models.network import new_linear
from gradmix.types import Samples


class Joint(ER):
    """Trains from scratch on everything seen, at every task.

    It stores all data, whatever the budget of the memory.

    Mixing: as in ordinary training, within batches of all classes. Nothing is forgotten, so
    gradient partners have no meaning and are refused.
    """

    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._initial = copy.deepcopy(self.model.state_dict())
        self._initial_head = copy.deepcopy(self.head)  # for its shape
        self._stored: list[Samples] = []

    def stored_samples(self) -> Samples:
        """Return everything seen."""
        if not self._stored:
            return super().stored_samples()
        return Samples(*(torch.cat(parts) for parts in zip(*self._stored, strict=True)))

    def grow(self, seen: int) -> None:
        """Start again from the initial weights; new rows of a growing head are drawn again."""
        if self.head.out_features != self._initial_head.out_features:
            self.model.head = copy.deepcopy(self._initial_head)
        self.model.load_state_dict(self._initial)
        super().grow(seen)

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task; it must fit in memory."""
        if pool.streamed:
            raise InputError(
                "method is 'joint', which keeps all data in memory; these are streamed from files"
            )
        super().set_pool(pool)

    def epoch_samples(self) -> int:
        """An epoch covers the whole pool."""
        return len(self.pool)

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Use batches of everything seen."""
        return self.mixer.plan(new, None)

    def end_task(self, new: Samples) -> None:
        """Store all samples."""
        self._stored.append(new)

    def forget(self, label: int) -> None:
        """Remove a class and its data; the initial weights never saw any data."""
        super().forget(label)
        x, y = self.stored_samples()
        kept = y != label
        self._stored = [Samples(x[kept], y[kept] - (y[kept] > label).long())]

    def drop_outputs(self, label: int) -> None:
        """Remove an output; the initial head has no more outputs than the head."""
        super().drop_outputs(label)
        head, outputs = self._initial_head, self.head.out_features
        if head.out_features > outputs:
            self._initial_head = drop_output(head, outputs)
            for part in ("weight", "bias"):
                key = f"{self._head_name}.{part}"
                if key in self._initial:
                    self._initial[key] = self._initial[key][:outputs].clone()

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Add the data seen and the initial weights."""
        x, y = self.stored_samples()
        return {**super().state_dict(), "kept": {"x": x, "y": y}, "initial": dict(self._initial)}

    def structure(self) -> dict[str, Any]:
        """Add the outputs of the initial head."""
        return {**super().structure(), "initial": self._initial_head.out_features}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Give the initial head its saved shape, too."""
        super().rebuild(structure)
        head, outputs = self._initial_head, structure["initial"]
        if head.out_features != outputs:
            self._initial_head = new_linear(
                head.in_features,
                outputs,
                head.bias is not None,
                generator=self.streams.generator("heads"),
            )

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the data seen."""
        super().load_memory(state)
        stored = Samples(state["kept"]["x"], state["kept"]["y"])
        self.check_labels(stored.y)
        self._stored = [stored] if len(stored.y) else []

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the initial weights, which may differ from those this object started with."""
        super().load_state_dict(state)
        self._check_initial(state["initial"])
        self._initial = dict(state["initial"])
        self._initial_head = self._initial_head.to_empty(device=self.streams.place)

    @property
    def _head_name(self) -> str:
        names = [name for name, module in self.model.named_modules() if module is self.head]
        return str(names[0])

    def _check_initial(self, initial: dict[str, Tensor]) -> None:
        """Raise InputError unless the saved initial weights fit the network."""
        own = {name: (value.shape, value.dtype) for name, value in self.model.state_dict().items()}
        for part, value in self._initial_head.state_dict().items():
            own[f"{self._head_name}.{part}"] = value.shape, value.dtype
        if {name: (value.shape, value.dtype) for name, value in initial.items()} != own:
            raise InputError("initial: the saved initial weights belong to another network")
