"""The time of the criterion by number of classes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from gradmix.criterion import PairSelector
from gradmix.diagnostics.inputs import Pair, check, check_counts
from gradmix.errors import InputError
from gradmix.mixing.gradmix import TensorPool
from gradmix.settings import CriterionSettings
from gradmix.types import Samples


def criterion_seconds(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    old_classes: Sequence[int] | None = None,
    tables: int = 1,
    repeats: int = 5,
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> dict[int, float]:
    """Return the median seconds of one refresh of the pair tables, by number of classes.

    A refresh is what selective mixup adds to an epoch (Algorithm 1, steps 3 to 9): draw exemplars
    of the current classes, embed them and the memory, and score all class pairs. One untimed
    refresh comes first.

    Args:
        model: A classifier.
        memory: Inputs and labels of the exemplars.
        current: Inputs and labels of current samples.
        old_classes: Numbers of classes to keep of the memory, timed one by one. Default: all.
        tables: Pair tables per refresh.
        repeats: Timed refreshes.
        head: The last layer. Default: the last `nn.Linear`.
        generator: Default: PyTorch's global generator.
        **settings: Settings of the criterion, such as `average`.

    Raises:
        InputError: An argument is invalid.
    """
    criterion = CriterionSettings(**settings)
    given = check(model, memory, current, criterion.average, head)
    check_counts(tables=tables, repeats=repeats)
    known = given.memory.y.unique()
    numbers = [len(known)] if old_classes is None else old_classes
    for number in numbers:
        if not 1 <= number <= len(known):
            raise InputError(f"old_classes has {number}; the memory has 1 to {len(known)} classes")
    host = np.random.default_rng(0)
    selector = PairSelector(
        criterion, tables=tables, ratio=(1.0, 1.0), host=host, generator=generator
    )
    seconds = {}
    for number in numbers:
        kept = torch.isin(given.memory.y, known[:number])
        pool = TensorPool(given.current, Samples(given.memory.x[kept], given.memory.y[kept]))
        selector.begin_task(pool, given.head.out_features)
        times = [_refresh_seconds(selector, model, given.head) for _ in range(repeats + 1)]
        seconds[len(pool.y.unique())] = median(times[1:])
    return seconds


def _refresh_seconds(selector: PairSelector, model: nn.Module, head: nn.Linear) -> float:
    started = perf_counter()
    selector.refresh(model, head)
    _ = selector.negative_rate  # waits for the device
    return perf_counter() - started
