"""MEMO: tasks share the shallow layers and each gets its own deep block.

Source: Zhou et al., "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental
Learning", ICLR 2023; reference code wangkiw/ICLR23-MEMO.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from gradmix._setting_types import Switch, setting
from gradmix.methods.expanding import Expanding, ExpandingOptions, SpecialisedNetwork
from gradmix.methods.parts import Options
from gradmix.models.network import check_splittable


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

    options_type: ClassVar[type[Options]] = MEMOOptions
    options: MEMOOptions

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        first = check_splittable(model, "MEMO")
        net = SpecialisedNetwork(first.shared, first.special, first.head, first.draws_randomly)
        super().__init__(net, *args, **kwargs)

    def grow(self, seen: int) -> None:
        """Freeze the shared part, too, if asked for."""
        super().grow(seen)
        self._freeze()

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Freeze the shared part, too, if asked for."""
        super().rebuild(structure)
        self._freeze()

    def _freeze(self) -> None:
        """After the first task, freeze the shared part if the options say so."""
        if self.model.auxiliary is not None and not self.options.train_shared:
            assert self.model.shared is not None
            self.model.shared.requires_grad_(False)
