"""WA, weight aligning: distillation, and new weights as long as old ones.

Source: Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning",
CVPR 2020; reference form in G-U-N/PyCIL.
"""

from __future__ import annotations

from gradmix.methods.lwf import Distilled
from gradmix.models.heads import align_weights
from gradmix.types import Samples


class WA(Distilled):
    """(1 − μ) · CE + μ · distillation, with the share μ of old classes among all.

    After each task except the first, the weights of the new classes are scaled to the mean length
    of the old ones. The reference draws batches from the joined data, in which old classes are
    rare; here half of each batch is replayed, so there is less bias to correct.

    Mixing: soft labels in the cross-entropy; both networks see the mixed input.
    Criterion: as in ER.
    """

    def end_task(self, new: Samples) -> None:
        """Align the weights and store exemplars."""
        if 0 < self.old_classes < self.seen:
            align_weights(self.head, self.old_classes, self.seen)
        super().end_task(new)
