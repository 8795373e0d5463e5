"""Criterion and mixing together, for the library's own loop; `drop_in.py` has it for any other."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion import PAIRINGS, Exemplars, embed, find_head, pair_tables
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing import blends
from gradmix.mixing.labels import rarer_classes, remix_shares, soft_targets
from gradmix.mixing.partners import DRAW, ClassIndex
from gradmix.mixing.recipes import Recipe
from gradmix.types import Batch, MixedBatch, PairTable, Partners


class SamplePool(Protocol):
    """T_l ∪ M: the current task's `num_new` samples, then the memory's."""

    num_new: int
    y: Tensor
    one_gather: bool  # whether fetching a sample anew gives the same, and at little cost

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, as they are."""

    def views(self, index: Tensor) -> Tensor:
        """The same after random transforms, if there are any."""


class Mixer:
    """Mixes the batches of one task after another by a recipe; `None` leaves them unmixed.

    Per task `begin_task`, per epoch `refresh`, per batch `mix`. `host` draws the scalars that
    steer a batch, `generator` what is drawn per sample.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        num_outputs: int,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
        mix_points: int = 1,
        exemplars_per_class: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
    ) -> None:
        if exemplars_per_class < 1:
            raise InputError(
                f"exemplars_per_class is {exemplars_per_class}; the criterion needs at least 1"
            )
        if pairing not in PAIRINGS:
            raise UnknownNameError("pairing", pairing, PAIRINGS)
        if average not in ("sample", "class"):
            raise UnknownNameError("average", average, ("sample", "class"))
        self.recipe = recipe
        self.num_outputs = num_outputs
        self._num_classes = num_outputs  # of the counts, whatever the head has grown to
        self.tables: tuple[PairTable, ...] = ()
        self._counts = torch.zeros(num_outputs, num_outputs, dtype=torch.int64)
        self._pairs_mixed: list[Tensor] = []  # since `counts` was last asked for
        self._latest = 0  # which table the last batch used
        self._host, self._generator = host, generator
        self._mix_points = mix_points
        self._exemplars_per_class = exemplars_per_class
        self._pairing, self._average = pairing, average

    def begin_task(self, pool: SamplePool, num_outputs: int | None = None) -> None:
        """Take the pool that partners come from; forget the last task's pairs and counts.

        `num_outputs` are the head's now, if it grows.
        """
        self.num_outputs = self.num_outputs if num_outputs is None else num_outputs
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        self._new = ClassIndex(pool.y[: pool.num_new], self.num_outputs)
        self._new_classes = self._new.classes.tolist()
        self.tables = ()
        size = (self._num_classes, self._num_classes)
        self._counts = torch.zeros(size, dtype=torch.int64, device=pool.y.device)
        self._pairs_mixed = []
        self._rarer = rarer_classes(self._index.counts)

    @property
    def pairs(self) -> PairTable | None:
        """The pair table of the last batch's λ, or of the middle one after a refresh."""
        return self.tables[self._latest] if self.tables else None

    @property
    def negative_rate(self) -> float | None:
        """The share of class pairs in S⁻, over all tables; None without one."""
        rates = [table.negative_rate for table in self.tables]
        return sum(rates) / len(rates) if rates else None

    @property
    def classes(self) -> Tensor:
        """The classes that have samples in the pool."""
        return self._index.classes

    def refresh(self, model: nn.Module, head: nn.Linear | None = None) -> None:
        """Compute the pair tables anew (Algorithm 1, steps 3 to 9), if the recipe needs any.

        The exemplars of a class are all it has in memory and up to `exemplars_per_class`
        drawn from the current data. Without a memory there is nothing to protect and no table.
        With one table per epoch its λ is drawn (step 4); several cover 0 to 1 evenly, and every
        batch uses the one nearest its own λ.
        """
        recipe, pool = self.recipe, self._pool
        if recipe is None or not recipe.uses_gradients or pool.num_new == len(pool.y):
            return
        head = find_head(model) if head is None else head
        index = self._draw_exemplars()
        exemplars = embed(model, head, pool.images(index), pool.y[index])
        memory = Exemplars(*(part[index >= pool.num_new] for part in exemplars))
        number = recipe.tables
        ratios = [(k + 0.5) / number for k in range(number)]
        self.tables = pair_tables(
            exemplars,
            memory,
            [self._draw_ratio(recipe)] if number == 1 else ratios,
            bias=head.bias is not None,
            pairing=self._pairing,
            average=self._average,
        )
        self._latest = number // 2

    def _draw_exemplars(self) -> Tensor:
        """Pool indices: new samples drawn from every current class, then the whole memory."""
        pool, most = self._pool, self._exemplars_per_class
        drawn = [self._new.draw_some(label, most, self._generator) for label in self._new_classes]
        memory = torch.arange(pool.num_new, len(pool.y), device=pool.y.device)
        return torch.cat([*drawn, memory])

    def _draw_ratio(self, recipe: Recipe) -> float:
        return float(self._host.beta(*recipe.ratio))

    def mix(self, batch: Batch) -> MixedBatch:
        """Partners, blend and labels for one batch (Algorithm 1, steps 14 to 22)."""
        recipe = self.recipe
        if recipe is None or (recipe.uses_gradients and not self.tables):
            return MixedBatch(batch.x, batch.y)
        lam = self._draw_ratio(recipe)
        self._latest = min(int(lam * len(self.tables)), max(len(self.tables) - 1, 0))
        partners = DRAW[recipe.partners](batch.y, self._index, self.pairs, self._generator)
        other = self._fetch(batch, partners, with_inputs=recipe.blend != "manifold")
        blended = self._blend(recipe, batch, partners, other, lam)
        pair = batch.y * self.num_outputs + other.y
        self._pairs_mixed.append(pair)
        shares: Tensor | float = blended.lam
        if recipe.labels == "remix":
            shares = remix_shares(pair, blended.lam, self._rarer, recipe.tau)
        targets = soft_targets(batch.y, other.y, shares, self.num_outputs)
        return MixedBatch(blended.x, targets, blended.mix, blended.at)

    def _fetch(self, batch: Batch, partners: Partners, with_inputs: bool) -> Batch:
        """The partners of a batch, row by row; inputs only if asked for or from outside."""
        rows, replaced, drawn = partners
        if replaced is None or drawn is None:
            x = batch.x.index_select(0, rows) if with_inputs else batch.x
            return Batch(x, batch.y.index_select(0, rows))
        pool = self._pool
        if batch.index is not None and pool.one_gather:  # it serves both kinds of partners
            index = torch.where(replaced, drawn, batch.index.index_select(0, rows))
            own, x = pool.images(torch.cat([batch.index, index])).chunk(2)
            batch.fetched(own)
            return Batch(x, pool.y.index_select(0, index))
        x = batch.x.index_select(0, rows)  # the same views as in the batch
        chosen = replaced.nonzero().squeeze(1)
        if len(chosen):
            x[chosen] = pool.views(drawn[chosen]).to(x.dtype)
        y = torch.where(replaced, pool.y.index_select(0, drawn), batch.y.index_select(0, rows))
        return Batch(x, y)

    def _blend(
        self, recipe: Recipe, batch: Batch, partners: Partners, other: Batch, lam: float
    ) -> blends.Blended:
        if recipe.blend == "manifold":
            at = int(self._host.integers(self._mix_points))
            if partners.drawn is None:
                return blends.manifold_in_batch(batch.x, partners.rows, lam, at)
            return blends.manifold_from_outside(batch.x, other.x, lam, at)
        if recipe.blend == "cutmix":
            return blends.cutmix(batch.x, other.x, lam, self._host)
        return blends.linear(batch.x, other.x, lam)

    @property
    def counts(self) -> Tensor:
        """How often each ordered pair of classes was mixed in this task, (C, C)."""
        if self._pairs_mixed:
            outputs = self.num_outputs
            mixed = torch.cat(self._pairs_mixed).bincount(minlength=outputs**2)
            self._counts[:outputs, :outputs] += mixed.view(outputs, outputs)
            self._pairs_mixed = []
        return self._counts

    def state_dict(self) -> dict[str, Any]:
        """The pair tables and counts; the generators belong to whoever passed them."""
        tables = {}
        if self.tables:
            scores = torch.stack([table.scores for table in self.tables])
            tables = {"classes": self.tables[0].classes, "scores": scores, "latest": self._latest}
        return {"counts": self.counts.clone(), "tables": tables}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved tables and counts; `begin_task` gave the pool."""
        self._counts, self._pairs_mixed = state["counts"].clone(), []
        self.tables, self._latest = (), 0
        if state["tables"]:
            classes, scores, self._latest = (
                state["tables"][name] for name in ("classes", "scores", "latest")
            )
            self.tables = tuple(PairTable.from_scores(classes, table) for table in scores)
