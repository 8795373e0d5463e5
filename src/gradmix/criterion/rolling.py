"""Embeddings of exemplars, all anew each epoch or, to save time, a rotating part of them.

With `parts` above 1 the exemplars of a task are drawn once. The first epoch embeds all, each later
one every `parts`-th of them, in turn, and takes the others as they were; logits are always of the
head as it is now. With `parts` = 1 all are drawn and embedded each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.criterion.embedding import embeddings_of
from gradmix.criterion.gradients import Exemplars
from gradmix.errors import InputError

Fetch = Callable[[Tensor], Tensor]  # pool indices → network inputs


class Rolling:
    """Which exemplars there are, and what was last seen of them."""

    def __init__(self, parts: int = 1) -> None:
        if parts < 1:
            raise InputError(f"rolling is {parts}; exemplars are embedded in 1 part or more")
        self.parts = parts
        self.clear()

    def clear(self) -> None:
        """Forget, for a new task."""
        self._index: Tensor | None = None
        self._embeddings: Tensor | None = None
        self._turn = 0

    def choose(self, draw: Callable[[], Tensor]) -> Tensor:
        """Pool indices of the exemplars: drawn now, or those of the task."""
        if self.parts == 1:
            return draw()
        if self._index is None:
            self._index = draw()
        return self._index

    def exemplars(
        self, model: nn.Module, head: nn.Linear, fetch: Fetch, index: Tensor, y: Tensor
    ) -> Exemplars:
        """What the head sees of them, and says."""
        seen = self.embeddings(model, head, fetch, index)
        with torch.no_grad():
            return Exemplars(seen, head(seen).float(), y)

    def embeddings(self, model: nn.Module, head: nn.Linear, fetch: Fetch, index: Tensor) -> Tensor:
        """What the head sees of them, (n, d)."""
        if self.parts == 1:
            return embeddings_of(model, head, fetch, index)
        if self._embeddings is None:
            self._embeddings = embeddings_of(model, head, fetch, index)
        else:
            part = slice(self._turn % self.parts, None, self.parts)
            fresh = embeddings_of(model, head, fetch, index[part])
            self._embeddings = self._embeddings.clone()
            self._embeddings[part] = fresh
            self._turn += 1
        return self._embeddings

    def state_dict(self) -> dict[str, Any]:
        """What was chosen and seen; empty if there is nothing to keep."""
        if self._index is None or self._embeddings is None:
            return {}
        return {"index": self._index, "embeddings": self._embeddings, "turn": self._turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self.clear()
        if state:
            self._index, self._embeddings = state["index"], state["embeddings"]
            self._turn = state["turn"]
