"""MEMO: tasks share the shallow layers and each gets its own deep block.

Source: Zhou et al., "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental
Learning", ICLR 2023; reference code wangkiw/ICLR23-MEMO.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, Switch, setting
from gradmix.methods.base import Options
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft, fold_old_classes
from gradmix.models.heads import drop_output, grow_head, widen_head
from gradmix.models.network import Mix, Network, Part, check_splittable, new_linear
from gradmix.types import Samples


class MEMOOptions(Options):
    """The reference's values, except for `align`.

    Alignment corrects for training sets in which old classes are rare. Here half of each batch is
    replayed, and alignment costs accuracy (MNIST, ER's protocol, one seed: 0.847 with it, 0.904
    without).
    """

    auxiliary: Number = setting(1.0, "Weight of the new-versus-old loss.", ge=0)
    train_shared: Switch = setting(1.0, "0 freezes the shared part after the first task.")
    align: Switch = setting(0.0, "1 scales the weights of new classes to the old ones.")


class SpecialisedNetwork(nn.Module):
    """One shared part, a special part for every task, and a head on all their embeddings."""

    def __init__(self, first: Network) -> None:
        super().__init__()
        self.draws_randomly = first.draws_randomly
        self.shared: Part = first.shared
        self.specials = nn.ModuleList([first.special])
        self.head = first.head
        self.auxiliary: nn.Linear | None = None  # one output for all old classes, then the new
        self.shared_frozen = False

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> list[Tensor]:
        """Return the embedding of every special part, (B, d) each."""
        hidden = self.shared(x, mix, at)
        return [special(hidden, mix, at) for special in self.specials]

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits of all classes, (B, C)."""
        logits: Tensor = self.head(torch.cat(self.embeddings(x, mix, at), dim=1))
        return logits

    def add_special(self) -> None:
        """Add a special part, a copy of the last, and freeze the older ones."""
        self.specials.append(copy.deepcopy(self.specials[-1]))
        for special in self.specials[:-1]:
            special.requires_grad_(False)

    def freeze_shared(self) -> None:
        """Freeze the shared part."""
        self.shared.requires_grad_(False)
        self.shared_frozen = True

    def train(self, mode: bool = True) -> SpecialisedNetwork:
        """Set the mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        for part in [*self.specials[:-1], *([self.shared] if self.shared_frozen else [])]:
            part.eval()
        return self


class MEMO(ER):
    """A special block per task on shared blocks; an auxiliary head tells new classes from old.

    The auxiliary head uses the newest block only and has one output for all old classes. The
    option `align` scales the new classes' weights to the mean length of the old ones after each
    task except the first. The special block is the last hidden layer of an MLP and layer 4 of a
    ResNet-18.

    Mixing: soft labels in both losses; the auxiliary loss folds the shares of old classes into
    one. A mix of hidden states inside the special block is applied in every copy of it.
    Criterion: the embedding concatenates those of all blocks; the last layer is the head on it.
    """

    needs_new_classes: ClassVar[bool] = True
    options_type: ClassVar[type[Options]] = MEMOOptions
    options: MEMOOptions
    grows: ClassVar[bool] = True
    model: SpecialisedNetwork

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(SpecialisedNetwork(check_splittable(model, "MEMO")), *args, **kwargs)

    def grow(self, seen: int) -> None:
        """Add a special part from the second task on, and widen the head."""
        net, generator = self.model, self.streams.generator("heads")
        if self.seen == 0:
            net.head = grow_head(self.head, seen, generator=generator)
            return
        width, device = self.head.in_features // len(net.specials), self.head.weight.device
        net.add_special()
        net.head = widen_head(self.head, width * len(net.specials), seen, generator=generator)
        net.auxiliary = new_linear(width, seen - self.seen + 1, generator=generator, device=device)
        if not self.options.train_shared:
            net.freeze_shared()

    def parameters(self) -> list[nn.Parameter]:
        """Return those of the newest special part, the heads and the unfrozen shared part."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def train_step(self, step: int) -> Tensor:
        """Return CE + auxiliary CE with the old classes folded into one."""
        net = self.model
        mixed = self.mixed_batch(step)
        embeddings = net.embeddings(mixed.x, mixed.mix, mixed.at)
        loss = self.cross_entropy(net.head(torch.cat(embeddings, dim=1)), mixed.targets)
        if net.auxiliary is None:
            return loss
        number = net.auxiliary.out_features - 1
        folded = fold_old_classes(as_soft(mixed.targets, self.seen), self.seen - number)
        auxiliary = self.cross_entropy(net.auxiliary(embeddings[-1]), folded)
        return loss + self.options.auxiliary * auxiliary

    def end_task(self, new: Samples) -> None:
        """Align the weights, if asked for, and store random exemplars."""
        auxiliary = self.model.auxiliary
        if auxiliary is not None and auxiliary.out_features > 1 and self.options.align:
            align_weights(self.head, auxiliary.out_features - 1)
        super().end_task(new)

    def drop_outputs(self, label: int) -> None:
        """Remove the output from the auxiliary head, too, if it has one for this class."""
        super().drop_outputs(label)
        auxiliary = self.model.auxiliary
        if auxiliary is not None:
            own = label - (self.seen - auxiliary.out_features)  # output 0 stands for all old ones
            if own >= 1:
                self.model.auxiliary = drop_output(auxiliary, own)

    def structure(self) -> dict[str, Any]:
        """Add the number of special parts and the outputs of the auxiliary head."""
        auxiliary = self.model.auxiliary
        return {
            **super().structure(),
            "specials": len(self.model.specials),
            "auxiliary": 0 if auxiliary is None else auxiliary.out_features,
        }

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make parts and heads of the saved number and shape."""
        net = self.model
        device = self.head.weight.device
        width = self.head.in_features // len(net.specials)
        while len(net.specials) < structure["specials"]:
            net.add_special()
        generator = self.streams.generator("heads")
        inputs, outputs = width * structure["specials"], structure["outputs"]
        net.head = widen_head(self.head, inputs, outputs, generator=generator)
        if structure["auxiliary"]:
            net.auxiliary = new_linear(
                width, structure["auxiliary"], generator=generator, device=device
            )
            if not self.options.train_shared:
                net.freeze_shared()
        self.seen = structure["seen"]


@torch.no_grad()
def align_weights(head: nn.Linear, number_new: int) -> None:
    """Scale the weights of the last `number_new` classes to the mean length of the others."""
    lengths = head.weight.norm(dim=1)
    head.weight[-number_new:] *= lengths[:-number_new].mean() / lengths[-number_new:].mean()
