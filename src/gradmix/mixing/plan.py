"""Plans: which rows of the pool the batches of an epoch contain, and how they are mixed.

`Mixer.plan` draws a plan and `Mixer.mix` follows it. A checkpoint contains only what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.mixing.blends import Box
from gradmix.mixing.partners import DRAW_FROM_BATCH, DRAW_FROM_POOL
from gradmix.mixing.recipe import Recipe
from gradmix.types import Partners

Place = Box | int | None  # the box of CutMix, or the mix point of Manifold Mixup


@dataclass(frozen=True)
class Draws:
    """What is drawn to mix S batches of B rows."""

    lam: list[float]  # (S) share of the own input
    table: list[int]  # (S) number of the pair table that each batch uses
    place: list[Place]  # (S) where batches are mixed
    partners: Partners  # (S, B)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        partners = {
            name: part for name, part in self.partners._asdict().items() if part is not None
        }
        place = [list(at) if isinstance(at, Box) else at for at in self.place]
        return {"lam": self.lam, "table": self.table, "place": place, "partners": partners}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Draws:
        """Rebuild saved draws."""
        place = [Box(*at) if isinstance(at, Sequence) else at for at in state["place"]]
        return cls(state["lam"], state["table"], place, Partners(**state["partners"]))


@dataclass(frozen=True)
class Plan:
    """S batches of B rows and how they are mixed."""

    y: Tensor  # (S, B) labels
    index: Tensor | None = None  # (S, B) rows of the pool; None if inputs come from elsewhere
    draws: Draws | None = None  # None: the batches stay unmixed
    partner_y: Tensor | None = None  # (S, B) labels of the partners
    shares: Tensor | None = None  # (S, B) share of the own label in the target
    both: Tensor | None = None  # (S, 2 B) pool rows of samples and partners, to fetch in one go

    @cached_property
    def batches(self) -> tuple[tuple[Tensor, ...], ...]:
        """`y`, `index`, `partner_y`, `shares` and `both`, each split into S batches."""
        parts = (self.y, self.index, self.partner_y, self.shares, self.both)
        return tuple(() if part is None else part.unbind() for part in parts)

    def needed(self, step: int, rows: slice) -> Tensor:
        """Return the pool rows of some rows of a batch and of their partners."""
        assert self.index is not None
        index = self.index[step]
        parts = [index[rows]]
        if self.draws is not None:
            other, replaced, drawn = self.draws.partners
            parts.append(index[other[step, rows]])
            if replaced is not None and drawn is not None:
                parts.append(drawn[step, rows][replaced[step, rows]])
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """What was drawn; `Mixer.load_plan` derives the rest."""
        state: dict[str, Any] = {"index": self.index}
        return state if self.draws is None else {**state, "draws": self.draws.state_dict()}


# --- saved plans: types, shapes and numbers were checked by the schema of the file ---------------


def check_draws(
    draws: Draws,
    recipe: Recipe,
    pool_size: int,
    tables: int,
    input_shape: tuple[int, ...],
    mix_points: int,
) -> None:
    """Raise InputError unless saved draws fit the recipe, the pool, the pairs and the network."""
    other = DRAW_FROM_POOL if draws.partners.drawn is None else DRAW_FROM_BATCH
    if recipe.partners in other:
        raise InputError(f"plan.draws.partners does not fit {recipe.partners!r} partners")
    if draws.partners.drawn is not None:
        check_rows("plan.draws.partners.drawn", draws.partners.drawn, pool_size)
    if max(draws.table, default=0) >= tables:
        raise InputError(f"plan.draws.table has numbers beyond the {tables} pair tables")
    for place in draws.place:
        if not _is_place(place, recipe.blend, input_shape, mix_points):
            raise InputError(f"plan.draws.place has {place}, not a place of {recipe.blend!r}")


def check_rows(name: str, rows: Tensor, size: int) -> None:
    """Raise InputError if saved rows are not rows of a pool of `size` samples."""
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise InputError(f"{name} has rows outside the pool of {size} samples")


def _is_place(place: Place, blend: str, input_shape: tuple[int, ...], mix_points: int) -> bool:
    if blend == "manifold":
        return isinstance(place, int) and 0 <= place < mix_points
    if blend != "cutmix":
        return place is None
    if not isinstance(place, Box):
        return False
    _, height, width = input_shape
    top, bottom, left, right = place
    return 0 <= top <= bottom <= height and 0 <= left <= right <= width
