"""The time of the criterion by number of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import nn

from gradmix.criterion import PAIRINGS, Exemplars, embed, pair_tables
from gradmix.diagnostics.inputs import Given, Pair, check, check_count, draw_per_class
from gradmix.errors import InputError, UnknownNameError
from gradmix.types import Samples


def criterion_seconds(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    old_classes: Sequence[int] | None = None,
    tables: int = 1,
    criterion_exemplars: int = 32,
    pairing: str = "one-to-one",
    average: str = "sample",
    repeats: int = 5,
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
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
        criterion_exemplars: Samples drawn of every current class.
        pairing: How exemplars are paired.
        average: Mean gradient of the memory over `sample`s or over `class`es.
        repeats: Timed refreshes.
        head: The last layer. Default: the last `nn.Linear`.
        generator: Default: PyTorch's global generator.

    Raises:
        InputError: An argument is invalid.
    """
    given = check(model, memory, current, average, head)
    counts = {"tables": tables, "criterion_exemplars": criterion_exemplars, "repeats": repeats}
    for name, value in counts.items():
        check_count(name, value)
    if pairing not in PAIRINGS:
        raise UnknownNameError("pairing", pairing, PAIRINGS)
    known = given.memory.y.unique()
    numbers = [len(known)] if old_classes is None else old_classes
    for number in numbers:
        if not 1 <= number <= len(known):
            raise InputError(f"old_classes has {number}; the memory has 1 to {len(known)} classes")
    ratios = [(k + 0.5) / tables for k in range(tables)]

    def refresh(old: Samples) -> None:
        outputs = given.head.out_features
        drawn = draw_per_class(given.current, criterion_exemplars, generator, outputs)
        exemplars = embed(model, given.head, *Given(given.head, old, drawn).pool)
        remembered = Exemplars(*(part[len(drawn.y) :] for part in exemplars))
        bias = given.head.bias is not None
        made = pair_tables(
            exemplars, remembered, ratios, bias=bias, pairing=pairing, average=average
        )
        made.tables[-1].optimal.tolist()  # waits for the device

    seconds = {}
    for number in numbers:
        kept = torch.isin(given.memory.y, known[:number])
        old = Samples(given.memory.x[kept], given.memory.y[kept])
        classes = torch.cat([old.y, given.current.y]).unique()
        seconds[len(classes)] = _median_seconds(refresh, old, repeats)
    return seconds


def _median_seconds(refresh: Callable[[Samples], None], old: Samples, repeats: int) -> float:
    refresh(old)
    times = []
    for _ in range(repeats):
        started = perf_counter()
        refresh(old)
        times.append(perf_counter() - started)
    return median(times)
