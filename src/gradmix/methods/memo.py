"""MEMO: tasks share the shallow layers and each gets its own deep block.

Source: Zhou et al., "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental
Learning", ICLR 2023; reference code wangkiw/ICLR23-MEMO. DER (expandable) and TagFex also add a
part of the network for every task and derive from `Expanding`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, Switch, setting
from gradmix.methods.components import Options
from gradmix.methods.er import ExtendsNetwork, NetworkOfParts
from gradmix.methods.losses import as_soft, fold_old_classes
from gradmix.models.heads import align_weights, drop_output, grow_head, widen_head
from gradmix.models.network import Mix, Network, Part, new_linear
from gradmix.types import Samples


class ExpandingOptions(Options):
    """The references' values, except for `align`.

    Alignment corrects for training sets in which old classes are rare. Here half of each batch is
    replayed, and alignment costs accuracy (MNIST, MEMO with ER's protocol, one seed: 0.847 with
    it, 0.904 without).
    """

    auxiliary: Number = setting(1.0, "Weight of the new-versus-old loss.", ge=0)
    align: Switch = setting(0.0, "1 scales the weights of new classes to the old ones.")


class SpecialisedNetwork(NetworkOfParts):
    """One shared part, a special part for every task, and a head on all their embeddings.

    Without a shared part, the special parts are networks without a head. `keeps_shared` says
    whether the shared part is frozen after the first task.
    """

    def __init__(
        self,
        shared: Part | None,
        special: nn.Module,
        head: nn.Linear,
        *,
        keeps_shared: bool = False,
    ) -> None:
        super().__init__()
        self.shared, self.keeps_shared = shared, keeps_shared
        self.specials = nn.ModuleList([special])
        self.head = head
        self.auxiliary: nn.Linear | None = None  # one output for all old classes, then the new

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> list[Tensor]:
        """Return the embedding of every special part, (B, d) each."""
        if self.shared is None:
            networks = (part for part in self.specials if isinstance(part, Network))
            return [network.features(x, mix, at) for network in networks]
        hidden = self.shared(x, mix, at)
        return [special(hidden, mix, at) for special in self.specials]

    def add_special(self) -> None:
        """Add a special part, a copy of the last, and freeze the older ones."""
        added = copy.deepcopy(self.specials[-1])
        self.specials.requires_grad_(False).append(added)
        if self.keeps_shared and self.shared is not None:
            self.shared.requires_grad_(False)


class Expanding(ExtendsNetwork):
    """A special part per task, and an auxiliary head that tells new classes from old.

    The auxiliary head uses the newest part only and has one output for all old classes. The option
    `align` scales the new classes' weights to the mean length of the old ones after each task
    except the first.
    """

    options: ExpandingOptions = ExpandingOptions()
    model: SpecialisedNetwork

    def grow(self, seen: int) -> None:
        """Add a special part from the second task on, and make a head for all of them."""
        net, generator = self.model, self.streams.generator("heads")
        if self.seen == 0:
            net.head = grow_head(self.head, seen, generator=generator)
            return
        width, device = self.head.in_features // len(net.specials), self.head.weight.device
        net.add_special()
        net.head = self.new_head(width * len(net.specials), seen, generator)
        net.auxiliary = new_linear(width, seen - self.seen + 1, generator=generator, device=device)

    def new_head(self, inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
        """Return a head for one more part; it keeps the weights of the others."""
        return widen_head(self.head, inputs, outputs, generator=generator)

    def train_step(self, step: int) -> Tensor:
        """Return CE + auxiliary CE with the old classes folded into one."""
        net, mixed = self.model, self.mixed_batch(step)
        embeddings = net.embeddings(mixed.x, mixed.mix, mixed.at)
        loss = self.class_loss(net.head(torch.cat(embeddings, dim=1)), mixed.targets)
        if net.auxiliary is None:
            return loss
        targets = as_soft(mixed.targets, self.seen)
        return loss + self.auxiliary_loss(net.auxiliary, embeddings[-1], targets)

    def auxiliary_loss(self, head: nn.Linear, newest: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of the newest part's embedding (B, d) with soft labels (B, C).

        The auxiliary head tells new classes from all old ones, folded into one.
        """
        folded = fold_old_classes(targets, self.seen - (head.out_features - 1))
        return self.options.auxiliary * self.cross_entropy(head(newest), folded)

    def end_task(self, new: Samples) -> None:
        """Align the weights, if asked for, and store exemplars."""
        auxiliary = self.model.auxiliary
        if auxiliary is not None and auxiliary.out_features > 1 and self.options.align:
            align_weights(self.head, self.seen - auxiliary.out_features + 1, self.seen)
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
        """Add the number of parts and the outputs of the auxiliary head."""
        auxiliary = self.model.auxiliary
        outputs = 0 if auxiliary is None else auxiliary.out_features
        return {**super().structure(), **self.parts(), "auxiliary": outputs}

    def parts(self) -> dict[str, int]:
        """Return the number of special parts."""
        return {"specials": len(self.model.specials)}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make parts and heads of the saved number and shape."""
        net, device, outputs = self.model, self.head.weight.device, structure["auxiliary"]
        width = self.head.in_features // len(net.specials)
        while len(net.specials) < structure["specials"]:
            net.add_special()
        inputs, generator = width * structure["specials"], self.streams.generator("heads")
        net.head = widen_head(self.head, inputs, structure["outputs"], generator=generator)
        if outputs:
            net.auxiliary = new_linear(width, outputs, generator=generator, device=device)
        self.seen = structure["seen"]


class MEMOOptions(ExpandingOptions):
    """The reference's values, except for `align`."""

    train_shared: Switch = setting(1.0, "0 freezes the shared part after the first task.")


class MEMO(Expanding):
    """A special block per task on shared blocks; an auxiliary head tells new classes from old.

    The special block is the last hidden layer of an MLP and layer 4 of a ResNet-18.

    Mixing: soft labels in both losses; the auxiliary loss folds the shares of old classes into
    one. A mix of hidden states inside the special block is applied in every copy of it.
    Criterion: the embedding concatenates those of all blocks; the last layer is the head on it.
    """

    options: MEMOOptions = MEMOOptions()

    def extended(self, first: Network) -> SpecialisedNetwork:
        """Return a network to which special blocks can be added."""
        keeps_shared = not self.options.train_shared
        return SpecialisedNetwork(
            first.shared, first.special, first.head, keeps_shared=keeps_shared
        )
