"""Replay that is retrieved at each step, because it depends on the network: MIR and ASER."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradmix.methods.er import ER
from gradmix.types import MixedBatch


class Retrieval(ER):
    """ER whose B2 is chosen at each step.

    Mixing: B1 ∪ B2 is mixed as in ER, after retrieval. Criterion: as in ER.
    """

    plans: ClassVar[bool] = False

    @abstractmethod
    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of B2 for the new samples at pool rows `new`, (|B2|,)."""

    def plan_epoch(self, new: Tensor) -> None:
        """Plan nothing: the replayed samples depend on the network at each step."""

    def mixed_batch(self, step: int) -> MixedBatch:
        """Retrieve B2, then mix B1 ∪ B2."""
        assert self.new is not None
        new = self.new[step]
        batch = torch.cat([new, self.retrieve(new)])
        return self.mixer.mix(self.mixer.plan(batch[None], self.selector.pairs), 0)
