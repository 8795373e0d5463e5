"""The common shape of our networks: a shared part, a special part and a linear head.

    input ─ shared ─ hidden state ─ special ─ embedding (B, d) ─ head ─ logits (B, C)

ER and its kin train the whole. MEMO keeps one `shared` and a copy of `special` for each task,
FOSTER two whole backbones; both call the parts with the same `mix` and `at` as the whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from gradmix.errors import InputError

Mix = Callable[[Tensor], Tensor]  # a function of hidden states; may return fewer rows


class Linear(nn.Linear):
    """PyTorch's; on the meta device it leaves out initial values, which nobody will see."""

    def reset_parameters(self) -> None:
        """As PyTorch has it, where there are values."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Conv2d(nn.Conv2d):
    """PyTorch's, without initial values on the meta device."""

    def reset_parameters(self) -> None:
        """As PyTorch has it, where there are values."""
        if not self.weight.is_meta:
            super().reset_parameters()


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's, without initial values on the meta device."""

    def reset_parameters(self) -> None:
        """As PyTorch has it, where there are values."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Part(nn.Sequential):
    """Stages that run one after another, between which hidden states can be mixed.

    `mix_after` lists the places: 0 is before the first stage, k after the k-th. The points of
    a network are numbered through its parts, so a part passes over those of the other part.
    """

    def __init__(
        self, *stages: nn.Module | OrderedDict[str, nn.Module], mix_after: Sequence[int] = ()
    ) -> None:
        super().__init__(*stages)  # type: ignore[arg-type]  # modules, or one dict of them
        places = tuple(mix_after)
        if list(places) != sorted(set(places) & set(range(len(self) + 1))):
            raise InputError(
                f"mix_after is {places}; these {len(self)} stages allow "
                f"increasing numbers from 0 to {len(self)}"
            )
        self.mix_after = places
        self.number_points(0, len(places))

    def number_points(self, first: int, of: int) -> None:
        """Say that this part's first mix point is number `first` of a network's `of`."""
        self._first_point, self._mix_points = first, of

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Run all stages; apply `mix` at point `at` if that is one of this part's."""
        if mix is None:
            for stage in self._modules.values():
                x = stage(x)
            return x
        place = self._place(at)
        for number, stage in enumerate(self):
            if number == place:
                x = mix(x)
            x = stage(x)
        return mix(x) if place == len(self) else x

    def _place(self, at: int | None) -> int | None:
        """Before which stage point `at` lies; None if in another part."""
        if at is None or not 0 <= at < self._mix_points:
            raise InputError(
                f"at is {at}; mix points count from 0, and this network has {self._mix_points}"
            )
        own = at - self._first_point
        return self.mix_after[own] if 0 <= own < len(self.mix_after) else None


class Network(nn.Module):
    """A backbone in two parts and a linear head; also made directly, `Network(a, b, head)`.

    Mix point 0 is the input; `mix_points` says how many there are. `embedding_size` is the
    width of what `special` gives; `head` may be replaced by a larger one (see `heads`).
    """

    shared: Part  # the generalised blocks: input → hidden state
    special: Part  # the specialised block: hidden state → embedding (B, d)
    head: nn.Linear

    def __init__(self, shared: Part, special: Part, head: nn.Linear) -> None:
        super().__init__()
        if shared.mix_after[:1] != (0,):
            raise InputError(
                f"shared has mix_after={shared.mix_after}; its first number must be 0, the input"
            )
        self.shared, self.special = shared, special
        self.head = head  # registered last: the criterion takes the last linear layer
        self.embedding_size = head.in_features
        self.mix_points = len(shared.mix_after) + len(special.mix_after)
        shared.number_points(0, self.mix_points)
        special.number_points(len(shared.mix_after), self.mix_points)

    def features(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """The input of the head, (B, embedding_size); `mix` is applied at point `at`."""
        parts: dict[str, Any] = self._modules  # `self.shared` is slow to look up in nn.Module
        hidden = parts["shared"](x, mix, at)
        embedding: Tensor = parts["special"](hidden, mix, at)
        return embedding

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Logits, (B, outputs)."""
        head: Any = self._modules["head"]
        logits: Tensor = head(self.features(x, mix, at))
        return logits


def check_sizes(**sizes: int) -> None:
    """Refuse sizes below 1, by name."""
    for name, value in sizes.items():
        if value < 1:
            raise InputError(f"{name} is {value}; a network needs at least 1")
