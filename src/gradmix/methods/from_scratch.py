"""Methods that start every task from the initial weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from gradmix.errors import InputError
from gradmix.methods.er import ER
from gradmix.models.heads import drop_output
from gradmix.models.network import new_linear


class FromScratch(ER):
    """ER that resets the network at the start of every task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._initial = copy.deepcopy(self.model.state_dict())
        self._initial_head = copy.deepcopy(self.head)  # for its shape

    @classmethod
    def learns_stored(cls) -> bool:
        """Return True: a new network knows nothing of earlier tasks."""
        return True

    def grow(self, seen: int) -> None:
        """Start again from the initial weights; new rows of a growing head are drawn again."""
        if self.head.out_features != self._initial_head.out_features:
            self.model.head = copy.deepcopy(self._initial_head)
        self.model.load_state_dict(self._initial)
        super().grow(seen)

    def drop_outputs(self, label: int) -> None:
        """Remove an output; the initial head has no more outputs than the head."""
        super().drop_outputs(label)
        head, outputs = self._initial_head, self.head.out_features
        if head.out_features > outputs:
            self._initial_head = drop_output(head, outputs)
            for part in ("weight", "bias"):
                key = f"{self.head_name}.{part}"
                if key in self._initial:
                    self._initial[key] = self._initial[key][:outputs].clone()

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Add the initial weights."""
        return {**super().state_dict(), "initial": dict(self._initial)}

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the initial weights, which may differ from those this object started with."""
        super().load_state_dict(state)
        self._check_initial(state["initial"])
        self._initial = dict(state["initial"])
        self._initial_head = self._initial_head.to_empty(device=self.streams.place)

    def _check_initial(self, initial: dict[str, Tensor]) -> None:
        """Raise InputError unless the saved initial weights fit the network."""
        own = {name: (value.shape, value.dtype) for name, value in self.model.state_dict().items()}
        for part, value in self._initial_head.state_dict().items():
            own[f"{self.head_name}.{part}"] = value.shape, value.dtype
        if {name: (value.shape, value.dtype) for name, value in initial.items()} != own:
            raise InputError("initial: the saved initial weights belong to another network")
