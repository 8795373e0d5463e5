"""The mixer of gradmix's own training loop: plan an epoch's batches, then mix one after another.

`gradmix.py` offers the same to any other training loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmix.criterion import Pairs
from gradmix.data.pool import ClassIndex, Pool
from gradmix.errors import InputError
from gradmix.mixing.plan import (
    DRAW,
    DRAW_FROM_BATCH,
    DRAW_FROM_POOL,
    SHARES,
    Box,
    Draws,
    Place,
    Request,
    check_rows,
    draw_box,
)
from gradmix.mixing.plan import Plan as Plan
from gradmix.mixing.recipe import Recipe
from gradmix.ranks import ALONE, Ranks
from gradmix.types import MixedBatch, Partners

MOST_COUNTED = 4096
"""Largest number of classes whose mixed pairs are counted; the counts take its square."""


class Mixer:
    """Mixes the batches of one task after another by a recipe; without one they stay unmixed.

    Call `begin_task` for each task, `plan` for each epoch and `mix` for each batch.

    Args:
        recipe: How batches are mixed; None means not at all.
        num_outputs: Outputs of the head, also the number of classes whose pairs are counted.
        host: Draws the numbers that steer a batch: λ, box, mix point.
        generator: Draws partners, on the device of the data.
        mix_points: Places in the network where hidden states can be mixed.
        ranks: The processes that share each batch; a plan covers all of it, `mix` returns a part.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        num_outputs: int,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
        mix_points: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        self.recipe, self.num_outputs = recipe, num_outputs
        self._num_counted = num_outputs if num_outputs <= MOST_COUNTED else 0
        self._host, self._generator = host, generator
        self._mix_points, self._ranks = mix_points, ranks

    def begin_task(self, pool: Pool, num_outputs: int | None = None) -> None:
        """Take the data of a task; the counts start at zero.

        Args:
            pool: The samples that batches and partners come from.
            num_outputs: Outputs of the head now; None if they did not change.
        """
        self.num_outputs = self.num_outputs if num_outputs is None else num_outputs
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        self.classes = self._index.classes  # that have samples in the pool, (K,)
        size = self._num_counted
        self._counts = torch.zeros(size, size, dtype=torch.int64, device=pool.y.device)
        self._mixed_pairs: list[Tensor] = []  # not yet added to the counts

    # --- planning ---------------------------------------------------------------------------

    def plan(self, index: Tensor, pairs: Pairs | None) -> Plan:
        """Return how batches are mixed (Algorithm 1, steps 14 to 22).

        Args:
            index: Pool rows of S batches, (S, B).
            pairs: The harmful pairs of the epoch; None if there are none.
        """
        return self.plan_labels(self._pool.y[index], pairs, index)

    def plan_labels(self, y: Tensor, pairs: Pairs | None, index: Tensor | None = None) -> Plan:
        """Return the same for batches that are known by their labels only, (S, B).

        Without a memory, batches stay unmixed unless the recipe mixes the first task.
        """
        recipe, pool = self.recipe, self._pool
        if recipe is None:
            return self.unmixed(y, index)
        has_memory = pairs is not None if recipe.uses_gradients else pool.num_new < len(pool.y)
        if not (has_memory or recipe.mixes_first_task):
            return self.unmixed(y, index)
        plan = self._follow(recipe, y, index, self._draw(recipe, y, pairs))
        if len(self._counts):
            assert plan.partner_y is not None
            self._mixed_pairs.append((y * self.num_outputs + plan.partner_y).flatten())
        return plan

    def unmixed(self, y: Tensor, index: Tensor | None) -> Plan:
        """Return a plan for batches that stay unmixed, by their labels and pool rows, (S, B)."""
        return Plan(y, index, self._ranks.rows(y.shape[1]))

    def _draw(self, recipe: Recipe, y: Tensor, pairs: Pairs | None) -> Draws:
        lam: list[float] = []
        places: list[Place] = []  # the box or mix point of each batch
        for _ in y:
            place: Place = None
            ratio = float(self._host.beta(*recipe.ratio))
            if recipe.blend == "cutmix":
                place, ratio = draw_box(ratio, self._pool.input_shape, self._host)
            elif recipe.blend == "manifold":
                place = int(self._host.integers(self._mix_points))
            lam.append(ratio)
            places.append(place)
        number = 0 if pairs is None else pairs.number
        table = [min(int(ratio * number), max(number - 1, 0)) for ratio in lam]
        which = torch.tensor(table, device=y.device)[:, None]
        request = Request(y, self._index, self._generator, pairs, which)
        return Draws(lam, table, places, DRAW[recipe.partners](request))

    def _follow(self, recipe: Recipe, y: Tensor, index: Tensor | None, draws: Draws) -> Plan:
        """Derive from the draws what a step needs: labels and pool rows of the partners."""
        rows, replaced, drawn = draws.partners
        partner_y, both = y.gather(1, rows), None
        if replaced is not None and drawn is not None:
            partner_y = torch.where(replaced, self._pool.y[drawn], partner_y)
        if index is not None and self._pool.one_gather:
            partner_index = index.gather(1, rows)
            if replaced is not None and drawn is not None:
                partner_index = torch.where(replaced, drawn, partner_index)
            both = torch.stack([index, partner_index], dim=1)
        lam = torch.tensor(draws.lam, dtype=torch.float64, device=y.device)  # (S,)
        rule, threshold = recipe.label_rule
        shares = SHARES[rule](y, partner_y, lam, self._index.counts, threshold)
        return replace(
            self.unmixed(y, index), draws=draws, partner_y=partner_y, shares=shares, both=both
        )

    # --- mixing -----------------------------------------------------------------------------

    def mix(self, plan: Plan, step: int, x: Tensor | None = None) -> MixedBatch:
        """Return a planned batch, mixed; each of several ranks gets its own rows.

        Args:
            plan: The plan of the epoch.
            step: Number of the batch.
            x: Its inputs, if they do not come from the pool.
        """
        rows, draws = plan.rows, plan.draws
        y = plan.y[step, rows]
        if draws is None:
            return MixedBatch(self._own_inputs(plan, step, x), y)
        assert plan.partner_y is not None and plan.shares is not None  # noqa: PT018
        labels = y, plan.partner_y[step, rows], plan.shares[step, rows]
        targets = soft_targets(*labels, self.num_outputs)  # (B, C)
        lam, place, partners = draws.lam[step], draws.place[step], draws.partners
        if isinstance(place, int) and partners.drawn is None and self._ranks.alone:
            # Partners are rows of the same batch: their hidden states are there already.
            own = self._own_inputs(plan, step, x)
            return MixedBatch(own, targets, manifold(lam, partners.rows[step]), place)
        own, other = self._inputs(plan, partners, step, x)
        if isinstance(place, int):
            return MixedBatch(torch.cat([own, other]), targets, manifold(lam), place)
        if isinstance(place, Box):
            return MixedBatch(cutmix(own, other, place), targets)
        assert self.recipe is not None
        return MixedBatch(BLEND[self.recipe.blend](own, other, lam), targets)

    def _own_inputs(self, plan: Plan, step: int, x: Tensor | None) -> Tensor:
        """Return the inputs of this rank's rows."""
        if x is not None:
            return x
        assert plan.index is not None
        return self._pool.augmented(plan.index[step], plan.rows)

    def _inputs(
        self, plan: Plan, partners: Partners, step: int, x: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of this rank's rows and, row by row, of their partners."""
        rows = plan.rows
        if plan.both is not None:
            own, other = self._pool.inputs(plan.both[step, :, rows].flatten()).chunk(2)
            return own, other
        if self._ranks.alone:
            own = self._own_inputs(plan, step, x)
            other = own.index_select(0, partners.rows[step])  # the same views as in the batch
        else:  # partners may be rows of other ranks
            assert plan.index is not None
            own_rows = torch.arange(rows.start, rows.stop, device=plan.index.device)
            needed = torch.cat([own_rows, partners.rows[step, rows]])
            own, other = self._pool.augmented(plan.index[step], needed).chunk(2)
        if partners.replaced is not None and partners.drawn is not None:
            replaced = partners.replaced[step]  # (B,)
            drawn = partners.drawn[step, replaced]
            if len(drawn):  # all ranks draw views of all of them; this one needs its own
                here, before = replaced[rows], int(replaced[: rows.start].sum())
                views = self._pool.augmented(drawn, slice(before, before + int(here.sum())))
                other[here] = views.to(other.dtype)
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
            InputError: If the plan does not fit the pool, the recipe, the pairs or the network.
        """
        index, size = state["index"], len(self._pool.y)
        check_rows("plan.index", index, size)
        y = self._pool.y[index]
        if "draws" not in state or self.recipe is None:
            return self.unmixed(y, index)
        recipe, draws = self.recipe, Draws.from_state_dict(state["draws"])
        tables, drawn = 1 if pairs is None else pairs.number, draws.partners.drawn
        if recipe.partners in (DRAW_FROM_POOL if drawn is None else DRAW_FROM_BATCH):
            raise InputError(f"plan.draws.partners does not fit {recipe.partners!r} partners")
        if drawn is not None:
            check_rows("plan.draws.partners.drawn", drawn, size)
        if max(draws.table, default=0) >= tables:
            raise InputError(f"plan.draws.table has numbers beyond the {tables} pair tables")
        for place in draws.place:
            if not self._is_place(place, recipe.blend):
                raise InputError(f"plan.draws.place has {place}, not a place of {recipe.blend!r}")
        return self._follow(recipe, y, index, draws)

    def _is_place(self, place: Place, blend: str) -> bool:
        if blend == "manifold":
            return isinstance(place, int) and 0 <= place < self._mix_points
        if blend != "cutmix":
            return place is None
        if not isinstance(place, Box):
            return False
        height, width = self._pool.input_shape[1:]
        top, bottom, left, right = place
        return 0 <= top <= bottom <= height and 0 <= left <= right <= width


def soft_targets(y: Tensor, partner_y: Tensor, shares: Tensor, num_outputs: int) -> Tensor:
    """Return targets with a share of the own label and the rest of the partner's, (B, C).

    Args:
        y: Labels, (B,).
        partner_y: Labels of the partners, (B,).
        shares: Share of the own label in each target, (B,).
        num_outputs: C.
    """
    targets = torch.zeros(len(y), num_outputs, dtype=shares.dtype, device=y.device)
    targets.scatter_(1, y[:, None], shares[:, None])
    return targets.scatter_add_(1, partner_y[:, None], (1 - shares)[:, None])


# --- blends: whole inputs, a pasted box, or hidden states ----------------------------------------


def linear(x: Tensor, partners: Tensor, lam: float) -> Tensor:
    """Return λ x + (1−λ) x of the partner (Eq. 2); the result overwrites `partners`.

    Args:
        x: Inputs, (B, …).
        partners: Inputs of the partners, row by row, (B, …).
        lam: λ, the share of the own input.
    """
    return partners.lerp_(x, lam)


BLEND: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"linear": linear}
"""The blends of whole inputs, (B, …), by name; CutMix and Manifold Mixup need more than λ."""


def cutmix(x: Tensor, partners: Tensor, box: Box) -> Tensor:
    """Return `x` with the box of each partner pasted in.

    Args:
        x: Images, (B, C, H, W).
        partners: Images of the partners, row by row, (B, C, H, W).
        box: The box, the same in all images.
    """
    mixed = x.clone()
    top, bottom, left, right = box
    mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    return mixed


def manifold(lam: float, rows: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function that mixes hidden states with those of their partners (Manifold Mixup).

    Args:
        lam: λ, the share of the own hidden state.
        rows: Row of each sample's partner in the batch, (B,). None: the second half of the hidden
            states are partners from outside the batch.
    """

    def mix(h: Tensor) -> Tensor:
        own, other = h.chunk(2) if rows is None else (h, h.index_select(0, rows))
        return torch.lerp(other, own, lam)

    return mix
