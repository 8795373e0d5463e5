"""iCaRL: herded exemplars, distillation of sigmoid outputs, nearest mean of exemplars.

Source: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017;
reference forms in aimagelab/mammoth (loss) and G-U-N/PyCIL (herding).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.methods.losses import as_soft, smooth_labels
from gradmix.methods.nearest_mean import NearestMean
from gradmix.methods.old_network import WithOldNetwork


class ICaRL(NearestMean, WithOldNetwork):
    """Binary cross-entropy on every output; old outputs are distilled from the old network.

    New samples and exemplars share each batch. A prediction is the class whose exemplars have the
    nearest mean embedding. The predictions of the trained head are reported as "head".

    Mixing: soft labels for the outputs of new classes; the targets of old classes are the old
    network's answers to the mixed input. Criterion: the trained head, with the softmax form of its
    gradients, although the loss is binary and predictions use means.
    """

    needs_new_classes: ClassVar[bool] = True
    softmax: ClassVar[bool] = False
    selection: ClassVar[str | None] = "herding"

    def train_step(self, step: int) -> Tensor:
        """Return the binary cross-entropy: labels for new outputs, old answers for old ones."""
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        targets = as_soft(mixed.targets, outputs.shape[1]).to(outputs.dtype)
        targets = smooth_labels(targets, self.settings.label_smoothing)
        if self.old is not None:
            answers = self.old_logits(mixed).sigmoid()
            targets = torch.cat([answers, targets[:, self.old_classes :]], dim=1)
        return F.binary_cross_entropy_with_logits(outputs, targets)
