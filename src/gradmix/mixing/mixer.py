"""Criterion and mixing together, for the library's own loop; `drop_in.py` has it for any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion.selector import Judge, JudgedPool, Judging
from gradmix.mixing import blends
from gradmix.mixing.labels import remix_shares, soft_targets
from gradmix.mixing.partners import DRAW, ClassIndex
from gradmix.mixing.plan import Choices, Consequences, Plan
from gradmix.mixing.recipe import Recipe
from gradmix.types import MixedBatch, PairTable, Partners

MOST_COUNTED = 4096
"""Classes whose mixed pairs are counted; of more, the counts would fill the memory."""


class SamplePool(JudgedPool, Protocol):
    """T_l ∪ M, as batches are fetched from it."""

    input_shape: tuple[int, ...]  # of one sample
    one_gather: bool  # whether fetching a sample anew gives the same, and at little cost

    def views(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, after random transforms, if there are any."""


class Mixer:
    """Mixes the batches of one task after another by a recipe; `None` leaves them unmixed.

    Per task `begin_task`, per epoch `refresh` and `plan`, per batch `mix`. `host` draws the
    scalars that steer a batch, `generator` what is drawn per sample.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        num_outputs: int,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
        mix_points: int = 1,
        judging: Judging | None = None,
    ) -> None:
        settings = Judging() if judging is None else judging
        self.recipe = recipe
        self.judge = Judge(recipe, settings, host=host, generator=generator)
        self.num_outputs = num_outputs
        self._num_classes = num_outputs  # of the counts, whatever the head has grown to
        self._counts = torch.zeros(0, 0, dtype=torch.int64)
        self._pairs_mixed: list[Tensor] = []  # since `counts` was last asked for
        self._host, self._generator = host, generator
        self._mix_points = mix_points

    def begin_task(self, pool: SamplePool, num_outputs: int | None = None) -> None:
        """Take the pool that partners come from; forget the last task's pairs and counts.

        `num_outputs` are the head's now, if it grows.
        """
        self.num_outputs = self.num_outputs if num_outputs is None else num_outputs
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        self.judge.begin_task(pool, self._index)
        size = self._num_classes if self._num_classes <= MOST_COUNTED else 0
        self._counts = torch.zeros(size, size, dtype=torch.int64, device=pool.y.device)
        self._pairs_mixed = []

    @property
    def pairs(self) -> PairTable | None:
        """The pair table of the last batch's λ, or of the middle one after a refresh."""
        return self.judge.tables[self.judge.latest] if self.judge.tables else None

    @property
    def classes(self) -> Tensor:
        """The classes that have samples in the pool."""
        return self._index.classes

    def refresh(self, model: nn.Module, head: nn.Linear | None = None) -> None:
        """Judge pairs by the network as it is now, if the recipe asks for it."""
        self.judge.refresh(model, head)

    def plan(self, y: Tensor, index: Tensor | None = None) -> Plan:
        """Say how batches are mixed: λ, partners, labels (Algorithm 1, steps 14 to 22).

        `y` are labels, (S, B); `index` says where the rows stand in the pool, if they do.
        """
        recipe = self.recipe
        if recipe is None or (recipe.uses_gradients and not self.judge.number):
            return Plan(y, index)
        choices = self._choose(recipe, y, index)
        follows = self._follow(recipe, choices, y, index)
        if len(self._counts):
            self._pairs_mixed.append((y * self.num_outputs + follows.partner_y).flatten())
        return Plan(y, index, (choices, follows))

    def _choose(self, recipe: Recipe, y: Tensor, index: Tensor | None) -> Choices:
        number = self.judge.number
        ratios: list[float] = []
        table: list[int] = []
        place: list[blends.Box | int | None] = []
        for _ in y:
            lam, where = float(self._host.beta(*recipe.ratio)), None
            table.append(min(int(lam * number), max(number - 1, 0)))
            if recipe.blend == "cutmix":
                where, lam = blends.draw_box(lam, self._pool.input_shape, self._host)
            layer = (
                int(self._host.integers(self._mix_points)) if recipe.blend == "manifold" else None
            )
            ratios.append(lam)
            place.append(where if layer is None else layer)
        judgement = self.judge.of_batches(table, ratios, index)
        partners = DRAW[recipe.partners](y, self._index, judgement, self._generator)
        return Choices(ratios, table, place, partners)

    def _follow(
        self, recipe: Recipe, choices: Choices, y: Tensor, index: Tensor | None
    ) -> Consequences:
        pool, (rows, replaced, drawn) = self._pool, choices.partners
        partner_y, both = y.gather(1, rows), None
        if replaced is not None and drawn is not None:
            partner_y = torch.where(replaced, pool.y[drawn], partner_y)
            if index is not None and pool.one_gather:
                both = torch.cat([index, torch.where(replaced, drawn, index.gather(1, rows))], 1)
        lam = torch.tensor(choices.lam, dtype=torch.float64, device=y.device)
        if recipe.labels == "remix":
            shares = remix_shares(y, partner_y, lam, self._index.counts, recipe.tau)
            return Consequences(partner_y, shares, both)
        return Consequences(partner_y, lam.to(torch.float32)[:, None].expand_as(y), both)

    def load_plan(self, state: dict[str, Any]) -> Plan:
        """A saved plan; `begin_task` gave the pool."""
        index = state["index"]
        y = self._pool.y[index]
        if "partners" not in state or self.recipe is None:
            return Plan(y, index)
        place = [blends.Box(*at) if isinstance(at, Sequence) else at for at in state["place"]]
        partners = Partners(**state["partners"])
        choices = Choices(state["lam"], state["table"], place, partners)
        return Plan(y, index, (choices, self._follow(self.recipe, choices, y, index)))

    def mix(self, plan: Plan, step: int, x: Tensor | None = None) -> MixedBatch:
        """One of the planned batches; `x` are its inputs if they do not come from the pool."""
        recipe, y = self.recipe, plan.labels[step]
        if recipe is None or plan.mixing is None:
            return MixedBatch(self._own(plan, step, x), y)
        choices, follows = plan.mixing
        self.judge.latest = choices.table[step]
        targets = soft_targets(y, follows.partner_y[step], follows.shares[step], self.num_outputs)
        lam, place = choices.lam[step], choices.place[step]
        if isinstance(place, int) and choices.partners.drawn is None:
            mix = blends.manifold_in_batch(choices.partners.rows[step], lam)
            return MixedBatch(self._own(plan, step, x), targets, mix, place)
        own, other = self._fetch(plan, step, x)
        if isinstance(place, int):
            mix = blends.manifold_from_outside(lam)
            return MixedBatch(torch.cat([own, other]), targets, mix, place)
        if isinstance(place, blends.Box):
            return MixedBatch(blends.cutmix(own, other, place), targets)
        return MixedBatch(blends.linear(own, other, lam), targets)

    def _own(self, plan: Plan, step: int, x: Tensor | None) -> Tensor:
        """Inputs of a batch."""
        return self._pool.views(plan.rows[step]) if x is None else x

    def _fetch(self, plan: Plan, step: int, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs of a batch and, row by row, of its partners."""
        assert plan.mixing is not None
        choices, follows = plan.mixing
        if follows.both is not None:
            own, other = self._pool.images(follows.both[step]).chunk(2)
            return own, other
        rows, replaced, drawn = choices.partners
        own = self._own(plan, step, x)
        other = own.index_select(0, rows[step])  # the same views as in the batch
        if replaced is not None and drawn is not None:
            chosen = replaced[step].nonzero().squeeze(1)
            if len(chosen):
                other[chosen] = self._pool.views(drawn[step][chosen]).to(other.dtype)
        return own, other

    @property
    def counts(self) -> Tensor:
        """How often each ordered pair of classes was mixed in this task, (C, C).

        Empty, (0, 0), if there are more than `MOST_COUNTED` classes.
        """
        if self._pairs_mixed:
            outputs = self.num_outputs
            mixed = torch.cat(self._pairs_mixed).bincount(minlength=outputs**2)
            self._counts[:outputs, :outputs] += mixed.view(outputs, outputs)
            self._pairs_mixed = []
        return self._counts

    def forget_pairs(self) -> None:
        """Drop tables and counts, when labels come to mean other classes."""
        self.judge.forget_pairs()
        self._pairs_mixed, self._counts = [], torch.zeros_like(self._counts)

    def state_dict(self) -> dict[str, Any]:
        """The judge's state and the counts; the generators belong to whoever passed them."""
        return {"counts": self.counts.clone(), **self.judge.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved tables and counts; `begin_task` gave the pool."""
        self._counts, self._pairs_mixed = state["counts"].clone(), []
        self.judge.load_state_dict(state)
