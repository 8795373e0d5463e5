"""The replay memory: a few examples of every class seen, never more than its budget."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.memory.selection import first_of_each_class
from gradmix.types import Samples


class Kept(NamedTuple):
    """Exemplars with all that a memory keeps of them, as `ReplayMemory.add` takes them."""

    samples: Samples
    priority: Tensor
    extras: dict[str, Tensor]


class ReplayMemory:
    """Exemplars of the classes seen so far, `exemplars_per_class` of each or `total` in all.

    With `exemplars_per_class` the memory grows with the classes (the paper's way). With
    `total` it has a fixed size that the classes share equally, the lowest labels (the first to
    arrive, as labels are numbered here) taking the remainder, so that old classes give up
    exemplars as new ones come.

    Every exemplar has a priority, and a class keeps those with the lowest. Random priorities
    make what is kept a uniform sample of all that was ever added of the class, in one call
    or many; other rules (herding, gradient diversity) give other priorities.
    """

    def __init__(self, *, exemplars_per_class: int | None = None, total: int | None = None) -> None:
        if (exemplars_per_class is None) == (total is None):
            raise InputError(
                f"exemplars_per_class is {exemplars_per_class} and total is {total}; "
                "give exactly one of them"
            )
        for name, value in (("exemplars_per_class", exemplars_per_class), ("total", total)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; a memory holds at least 1")
        self.exemplars_per_class = exemplars_per_class
        self.total = total
        self.x = torch.empty(0)
        self.y = torch.empty(0, dtype=torch.int64)
        self.extras: dict[str, Tensor] = {}  # what else is kept of every exemplar, by name
        self._priority = torch.empty(0)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def samples(self) -> Samples:
        """All exemplars, ordered by class."""
        return Samples(self.x, self.y)

    def quota(self, classes: Tensor) -> Tensor:
        """How many exemplars each class may have when `classes` are in memory, by label."""
        quota = torch.zeros(int(classes.max()) + 1, dtype=torch.int64, device=classes.device)
        quota[classes] = self._shares(len(classes)).to(classes.device)
        return quota

    def _shares(self, classes: int) -> Tensor:
        """How many exemplars the first of so many classes may have, the second, and so on."""
        if self.exemplars_per_class is not None:
            return torch.full((classes,), self.exemplars_per_class)
        assert self.total is not None
        if self.total < classes:
            raise InputError(
                f"total is {self.total}; it cannot hold one exemplar of each of {classes} classes"
            )
        share, rest = divmod(self.total, classes)
        return share + (torch.arange(classes) < rest).long()

    def add(
        self, samples: Samples, priority: Tensor, extras: dict[str, Tensor] | None = None
    ) -> None:
        """Offer samples, each with a priority; every class keeps the lowest within its quota.

        `extras` are further rows to keep beside the samples, the same names at every call.
        """
        x, y = samples
        extras = {} if extras is None else extras
        self._check(x, y, priority, extras)
        held = len(self)
        if held:
            y = torch.cat([self.y, y])
            priority = torch.cat([self._priority, priority])
            extras = {name: torch.cat([self.extras[name], rows]) for name, rows in extras.items()}
        kept = first_of_each_class(y, priority, self.quota(y.unique()))
        self.x = self._gather(x, kept, held)
        self.y, self._priority = y[kept], priority[kept]
        self.extras = {name: rows[kept] for name, rows in extras.items()}

    def _gather(self, x: Tensor, kept: Tensor, held: int) -> Tensor:
        """The kept among those held and those offered; of these only the kept are touched."""
        offered = x.index_select(0, kept[kept >= held] - held)
        if not held:
            return offered
        result = offered.new_empty((len(kept), *offered.shape[1:]))
        result[kept >= held] = offered
        result[kept < held] = self.x[kept[kept < held]]
        return result

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
        """From now on hold so many; what is beyond that goes."""
        self.exemplars_per_class, self.total = exemplars_per_class, total
        if len(self):
            kept = first_of_each_class(self.y, self._priority, self.quota(self.y.unique()))
            chosen = torch.ones_like(self.y, dtype=torch.bool)
            chosen[kept] = False
            self.split_off(chosen)

    def split_off(self, chosen: Tensor) -> Kept:
        """Take the exemplars where the mask `chosen` is true out of the memory; `add` puts back."""
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
        """Drop the exemplars of a class; the classes after it move up by one."""
        self.split_off(self.y == label)
        self.y = self.y - (self.y > label).long()

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Indices of `count` exemplars, uniformly, none twice.

        A memory with fewer than `count` exemplars gives all of them, so a replay batch is
        then smaller than asked for.
        """
        if count < 0:
            raise InputError(f"count is {count}; draw 0 or more exemplars")
        return torch.randperm(len(self), generator=generator, device=self.y.device)[:count]

    def state_dict(self) -> dict[str, Any]:
        """All there is: exemplars, labels, priorities, extras."""
        extras = dict(self.extras)
        return {"x": self.x, "y": self.y, "priority": self._priority, "extras": extras}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved memory, exactly; one that is over this budget is refused."""
        x, y, priority = state["x"], state["y"], state["priority"]
        if len(y):
            counts = np.unique(y.numpy(force=True), return_counts=True)[1]
            if (counts > self._shares(len(counts)).numpy()).any():
                raise InputError(f"the saved memory of {len(y)} exemplars is over this budget")
        self.x, self.y, self._priority = x, y, priority
        self.extras = dict(state["extras"])


def random_priority(count: int, generator: torch.Generator) -> Tensor:
    """Priorities that keep a uniform sample, in float64 so that ties do not happen."""
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
