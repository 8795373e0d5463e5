"""Fine-tuning on new data without replay: the lower bound of every comparison."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from gradmix.methods.er import ER
from gradmix.mixing.mixer import Plan
from gradmix.types import Samples


class FineTuning(ER):
    """Trains on the new data alone.

    Mixing: B1 is mixed within itself. There is no memory to protect, so gradient partners have no
    meaning and are refused.
    """

    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Use batches of new samples only."""
        return self.mixer.plan(new, None)

    def end_task(self, new: Samples) -> None:
        """Store nothing."""
