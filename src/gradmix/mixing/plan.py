"""What is planned for the batches of an epoch: what was drawn, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from gradmix.mixing import blends
from gradmix.types import Partners


class Choices(NamedTuple):
    """What was drawn for S batches: their λ, table, box or hidden layer, and partners."""

    lam: list[float]  # share of the own input
    table: list[int]
    place: list[blends.Box | int | None]
    partners: Partners


class Consequences(NamedTuple):
    """What follows from the choices and needs no network."""

    partner_y: Tensor  # (S, B) labels of the partners
    shares: Tensor  # (S, B) of the own label
    both: Tensor | None  # (S, 2 B) pool indices of rows and partners, where one gather will do


@dataclass(frozen=True)
class Plan:
    """S batches of B rows and how they are mixed."""

    y: Tensor  # (S, B) labels
    index: Tensor | None  # (S, B) where the rows stand in the pool, if they come from it
    mixing: tuple[Choices, Consequences] | None = None  # None: left as they are

    @cached_property
    def labels(self) -> tuple[Tensor, ...]:
        """`y` of each batch; taken apart at once, which is less work than a row at every step."""
        return self.y.unbind()

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """`index` of each batch."""
        assert self.index is not None
        return self.index.unbind()

    def state_dict(self) -> dict[str, Any]:
        """What was drawn; `Mixer.load_plan` works out the rest anew."""
        state: dict[str, Any] = {"index": self.index}
        if self.mixing is not None:
            choices, _ = self.mixing
            partners = choices.partners._asdict()
            state["partners"] = {key: part for key, part in partners.items() if part is not None}
            state |= {"lam": choices.lam, "table": choices.table}
            place = choices.place
            state["place"] = [list(at) if isinstance(at, blends.Box) else at for at in place]
        return state
