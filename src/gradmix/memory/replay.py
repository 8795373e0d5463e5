"""The replay memory: a few exemplars of every class seen, within a budget."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.types import Samples


class Kept(NamedTuple):
    """Exemplars with everything that a memory stores of them; `ReplayMemory.add` takes them."""

    samples: Samples
    priority: Tensor
    extras: dict[str, Tensor]


def random_priority(count: int, generator: torch.Generator) -> Tensor:
    """Return priorities that keep a uniform sample; in float64, so that ties do not happen."""
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)


class ReplayMemory:
    """Exemplars of the classes seen so far.

    Every exemplar has a priority, and a class keeps those with the lowest. With random priorities
    a class keeps a uniform sample of everything that was ever added, in one call or many. Other
    rules, such as herding, use other priorities. Without balance, the memory keeps the lowest of
    all samples: with random priorities, this is reservoir sampling.

    Args:
        exemplars_per_class: Exemplars of each class; the memory grows with the classes, as in the
            paper.
        total: Exemplars in total, shared equally. The first classes take the remainder, and old
            classes give up exemplars when new ones arrive. Give exactly one of the two.
        selection: The rule by which methods choose exemplars; None is the method's own.
        balanced: Whether classes have equal shares of `total`; otherwise any class may have any.

    >>> memory = ReplayMemory(exemplars_per_class=2)
    >>> x, y = torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 1, 1, 1])
    >>> memory.add(Samples(x, y), torch.tensor([3.0, 1.0, 2.0, 1.0, 2.0, 3.0]))
    >>> memory.x.flatten().tolist(), memory.y.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    """

    def __init__(
        self,
        *,
        exemplars_per_class: int | None = None,
        total: int | None = None,
        selection: str | None = None,
        balanced: bool = True,
    ) -> None:
        if (exemplars_per_class is None) == (total is None):
            raise InputError(
                f"exemplars_per_class is {exemplars_per_class} and total is {total}; "
                "give exactly one of them"
            )
        if exemplars_per_class is not None and exemplars_per_class < 0:
            raise InputError(f"exemplars_per_class is {exemplars_per_class}; give 0 or more")
        if total is not None and total < 1:
            raise InputError(f"total is {total}; give 1 or more")
        if not balanced and total is None:
            raise InputError("balanced is False and total is None; give a total without balance")
        self.exemplars_per_class, self.balanced = exemplars_per_class, balanced
        self.total, self.selection = total, selection
        self.x = torch.empty(0)
        self.y = torch.empty(0, dtype=torch.int64)
        self.extras: dict[str, Tensor] = {}  # further rows of every exemplar, by name
        self._priority = torch.empty(0)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def samples(self) -> Samples:
        """All exemplars, sorted by class."""
        return Samples(self.x, self.y)

    def quota(self, classes: Tensor) -> Tensor:
        """Return how many exemplars each class may have when `classes` are in memory, by label."""
        quota = torch.zeros(int(classes.max()) + 1, dtype=torch.int64, device=classes.device)
        quota[classes] = self._shares(len(classes)).to(classes.device)
        return quota

    def _shares(self, classes: int) -> Tensor:
        """Return how many exemplars each of a number of classes may have, (classes,)."""
        if self.exemplars_per_class is not None:
            return torch.full((classes,), self.exemplars_per_class)
        assert self.total is not None
        if not self.balanced:
            return torch.full((classes,), self.total)
        if self.total < classes:
            raise InputError(
                f"total is {self.total}; it cannot hold one exemplar of each of {classes} classes"
            )
        share, rest = divmod(self.total, classes)
        return share + (torch.arange(classes) < rest).long()

    def add(
        self, samples: Samples, priority: Tensor, extras: dict[str, Tensor] | None = None
    ) -> None:
        """Offer samples; every class keeps those with the lowest priority within its quota.

        Args:
            samples: Samples and labels.
            priority: Priority of each sample, (N,).
            extras: Further rows to store with the samples; the same names in every call.

        Raises:
            InputError: If the rows do not fit each other or the memory; nothing changes then.
        """
        x, y = samples
        extras = {} if extras is None else extras
        self._check(x, y, priority, extras)
        held = len(self)
        if held:
            y = torch.cat([self.y, y])
            priority = torch.cat([self._priority, priority])
            extras = {name: torch.cat([self.extras[name], rows]) for name, rows in extras.items()}
        kept = self._lowest(y, priority)
        is_new = kept >= held
        offered = x.index_select(0, kept[is_new] - held)  # only these are read
        if held:
            stored, self.x = self.x, offered.new_empty((len(kept), *offered.shape[1:]))
            self.x[is_new], self.x[~is_new] = offered, stored[kept[~is_new]]
        else:
            self.x = offered
        self.y, self._priority = y[kept], priority[kept]
        self.extras = {name: rows[kept] for name, rows in extras.items()}

    def _lowest(self, y: Tensor, priority: Tensor) -> Tensor:
        """Return the rows that fit into the budget, sorted by class, then by priority."""
        if self.balanced:
            return first_of_each_class(y, priority, self.quota(y.unique()))
        lowest = priority.argsort(stable=True)[: self.total]
        return lowest[y[lowest].argsort(stable=True)]

    def _check(self, x: Tensor, y: Tensor, priority: Tensor, extras: dict[str, Tensor]) -> None:
        if len(self) and extras.keys() != self.extras.keys():
            raise InputError(
                f"extras are {sorted(extras)}; this memory keeps {sorted(self.extras)}"
            )
        for name, rows in extras.items():
            if len(rows) != len(x):
                raise InputError(f"extras[{name!r}] has {len(rows)} rows for {len(x)} samples")
        if not len(x) == len(y) == len(priority) or len(x) == 0:
            raise InputError(
                f"{len(x)} samples, {len(y)} labels and {len(priority)} priorities; "
                "give as many of each, at least one"
            )
        if y.dtype != torch.int64 or y.ndim != 1 or int(y.min()) < 0:
            raise InputError(
                f"labels are {y.dtype} of shape {tuple(y.shape)} from {y.min()}; "
                "they must be int64 (N,) from 0 on"
            )
        if len(self) and (x.shape[1:] != self.x.shape[1:] or x.dtype != self.x.dtype):
            raise InputError(
                f"samples of shape {tuple(x.shape[1:])} and {x.dtype} do not fit a memory of "
                f"shape {tuple(self.x.shape[1:])} and {self.x.dtype}"
            )

    def set_budget(self, exemplars_per_class: int | None, total: int | None) -> None:
        """Change the budget; exemplars beyond it are dropped."""
        self.exemplars_per_class, self.total = exemplars_per_class, total
        if len(self):
            beyond = torch.ones_like(self.y, dtype=torch.bool)
            beyond[self._lowest(self.y, self._priority)] = False
            self.split_off(beyond)

    def split_off(self, chosen: Tensor) -> Kept:
        """Remove and return the exemplars where the mask `chosen` is true; `add` restores them."""
        parts = [
            Kept(
                Samples(self.x[rows], self.y[rows]),
                self._priority[rows],
                {name: values[rows] for name, values in self.extras.items()},
            )
            for rows in (chosen, ~chosen)
        ]
        (self.x, self.y), self._priority, self.extras = parts[1]
        return parts[0]

    def forget(self, label: int) -> None:
        """Drop the exemplars of a class; later classes move up by one."""
        self.split_off(self.y == label)
        self.y = self.y - (self.y > label).long()

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the rows of `count` different exemplars, uniformly.

        A memory with fewer than `count` exemplars returns all of them, in random order.
        """
        if count < 0:
            raise InputError(f"count is {count}; draw 0 or more exemplars")
        return torch.randperm(len(self), generator=generator, device=self.y.device)[:count]

    def state_dict(self) -> dict[str, Any]:
        """Return exemplars, labels, priorities and extras."""
        rows = {"x": self.x, "y": self.y, "priority": self._priority}
        return {**rows, "extras": dict(self.extras)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved memory.

        Raises:
            InputError: If the saved memory exceeds this budget or its rows do not fit each other.
        """
        x, y, priority = state["x"], state["y"], state["priority"]
        rows = {"x": x, "priority": priority, **state["extras"]}
        for name, part in rows.items():
            if len(part) != len(y):
                raise InputError(f"memory.{name} has {len(part)} rows for {len(y)} labels")
        counts = y.unique(return_counts=True)[1].cpu()
        too_many = self.total is not None and len(y) > self.total
        if len(y) and (too_many or bool((counts > self._shares(len(counts))).any())):
            raise InputError(f"memory: {len(y)} exemplars are saved, more than this budget allows")
        self.x, self.y, self._priority = x, y, priority
        self.extras = dict(state["extras"])


def first_of_each_class(labels: Tensor, priority: Tensor, quota: Tensor) -> Tensor:
    """Return the rows of up to `quota[c]` samples of each class c with the lowest priority.

    The rows are sorted by class, then by priority; equal priorities keep their order.
    """
    by_priority = priority.argsort(stable=True)
    order = by_priority[labels[by_priority].argsort(stable=True)]
    counts = labels.bincount(minlength=len(quota))
    start = counts.cumsum(0) - counts
    of_class = labels[order]
    rank = torch.arange(len(order), device=labels.device) - start[of_class]
    return order[rank < quota[of_class]]
