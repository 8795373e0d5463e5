"""The mixer of gradmix's own training loop: plan an epoch's batches, then mix one after another.

`gradmix.py` offers the same to any other training loop.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gradmix.criterion.selector import Pairs
from gradmix.data.pool import ALL, ClassIndex, Rows
from gradmix.errors import InputError
from gradmix.mixing import blends
from gradmix.mixing.partners import DRAW, Request
from gradmix.mixing.plan import Draws, Place, check_draws, check_rows
from gradmix.mixing.plan import Plan as Plan
from gradmix.mixing.recipe import Recipe
from gradmix.ranks import ALONE, Ranks
from gradmix.types import MixedBatch, Partners

MOST_COUNTED = 4096
"""Largest number of classes whose mixed pairs are counted; the counts take its square."""


class MixerPool(Protocol):
    """T_l ∪ M, from which batches are fetched."""

    num_new: int  # samples of the current task; the memory's follow
    y: Tensor  # (N,)
    input_shape: tuple[int, ...]  # of one sample
    one_gather: bool  # whether fetching a sample again is cheap and gives the same input

    def inputs(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, without random transforms."""

    def augmented(self, index: Tensor, rows: Rows = ALL) -> Tensor:
        """Network inputs of the samples `index[rows]`; transforms are drawn for all of `index`."""


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
        self._counts = torch.zeros(0, 0, dtype=torch.int64)
        self._mixed_pairs: list[Tensor] = []  # not yet added to the counts
        self._host, self._generator = host, generator
        self._mix_points, self._ranks = mix_points, ranks

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
        rule, threshold = recipe.label_rule
        shares = blends.SHARES[rule](y, partner_y, lam, self._index.counts, threshold)
        return Plan(y, index, draws, partner_y, shares, both)

    # --- mixing -----------------------------------------------------------------------------

    def mix(self, plan: Plan, step: int, x: Tensor | None = None) -> MixedBatch:
        """Return one of the planned batches, mixed; of many ranks, each gets its rows.

        Args:
            plan: The plan of the epoch.
            step: Number of the batch.
            x: Its inputs, if they do not come from the pool.
        """
        if not self._ranks.alone:
            return self._mix_rows(plan, step)
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
        return self._blend(own, other, targets, lam, place)

    def _blend(
        self, own: Tensor, other: Tensor, targets: Tensor, lam: float, place: Place
    ) -> MixedBatch:
        """Return inputs blended with those of their partners."""
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

    # --- one of many ranks ------------------------------------------------------------------

    def _mix_rows(self, plan: Plan, step: int) -> MixedBatch:
        """Return the rows of a planned batch that belong to this rank, mixed."""
        assert plan.index is not None
        index, draws = plan.index[step], plan.draws
        rows = self._ranks.rows(len(index))
        y = plan.y[step, rows]
        if draws is None:
            return MixedBatch(self._pool.augmented(index, rows), y)
        assert plan.partner_y is not None and plan.shares is not None  # noqa: PT018
        shares = plan.shares[step, rows]
        targets = soft_targets(y, plan.partner_y[step, rows], shares, self.num_outputs)
        own, other = self._inputs_of_rows(plan, draws.partners, step, rows)
        return self._blend(own, other, targets, draws.lam[step], draws.place[step])

    def _inputs_of_rows(
        self, plan: Plan, partners: Partners, step: int, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of some rows of a batch, and of their partners, also on other ranks."""
        if plan.both is not None:
            pairs = plan.both[step].view(2, -1)[:, rows]
            own, other = self._pool.inputs(pairs.flatten()).chunk(2)
            return own, other
        assert plan.index is not None
        index, device = plan.index[step], plan.index.device
        places = torch.arange(rows.start, rows.stop, device=device)
        both = torch.cat([places, partners.rows[step, rows]])
        own, other = self._pool.augmented(index, both).chunk(2)  # the same views as in the batch
        if partners.replaced is not None and partners.drawn is not None:
            chosen = partners.replaced[step].nonzero().squeeze(1)
            if len(chosen):
                here = ((chosen >= rows.start) & (chosen < rows.stop)).nonzero().squeeze(1)
                fetched = self._pool.augmented(partners.drawn[step][chosen], here)
                other[chosen[here] - rows.start] = fetched.to(other.dtype)
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
        index, size = state["index"], len(self._pool.y)
        check_rows("plan.index", index, size)
        y = self._pool.y[index]
        if "draws" not in state or self.recipe is None:
            return Plan(y, index)
        draws = Draws.from_state_dict(state["draws"])
        tables = 1 if pairs is None else pairs.number
        check_draws(draws, self.recipe, size, tables, self._pool.input_shape, self._mix_points)
        return self._follow(self.recipe, y, index, draws)

    def forget_counts(self) -> None:
        """Drop the counts, because labels now mean other classes."""
        self._counts, self._mixed_pairs = torch.zeros_like(self._counts), []


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
