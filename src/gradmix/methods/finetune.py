"""Fine-tuning on new data without replay: the lower bound of every comparison."""

from __future__ import annotations

from typing import ClassVar

from gradmix.methods.er import ER


class FineTuning(ER):
    """Trains on the new data alone: the memory stays empty.

    Mixing: B1 is mixed within itself. There is no memory to protect, so gradient partners have no
    meaning and are refused.
    """

    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None
