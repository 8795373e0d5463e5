"""The mixer of gradmix's own training loop: plan an epoch's batches, then mix one after another.

`gradmix.py` offers the same to any other training loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gradmix.criterion.pair_tables import Pairs
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.mixing import blends
from gradmix.mixing.labels import label_shares
from gradmix.mixing.partners import DRAW, DRAW_FROM_BATCH, DRAW_FROM_POOL, Request
from gradmix.mixing.recipe import Recipe
from gradmix.types import MixedBatch, Partners

MOST_COUNTED = 4096
"""Largest number of classes whose mixed pairs are counted; the counts take its square."""

Place = blends.Box | int | None  # the box of CutMix, or the mix point of Manifold Mixup


class MixerPool(Protocol):
    """T_l ∪ M, from which batches are fetched."""

    num_new: int  # samples of the current task; the memory's follow
    y: Tensor  # (N,)
    input_shape: tuple[int, ...]  # of one sample
    one_gather: bool  # whether fetching a sample again is cheap and gives the same input

    def inputs(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, without random transforms."""

    def augmented(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, after random transforms, if there are any."""


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
        place = [list(at) if isinstance(at, blends.Box) else at for at in self.place]
        return {"lam": self.lam, "table": self.table, "place": place, "partners": partners}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Draws:
        """Rebuild saved draws."""
        place = [blends.Box(*at) if isinstance(at, Sequence) else at for at in state["place"]]
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

    def state_dict(self) -> dict[str, Any]:
        """What was drawn; `Mixer.load_plan` derives the rest."""
        state: dict[str, Any] = {"index": self.index}
        return state if self.draws is None else {**state, "draws": self.draws.state_dict()}


class Mixer:
    """Mixes the batches of one task after another by a recipe; without one they stay unmixed.

    Call `begin_task` for each task, `plan` for each epoch and `mix` for each batch.

    Args:
        recipe: How batches are mixed; None means not at all.
        num_outputs: Outputs of the head, also the number of classes whose pairs are counted.
        host: Draws the numbers that steer a batch: λ, box, mix point.
        generator: Draws partners, on the device of the data.
        mix_points: Places in the network where hidden states can be mixed.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        num_outputs: int,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
        mix_points: int = 1,
    ) -> None:
        self.recipe, self.num_outputs = recipe, num_outputs
        self._num_counted = num_outputs if num_outputs <= MOST_COUNTED else 0
        self._counts = torch.zeros(0, 0, dtype=torch.int64)
        self._mixed_pairs: list[Tensor] = []  # not yet added to the counts
        self._host, self._generator = host, generator
        self._mix_points = mix_points

    def begin_task(self, pool: MixerPool, num_outputs: int | None = None) -> None:
        """Take the data of a task; the counts start at zero.

        Args:
            pool: The samples that batches and partners come from.
            num_outputs: Outputs of the head now; None if they did not change.
        """
        self.num_outputs = self.num_outputs if num_outputs is None else num_outputs
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        size = self._num_counted
        self._counts = torch.zeros(size, size, dtype=torch.int64, device=pool.y.device)
        self._mixed_pairs = []

    @property
    def classes(self) -> Tensor:
        """The classes that have samples in the pool, (K,)."""
        return self._index.classes

    # --- planning ---------------------------------------------------------------------------

    def plan(self, index: Tensor, pairs: Pairs | None) -> Plan:
        """Return how batches of pool rows, (S, B), are mixed (Algorithm 1, steps 14 to 22)."""
        return self.plan_labels(self._pool.y[index], pairs, index)

    def plan_labels(self, y: Tensor, pairs: Pairs | None, index: Tensor | None = None) -> Plan:
        """Return the same for batches that are known by their labels only, (S, B).

        Without a memory, batches stay unmixed unless the recipe mixes the first task.
        """
        recipe = self.recipe
        if recipe is None or not (recipe.mixes_first_task or self._has_memory(recipe, pairs)):
            return Plan(y, index)
        plan = self._follow(recipe, y, index, self._draw(recipe, y, pairs))
        if len(self._counts):
            assert plan.partner_y is not None
            self._mixed_pairs.append((y * self.num_outputs + plan.partner_y).flatten())
        return plan

    def _has_memory(self, recipe: Recipe, pairs: Pairs | None) -> bool:
        """Whether there is a memory and, for gradient partners, its harmful pairs."""
        if recipe.uses_gradients:
            return pairs is not None
        return self._pool.num_new < len(self._pool.y)

    def _draw(self, recipe: Recipe, y: Tensor, pairs: Pairs | None) -> Draws:
        drawn = [self._draw_ratio(recipe) for _ in y]
        lam, place = [ratio for ratio, _ in drawn], [at for _, at in drawn]
        number = 0 if pairs is None else pairs.number
        table = [min(int(ratio * number), max(number - 1, 0)) for ratio in lam]
        which = torch.tensor(table, device=y.device)[:, None]
        request = Request(y, self._index, self._generator, pairs, which)
        return Draws(lam, table, place, DRAW[recipe.partners](request))

    def _draw_ratio(self, recipe: Recipe) -> tuple[float, Place]:
        """Draw λ of a batch, and its box or mix point."""
        lam = float(self._host.beta(*recipe.ratio))
        if recipe.blend == "cutmix":
            box, outside = blends.draw_box(lam, self._pool.input_shape, self._host)
            return outside, box
        if recipe.blend == "manifold":
            return lam, int(self._host.integers(self._mix_points))
        return lam, None

    def _follow(self, recipe: Recipe, y: Tensor, index: Tensor | None, draws: Draws) -> Plan:
        """Derive from the draws what a step needs: labels and pool rows of the partners."""
        rows, replaced, drawn = draws.partners
        partner_y, both = y.gather(1, rows), None
        if replaced is not None and drawn is not None:
            partner_y = torch.where(replaced, self._pool.y[drawn], partner_y)
            if index is not None and self._pool.one_gather:
                partner_rows = torch.where(replaced, drawn, index.gather(1, rows))
                both = torch.cat([index, partner_rows], dim=1)
        lam = torch.tensor(draws.lam, dtype=torch.float64, device=y.device)  # (S,)
        shares = label_shares(recipe, y, partner_y, lam, self._index.counts)
        return Plan(y, index, draws, partner_y, shares, both)

    # --- mixing -----------------------------------------------------------------------------

    def mix(self, plan: Plan, step: int, x: Tensor | None = None) -> MixedBatch:
        """Return one of the planned batches, mixed.

        Args:
            plan: The plan of the epoch.
            step: Number of the batch.
            x: Its inputs, if they do not come from the pool.
        """
        y, _, partner_y, shares, _ = plan.batches
        draws = plan.draws
        if draws is None:
            return MixedBatch(self._own_inputs(plan, step, x), y[step])
        targets = soft_targets(y[step], partner_y[step], shares[step], self.num_outputs)
        lam, place = draws.lam[step], draws.place[step]
        if isinstance(place, int) and draws.partners.drawn is None:
            mix = blends.manifold_in_batch(draws.partners.rows[step], lam)
            return MixedBatch(self._own_inputs(plan, step, x), targets, mix, place)
        own, other = self._both_inputs(plan, draws.partners, step, x)
        if isinstance(place, int):
            mix = blends.manifold_from_outside(lam)
            return MixedBatch(torch.cat([own, other]), targets, mix, place)
        if isinstance(place, blends.Box):
            return MixedBatch(blends.cutmix(own, other, place), targets)
        assert self.recipe is not None
        return MixedBatch(blends.BLEND[self.recipe.blend](own, other, lam), targets)

    def _own_inputs(self, plan: Plan, step: int, x: Tensor | None) -> Tensor:
        return self._pool.augmented(plan.batches[1][step]) if x is None else x

    def _both_inputs(
        self, plan: Plan, partners: Partners, step: int, x: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of a batch and, row by row, of its partners."""
        if plan.both is not None:
            own, other = self._pool.inputs(plan.batches[4][step]).chunk(2)
            return own, other
        own = self._own_inputs(plan, step, x)
        other = own.index_select(0, partners.rows[step])  # the same views as in the batch
        if partners.replaced is not None and partners.drawn is not None:
            chosen = partners.replaced[step].nonzero().squeeze(1)
            if len(chosen):
                other[chosen] = self._pool.augmented(partners.drawn[step][chosen]).to(other.dtype)
        return own, other

    # --- state ------------------------------------------------------------------------------

    @property
    def counts(self) -> Tensor:
        """How often each ordered pair of classes was mixed in this task, (C, C).

        Empty, (0, 0), for more than `MOST_COUNTED` classes.
        """
        if self._mixed_pairs:
            outputs = self.num_outputs
            mixed = torch.cat(self._mixed_pairs).bincount(minlength=outputs**2)
            self._counts[:outputs, :outputs] += mixed.view(outputs, outputs)
            self._mixed_pairs = []
        return self._counts

    def load_counts(self, counts: Tensor) -> None:
        """Continue with saved counts; `begin_task` comes first."""
        if counts.shape != self._counts.shape:
            raise InputError(
                f"counts has shape {tuple(counts.shape)}, not {tuple(self._counts.shape)}"
            )
        self._counts, self._mixed_pairs = counts.clone(), []

    def load_plan(self, state: dict[str, Any], pairs: Pairs | None) -> Plan:
        """Rebuild a saved plan; `begin_task` comes first.

        Raises:
            InputError: If the plan does not fit the pool, the recipe or the pairs.
        """
        index = state["index"]
        self._check_rows("plan.index", index)
        y = self._pool.y[index]
        if "draws" not in state or self.recipe is None:
            return Plan(y, index)
        draws = Draws.from_state_dict(state["draws"])
        self._check_draws(self.recipe, draws, 1 if pairs is None else pairs.number)
        return self._follow(self.recipe, y, index, draws)

    def _check_draws(self, recipe: Recipe, draws: Draws, tables: int) -> None:
        other = DRAW_FROM_POOL if draws.partners.drawn is None else DRAW_FROM_BATCH
        if recipe.partners in other:
            raise InputError(f"plan.draws.partners does not fit {recipe.partners!r} partners")
        if draws.partners.drawn is not None:
            self._check_rows("plan.draws.partners.drawn", draws.partners.drawn)
        if max(draws.table, default=0) >= tables:
            raise InputError(f"plan.draws.table has numbers beyond the {tables} pair tables")
        for place in draws.place:
            if not self._is_place(recipe, place):
                raise InputError(f"plan.draws.place has {place}, not a place of {recipe.blend!r}")

    def _check_rows(self, name: str, rows: Tensor) -> None:
        size = len(self._pool.y)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise InputError(f"{name} has rows outside the pool of {size} samples")

    def _is_place(self, recipe: Recipe, place: Place) -> bool:
        if recipe.blend == "cutmix":
            _, height, width = self._pool.input_shape
            return (
                isinstance(place, blends.Box)
                and 0 <= place.top <= place.bottom <= height
                and 0 <= place.left <= place.right <= width
            )
        if recipe.blend == "manifold":
            return isinstance(place, int) and 0 <= place < self._mix_points
        return place is None

    def forget_counts(self) -> None:
        """Drop the counts, because labels now mean other classes."""
        self._counts, self._mixed_pairs = torch.zeros_like(self._counts), []


def soft_targets(y: Tensor, partner_y: Tensor, shares: Tensor, num_outputs: int) -> Tensor:
    """Return targets with `shares` (B,) of the own label and the rest of the partner's, (B, C)."""
    targets = torch.zeros(len(y), num_outputs, device=y.device)
    targets.scatter_(1, y[:, None], shares[:, None])
    return targets.scatter_add_(1, partner_y[:, None], (1 - shares)[:, None])
