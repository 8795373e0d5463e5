"""Which pairs are harmful and which are best, found anew each epoch for the pool of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from gradmix.mixing.partners import ClassIndex, Judgement, Tables
from gradmix.mixing.recipe import Recipe
from gradmix.types import LinearHead, PairTable


class JudgedPool(Protocol):
    """T_l ∪ M: the current task's `num_new` samples, then the memory's."""

    num_new: int
    y: Tensor

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`, as they are."""


@dataclass(frozen=True)
class Judging:
    """How the criterion is computed."""

    exemplars_per_class: int = 32  # of the current data; of the memory all are taken
    pairing: str = "one-to-one"
    average: str = "sample"
    criterion: str = "auto"
    rolling: int = 1  # parts of the exemplars, of which each epoch embeds one
    block: int | None = None  # how many numbers are computed at a time; None: as they come

    def __post_init__(self) -> None:
        if self.exemplars_per_class < 1:
            raise InputError(
                f"exemplars_per_class is {self.exemplars_per_class}; the criterion needs at least 1"
            )
        if self.pairing not in PAIRINGS:
            raise UnknownNameError("pairing", self.pairing, PAIRINGS)
        if self.average not in ("sample", "class"):
            raise UnknownNameError("average", self.average, ("sample", "class"))
        choose_search(self.criterion, 1)
        if self.block is not None and self.block < 1:
            raise InputError(f"block is {self.block}; numbers are computed 1 or more at a time")


class Judge:
    """S⁻ and S* of the task at hand, as tables or, of many classes, on demand.

    Per task `begin_task`, per epoch `refresh`, per plan `of_batches`. `host` draws the λ of a
    single table, `generator` exemplars.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        settings: Judging,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
    ) -> None:
        self.recipe = recipe
        self.tables: tuple[PairTable, ...] = ()
        self.on_demand: PairsOnDemand | None = None  # instead of tables, of many classes
        self.samples: Scored | None = None  # the whole pool, where sample pairs are judged
        self.latest = 0  # which table the last batch used
        self._settings, self._rolling = settings, Rolling(settings.rolling)
        self._block = {} if settings.block is None else {"block": settings.block}
        self._host, self._generator = host, generator

    def begin_task(self, pool: JudgedPool, index: ClassIndex) -> None:
        """Take the pool that pairs are of, with its index; forget the last task's."""
        self._pool, self._num_classes = pool, len(index.classes)
        self._new = ClassIndex(pool.y[: pool.num_new], len(index.counts))
        self._new_classes = self._new.classes.tolist()
        self.tables, self.on_demand, self.samples = (), None, None
        self._rolling.clear()

    @property
    def number(self) -> int:
        """How many tables there are, or ratios that pairs are judged at."""
        return len(self.tables if self.on_demand is None else self.on_demand.ratios)

    @property
    def negative_rate(self) -> float | None:
        """The share of class pairs in S⁻, over all tables; None without one.

        Of many classes, the share of the pairs that were met.
        """
        if self.on_demand is not None:
            return self.on_demand.negative_rate
        rates = [table.negative_rate for table in self.tables]
        return sum(rates) / len(rates) if rates else None

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
        search = choose_search(self._settings.criterion, self._num_classes)
        if search != "exact" and recipe.judges_samples:
            raise InputError(
                f"the mix judges pairs of samples and criterion is {search!r}, which scores none; "
                "give level='class' and other partners, or criterion='exact'"
            )
        index = self._rolling.choose(self._draw_exemplars)
        if search == "exact":
            self._make_tables(recipe, model, head, index)
        else:
            embeddings = self._rolling.embeddings(model, head, pool.images, index)
            ratios = self._ratios(recipe)
            self.on_demand = self._make_on_demand(head, embeddings, index, ratios, search)
        self.latest = recipe.tables // 2

    def _make_tables(
        self, recipe: Recipe, model: nn.Module, head: nn.Linear, index: Tensor
    ) -> None:
        pool, average, bias = self._pool, self._settings.average, head.bias is not None
        exemplars = self._rolling.exemplars(model, head, pool.images, index, pool.y[index])
        memory = Exemplars(*(part[index >= pool.num_new] for part in exemplars))
        self.tables = pair_tables(
            exemplars,
            memory,
            self._ratios(recipe),
            bias=bias,
            pairing=self._settings.pairing,
            average=average,
            **self._block,
        )
        if recipe.judges_samples:
            every = torch.arange(len(pool.y), device=pool.y.device)
            gradient = memory_gradient(memory, bias=bias, average=average)
            self.samples = score_all(model, head, pool.images, every, pool.y, gradient)

    def _make_on_demand(
        self, head: nn.Linear, embeddings: Tensor, index: Tensor, ratios: list[float], search: str
    ) -> PairsOnDemand:
        y, old = self._pool.y[index], index >= self._pool.num_new
        weights = embeddings.new_zeros(len(index))
        weights[old] = memory_weights(y[old], self._settings.average, embeddings.dtype)
        bias = None if head.bias is None else head.bias.detach().float()
        numbers = LinearHead(head.weight.detach().float(), bias)
        pairing, generator = self._settings.pairing, self._generator
        sketch = make_sketch(
            embeddings, y, numbers, weights, pairing=pairing, generator=generator, **self._block
        )
        return PairsOnDemand(sketch, ratios, search, pairing, **self._block)

    def _draw_exemplars(self) -> Tensor:
        """Pool indices: new samples drawn from every current class, then the whole memory."""
        pool, most = self._pool, self._settings.exemplars_per_class
        drawn = [self._new.draw_some(label, most, self._generator) for label in self._new_classes]
        memory = torch.arange(pool.num_new, len(pool.y), device=pool.y.device)
        return torch.cat([*drawn, memory])

    def _ratios(self, recipe: Recipe) -> list[float]:
        if recipe.tables == 1:
            return [float(self._host.beta(*recipe.ratio))]
        return [(k + 0.5) / recipe.tables for k in range(recipe.tables)]

    def of_batches(
        self, table: Sequence[int], ratios: Sequence[float], index: Tensor | None
    ) -> Judgement | None:
        """S⁻ and S* for the batches of a plan: the table of each, its λ, its rows in the pool."""
        judgement: Judgement | None = None
        if self.on_demand is not None:
            judgement = self.on_demand.for_batches(table)
        elif self.tables:
            judgement = Tables.of(self.tables, table)
        if self.samples is None or judgement is None or index is None or self.recipe is None:
            return judgement
        by_class = judgement.harmful if self.recipe.level == "class" else None
        return SamplePairs(self.samples, index, ratios, judgement.best, by_class)

    def forget_pairs(self) -> None:
        """Drop the tables, when labels come to mean other classes."""
        self.tables = ()

    def state_dict(self) -> dict[str, Any]:
        """All that later batches of the epoch depend on, and later epochs of the task."""
        tables = {}
        if self.tables:
            scores = torch.stack([table.scores for table in self.tables])
            tables = {"classes": self.tables[0].classes, "scores": scores, "latest": self.latest}
        state: dict[str, Any] = {"tables": tables}
        if self.on_demand is not None:
            state["on_demand"] = {"latest": self.latest, **self.on_demand.state_dict()}
        if self.samples is not None:
            state["samples"] = self.samples._asdict()
        if rolling := self._rolling.state_dict():
            state["rolling"] = rolling
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was saved; `begin_task` gave the pool."""
        self.tables, self.on_demand, self.latest = (), None, 0
        self._rolling.load_state_dict(state.get("rolling", {}))
        self.samples = Scored(**state["samples"]) if "samples" in state else None
        if "on_demand" in state:
            self.latest = state["on_demand"]["latest"]
            self.on_demand = PairsOnDemand.from_state_dict(
                state["on_demand"], self._settings.pairing, **self._block
            )
        if state["tables"]:
            classes, scores, self.latest = (
                state["tables"][name] for name in ("classes", "scores", "latest")
            )
            self.tables = tuple(PairTable.from_scores(classes, table) for table in scores)
