"""MEMO: deep layers differ between tasks, shallow ones hardly: share these, add only those.

Source: Zhou et al., "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental
Learning", ICLR 2023; reference code wangkiw/ICLR23-MEMO.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.methods.base import Method, Options
from gradmix.methods.losses import as_soft, check_splittable, fold_old_classes
from gradmix.models.base import Mix, Network, Part
from gradmix.models.heads import drop_output, grow_head, widen_head
from gradmix.types import Samples


@dataclass(frozen=True)
class MEMOOptions(Options):
    """The reference's values, but for `align`.

    It makes up for a training set in which old classes are rare; batches that are half replay are
    not like that, and it then costs accuracy (MNIST, ER's protocol, one seed: 0.847 with it, 0.904
    without).
    """

    auxiliary: float = 1.0  # weight of the new-versus-old loss
    train_shared: float = 1.0  # 0 freezes the shared blocks after the first task
    align: float = 0.0  # 1 scales the weights of new classes to the old ones' after each task

    def __post_init__(self) -> None:
        if not 0 <= self.auxiliary < float("inf"):
            raise InputError(f"auxiliary is {self.auxiliary}; a weight is 0 or more")
        for name in ("train_shared", "align"):
            if getattr(self, name) not in (0, 1):
                raise InputError(f"{name} is {getattr(self, name)}; it is 1, for yes, or 0")


class SpecialisedNetwork(nn.Module):
    """One shared part, a special part for every task, a head on all their embeddings."""

    def __init__(self, first: Network) -> None:
        super().__init__()
        self.shared: Part = first.shared
        self.specials = nn.ModuleList([first.special])
        self.head = first.head
        self.auxiliary: nn.Linear | None = None  # new classes, and one output for all old
        self.shared_rests = False  # whether the shared part is frozen

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> list[Tensor]:
        """What every special part makes of the shared hidden state."""
        hidden = self.shared(x, mix, at)
        return [special(hidden, mix, at) for special in self.specials]

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Logits of all classes."""
        logits: Tensor = self.head(torch.cat(self.embeddings(x, mix, at), dim=1))
        return logits

    def add_special(self) -> None:
        """One more special part, starting as a copy of the last; older ones rest for good."""
        self.specials.append(copy.deepcopy(self.specials[-1]))
        for special in self.specials[:-1]:
            special.requires_grad_(False)

    def rest_shared(self) -> None:
        """Freeze the shared part."""
        self.shared.requires_grad_(False)
        self.shared_rests = True

    def train(self, mode: bool = True) -> SpecialisedNetwork:
        """Frozen parts stay in evaluation mode."""
        super().train(mode)
        for part in [*self.specials[:-1], *([self.shared] if self.shared_rests else [])]:
            part.eval()
        return self


class MEMO(Method):
    """A special block per task on shared blocks; an auxiliary head tells new classes from old.

    The auxiliary head sees the newest block only and has one output for all old classes. If asked
    for, after each task but the first the new classes' weights are scaled to the mean length of
    the old ones'. For an MLP the special block is the last hidden layer, for ResNet-18 layer4.

    Mixing: soft labels in both losses; for the auxiliary one the old classes' shares are folded
    into one. A mix of hidden states inside the special block is applied in every copy of it.
    Criterion: the embedding is the concatenation of all blocks', the last layer the head on it.
    """

    options_type: ClassVar[type[Options]] = MEMOOptions
    grows: ClassVar[bool] = True
    model: SpecialisedNetwork

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(SpecialisedNetwork(check_splittable(model, "MEMO")), *args, **kwargs)

    def grow(self, seen: int) -> None:
        """A special part for every task but the first, and a head for all."""
        net = self.model
        with self.streams.as_global("heads"):
            if self.seen == 0:
                net.head = grow_head(self.head, seen)
                return
            width = self.head.in_features // len(net.specials)
            net.add_special()
            net.head = widen_head(self.head, width * len(net.specials), seen)
            net.auxiliary = nn.Linear(width, seen - self.seen + 1).to(self.head.weight.device)
        if not self._options.train_shared:
            net.rest_shared()

    @property
    def _options(self) -> MEMOOptions:
        assert isinstance(self.options, MEMOOptions)
        return self.options

    def parameters(self) -> list[nn.Parameter]:
        """The newest special part, the heads and, unless frozen, the shared part."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def train_step(self, step: int) -> Tensor:
        """CE + auxiliary CE with the old classes folded into one."""
        net = self.model
        mixed = self.mixed_batch(step)
        embeddings = net.embeddings(mixed.x, mixed.mix, mixed.at)
        loss = F.cross_entropy(net.head(torch.cat(embeddings, dim=1)), mixed.targets)
        if net.auxiliary is None:
            return loss
        number = net.auxiliary.out_features - 1
        folded = fold_old_classes(as_soft(mixed.targets, self.seen), self.seen - number)
        auxiliary = F.cross_entropy(net.auxiliary(embeddings[-1]), folded)
        return loss + self._options.auxiliary * auxiliary

    def end_task(self, new: Samples) -> None:
        """Align the weights, keep random exemplars."""
        auxiliary = self.model.auxiliary
        if auxiliary is not None and auxiliary.out_features > 1 and self._options.align:
            align_weights(self.head, auxiliary.out_features - 1)
        super().end_task(new)

    def drop_outputs(self, label: int) -> None:
        """In the auxiliary head, too, if it has one for this class."""
        super().drop_outputs(label)
        auxiliary = self.model.auxiliary
        if auxiliary is not None:
            own = label - (self.seen - auxiliary.out_features)  # output 0 is of all old classes
            if own >= 1:
                self.model.auxiliary = drop_output(auxiliary, own)

    def structure(self) -> dict[str, Any]:
        """How many special parts, and outputs of the auxiliary head."""
        auxiliary = self.model.auxiliary
        return {
            **super().structure(),
            "specials": len(self.model.specials),
            "auxiliary": 0 if auxiliary is None else auxiliary.out_features,
        }

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Parts and heads of the saved number and shape."""
        net = self.model
        device = self.head.weight.device
        width = self.head.in_features // len(net.specials)
        while len(net.specials) < structure["specials"]:
            net.add_special()
        with self.streams.as_global("heads"):
            net.head = widen_head(self.head, width * structure["specials"], structure["outputs"])
            if structure["auxiliary"]:
                net.auxiliary = nn.Linear(width, structure["auxiliary"]).to(device)
                if not self._options.train_shared:
                    net.rest_shared()
        self.seen = structure["seen"]


@torch.no_grad()
def align_weights(head: nn.Linear, number_new: int) -> None:
    """Scale the last `number_new` classes' weights to the mean length of the others'."""
    lengths = head.weight.norm(dim=1)
    head.weight[-number_new:] *= lengths[:-number_new].mean() / lengths[-number_new:].mean()
