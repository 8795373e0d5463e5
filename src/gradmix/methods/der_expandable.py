"""DER, dynamically expandable representation: a new network per task, on which all classes build.

Source: Yan et al., "DER: Dynamically Expandable Representation for Class Incremental Learning",
CVPR 2021; reference code Rhyssiyan/DER-ClassIL. The method `der` is Dark Experience Replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.errors import InputError
from gradmix.memory import random_priority
from gradmix.memory.replay import first_of_each_class
from gradmix.methods.components import Stage
from gradmix.methods.memo import Expanding, ExpandingOptions, SpecialisedNetwork
from gradmix.mixing.plan import check_rows
from gradmix.models.network import Network, new_linear, remove_head
from gradmix.types import Samples


class DERExpandableOptions(ExpandingOptions):
    """The reference's values, except for `classifier`; `align` is PyCIL's way to balance classes.

    The reference trains a new classifier for 30 epochs after 170 of the network. Here the balanced
    set is smaller, and as many epochs have too few steps for a new classifier. The trained one is
    therefore trained on (MNIST, 2 epochs, unmixed, one seed: 0.911 without this stage, 0.937 with
    it).
    """

    classifier: Number = setting(
        1.0, "Epochs of the classifier's training, as a multiple of the epochs.", ge=0
    )
    temperature: Number = setting(5.0, "Divides the logits in the classifier's training.", gt=0)


class DERExpandable(Expanding):
    """A whole network per task; then the classifier alone learns from a balanced set.

    A new network starts as a copy of the last one. Old networks are frozen. The classifier sees
    the embeddings of all networks, and an auxiliary head the newest one. After each task except
    the first, the classifier is trained again on as many samples of every class as there are of
    the rarest.

    Deviations: there are no masks, whose code the authors did not publish; the training has no
    warm-up after which heads start again (the setting `warmup` raises the learning rate); the
    classifier has a bias if the network's head has one; its second training starts from the first,
    with the same optimizer and learning rates.

    Mixing: soft labels in both losses; the auxiliary loss folds the shares of old classes into
    one. Mixes of hidden states are applied in every network. The classifier's training is unmixed.
    Criterion: the embedding concatenates those of all networks; the last layer is the classifier.
    """

    options: DERExpandableOptions = DERExpandableOptions()
    other_state = ("balanced",)
    balanced: Tensor | None = None  # pool rows on which the classifier is trained

    def extended(self, first: Network) -> SpecialisedNetwork:
        """Return a network to which whole networks can be added."""
        head = first.head
        return SpecialisedNetwork(None, remove_head(first), head)

    def stages(self) -> Sequence[Stage]:
        """Return the training of the network and, from the second task on, of the classifier."""
        share = self.options.classifier
        if self.model.auxiliary is None or not share:
            return super().stages()
        return [*super().stages(), self.new_stage("classifier", share, mixed=False)]

    def new_head(self, inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
        """Return a classifier with new weights, as in the reference."""
        bias, device = self.head.bias is not None, self.head.weight.device
        return new_linear(inputs, outputs, bias, generator=generator, device=device)

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage; the classifier's uses as many samples of each class as the rarest has."""
        if stage.name == "classifier":
            y, counts = self.pool.y, self.pool.y.bincount()
            quota = torch.full_like(counts, int(counts[counts > 0].min()))
            priority = random_priority(len(y), self.streams.device("replay"))
            self.balanced = first_of_each_class(y, priority, quota)
        super().begin_stage(stage)

    def trained_modules(self) -> list[nn.Module]:
        """Return the classifier, or all networks."""
        return [self.head if self.stage.name == "classifier" else self.model]

    def epoch_samples(self) -> int:
        """Count the balanced samples while the classifier is trained."""
        if self.stage.name == "classifier" and self.balanced is not None:
            return len(self.balanced)
        return super().epoch_samples()

    def join(self, new: Tensor) -> Tensor:
        """Join new and replayed samples, or return the balanced ones."""
        if self.stage.name == "classifier" and self.balanced is not None:
            return self.balanced[new]
        return super().join(new)

    def train_step(self, step: int) -> Tensor:
        """Return both losses; the classifier alone has the cross-entropy of softened outputs."""
        if self.stage.name != "classifier":
            return super().train_step(step)
        mixed = self.mixed_batch(step)
        with torch.no_grad():  # the networks are not trained
            embeddings = torch.cat(self.model.embeddings(mixed.x, mixed.mix, mixed.at), dim=1)
        logits = self.head(embeddings) / self.options.temperature
        return self.cross_entropy(logits, mixed.targets)

    def end_task(self, new: Samples) -> None:
        """Store exemplars; the balanced set belonged to the task."""
        self.balanced = None
        super().end_task(new)

    def load_stage_state_dict(self, state: dict[str, Any], stage: Stage) -> None:
        """Check the balanced samples against the data of the task, too."""
        if (self.balanced is not None) != (stage.name == "classifier"):
            raise InputError(f"balanced does not fit the stage {stage.name!r}")
        if self.balanced is not None:
            if not len(self.balanced):
                raise InputError("balanced is empty")
            check_rows("balanced", self.balanced, len(self.pool))
        super().load_stage_state_dict(state, stage)
