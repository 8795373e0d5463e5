"""Criterion and mixing together, for the library's own loop; `drop_in.py` has it for any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion import (
    PAIRINGS,
    Exemplars,
    PairsOnDemand,
    Rolling,
    SamplePairs,
    Scored,
    choose_search,
    find_head,
    make_sketch,
    memory_gradient,
    memory_weights,
    pair_tables,
    score_all,
)
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing import blends
from gradmix.mixing.labels import remix_shares, soft_targets
from gradmix.mixing.partners import DRAW, ClassIndex, Judgement, Tables
from gradmix.mixing.plans import Choices, Consequences, Plan
from gradmix.mixing.recipes import Recipe
from gradmix.types import LinearHead, MixedBatch, PairTable, Partners

MOST_COUNTED = 4096
"""Classes whose mixed pairs are counted; of more, the counts would fill the memory."""


class SamplePool(Protocol):
    """T_l ∪ M: the current task's `num_new` samples, then the memory's."""

    num_new: int
    y: Tensor
    input_shape: tuple[int, ...]  # of one sample
    one_gather: bool  # whether fetching a sample anew gives the same, and at little cost

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, as they are."""

    def views(self, index: Tensor) -> Tensor:
        """The same after random transforms, if there are any."""


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
        exemplars_per_class: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
        criterion: str = "auto",
        rolling: int = 1,
        block: int | None = None,
    ) -> None:
        if exemplars_per_class < 1:
            raise InputError(
                f"exemplars_per_class is {exemplars_per_class}; the criterion needs at least 1"
            )
        if pairing not in PAIRINGS:
            raise UnknownNameError("pairing", pairing, PAIRINGS)
        if average not in ("sample", "class"):
            raise UnknownNameError("average", average, ("sample", "class"))
        choose_search(criterion, 1)
        self.recipe = recipe
        self.num_outputs = num_outputs
        self._num_classes = num_outputs  # of the counts, whatever the head has grown to
        self.tables: tuple[PairTable, ...] = ()
        self.on_demand: PairsOnDemand | None = None  # instead of tables, of many classes
        self._samples: Scored | None = None  # the whole pool, where sample pairs are judged
        self._counts = torch.zeros(0, 0, dtype=torch.int64)
        self._pairs_mixed: list[Tensor] = []  # since `counts` was last asked for
        self._latest = 0  # which table the last batch used
        self._host, self._generator = host, generator
        self._mix_points = mix_points
        self._exemplars_per_class = exemplars_per_class
        self._pairing, self._average = pairing, average
        self._criterion, self._rolling = criterion, Rolling(rolling)
        if block is not None and block < 1:
            raise InputError(f"block is {block}; numbers are computed 1 or more at a time")
        self._block = {} if block is None else {"block": block}

    def begin_task(self, pool: SamplePool, num_outputs: int | None = None) -> None:
        """Take the pool that partners come from; forget the last task's pairs and counts.

        `num_outputs` are the head's now, if it grows.
        """
        self.num_outputs = self.num_outputs if num_outputs is None else num_outputs
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        self._new = ClassIndex(pool.y[: pool.num_new], self.num_outputs)
        self._new_classes = self._new.classes.tolist()
        self.tables, self.on_demand, self._samples = (), None, None
        self._rolling.clear()
        size = self._num_classes if self._num_classes <= MOST_COUNTED else 0
        self._counts = torch.zeros(size, size, dtype=torch.int64, device=pool.y.device)
        self._pairs_mixed = []

    @property
    def pairs(self) -> PairTable | None:
        """The pair table of the last batch's λ, or of the middle one after a refresh."""
        return self.tables[self._latest] if self.tables else None

    @property
    def negative_rate(self) -> float | None:
        """The share of class pairs in S⁻, over all tables; None without one.

        Of many classes, the share of the pairs that were met.
        """
        if self.on_demand is not None:
            return self.on_demand.negative_rate
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
        batch uses the one nearest its own λ. Of many classes no table is made: pairs are scored
        when a plan meets them.
        """
        recipe, pool = self.recipe, self._pool
        if recipe is None or not recipe.uses_gradients or pool.num_new == len(pool.y):
            return
        head = find_head(model) if head is None else head
        number = recipe.tables
        search = choose_search(self._criterion, len(self._index.classes))
        if search != "exact" and recipe.judges_samples:
            raise InputError(
                f"the mix judges pairs of samples and criterion is {search!r}, which scores none; "
                "give level='class' and other partners, or criterion='exact'"
            )
        index = self._rolling.choose(self._draw_exemplars)
        if search != "exact":
            embeddings = self._rolling.embeddings(model, head, pool.images, index)
            ratios = self._table_ratios(recipe)
            self.on_demand = self._on_demand(head, embeddings, index, ratios, search)
            self._latest = number // 2
            return
        y = pool.y[index]
        exemplars = self._rolling.exemplars(model, head, pool.images, index, y)
        memory = Exemplars(*(part[index >= pool.num_new] for part in exemplars))
        self.tables = pair_tables(
            exemplars,
            memory,
            self._table_ratios(recipe),
            bias=head.bias is not None,
            pairing=self._pairing,
            average=self._average,
            **self._block,
        )
        self._latest = number // 2
        if recipe.judges_samples:
            every = torch.arange(len(pool.y), device=pool.y.device)
            gradient = memory_gradient(memory, bias=head.bias is not None, average=self._average)
            self._samples = score_all(model, head, pool.images, every, pool.y, gradient)

    def _table_ratios(self, recipe: Recipe) -> list[float]:
        if recipe.tables == 1:
            return [self._draw_ratio(recipe)]
        return [(k + 0.5) / recipe.tables for k in range(recipe.tables)]

    def _on_demand(
        self, head: nn.Linear, embeddings: Tensor, index: Tensor, ratios: list[float], search: str
    ) -> PairsOnDemand:
        y, old = self._pool.y[index], index >= self._pool.num_new
        weights = embeddings.new_zeros(len(index))
        weights[old] = memory_weights(y[old], self._average, embeddings.dtype)
        bias = None if head.bias is None else head.bias.detach().float()
        numbers = LinearHead(head.weight.detach().float(), bias)
        sketch = make_sketch(
            embeddings,
            y,
            numbers,
            weights,
            pairing=self._pairing,
            generator=self._generator,
            **self._block,
        )
        return PairsOnDemand(sketch, ratios, search, self._pairing, **self._block)

    def _draw_exemplars(self) -> Tensor:
        """Pool indices: new samples drawn from every current class, then the whole memory."""
        pool, most = self._pool, self._exemplars_per_class
        drawn = [self._new.draw_some(label, most, self._generator) for label in self._new_classes]
        memory = torch.arange(pool.num_new, len(pool.y), device=pool.y.device)
        return torch.cat([*drawn, memory])

    def _draw_ratio(self, recipe: Recipe) -> float:
        return float(self._host.beta(*recipe.ratio))

    def plan(self, y: Tensor, index: Tensor | None = None) -> Plan:
        """Say how batches are mixed: λ, partners, labels (Algorithm 1, steps 14 to 22).

        `y` are labels, (S, B); `index` says where the rows stand in the pool, if they do.
        """
        recipe = self.recipe
        if recipe is None or (recipe.uses_gradients and not self._num_tables):
            return Plan(y, index)
        choices = self._choose(recipe, y, index)
        follows = self._follow(recipe, choices, y, index)
        if len(self._counts):
            self._pairs_mixed.append((y * self.num_outputs + follows.partner_y).flatten())
        return Plan(y, index, (choices, follows))

    @property
    def _num_tables(self) -> int:
        return len(self.tables if self.on_demand is None else self.on_demand.ratios)

    def _choose(self, recipe: Recipe, y: Tensor, index: Tensor | None) -> Choices:
        number = self._num_tables
        ratios: list[float] = []
        table: list[int] = []
        place: list[blends.Box | int | None] = []
        for _ in y:
            lam, where = self._draw_ratio(recipe), None
            table.append(min(int(lam * number), max(number - 1, 0)))
            if recipe.blend == "cutmix":
                where, lam = blends.draw_box(lam, self._pool.input_shape, self._host)
            layer = (
                int(self._host.integers(self._mix_points)) if recipe.blend == "manifold" else None
            )
            ratios.append(lam)
            place.append(where if layer is None else layer)
        judgement: Judgement | None = None
        if self.on_demand is not None:
            judgement = self.on_demand.for_batches(table)
        elif self.tables:
            judgement = Tables.of(self.tables, table)
        if self._samples is not None and judgement is not None and index is not None:
            by_class = judgement.harmful if recipe.level == "class" else None
            judgement = SamplePairs(self._samples, index, ratios, judgement.best, by_class)
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
        recipe, y = self.recipe, plan.y[step]
        if recipe is None or plan.mixing is None:
            return MixedBatch(self._own(plan, step, x), y)
        choices, follows = plan.mixing
        self._latest = choices.table[step]
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
        if x is not None:
            return x
        assert plan.index is not None
        return self._pool.views(plan.index[step])

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
        self.tables, self._pairs_mixed = (), []
        self._counts = torch.zeros_like(self._counts)

    def state_dict(self) -> dict[str, Any]:
        """The pair tables and counts; the generators belong to whoever passed them."""
        tables = {}
        if self.tables:
            scores = torch.stack([table.scores for table in self.tables])
            tables = {"classes": self.tables[0].classes, "scores": scores, "latest": self._latest}
        state: dict[str, Any] = {"counts": self.counts.clone(), "tables": tables}
        if self.on_demand is not None:
            state["on_demand"] = {"latest": self._latest, **self.on_demand.state_dict()}
        if self._samples is not None:
            state["samples"] = self._samples._asdict()
        if rolling := self._rolling.state_dict():
            state["rolling"] = rolling
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved tables and counts; `begin_task` gave the pool."""
        self._counts, self._pairs_mixed = state["counts"].clone(), []
        self.tables, self.on_demand, self._latest = (), None, 0
        self._rolling.load_state_dict(state.get("rolling", {}))
        self._samples = Scored(**state["samples"]) if "samples" in state else None
        if "on_demand" in state:
            self._latest = state["on_demand"]["latest"]
            self.on_demand = PairsOnDemand.from_state_dict(
                state["on_demand"], self._pairing, **self._block
            )
        if state["tables"]:
            classes, scores, self._latest = (
                state["tables"][name] for name in ("classes", "scores", "latest")
            )
            self.tables = tuple(PairTable.from_scores(classes, table) for table in scores)
