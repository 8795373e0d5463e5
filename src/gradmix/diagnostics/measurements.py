"""The analyses as a run takes them along: from a method's own samples, as plain JSON numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradmix.diagnostics.approximation import CENTRES, approximation_error, pair_agreement
from gradmix.diagnostics.detrimental import detrimental_rate
from gradmix.diagnostics.distances import class_distances
from gradmix.methods import Method
from gradmix.mixing.partners import ClassIndex
from gradmix.types import Samples

BATCHES = 4  # mixed by a measurement of the detrimental rate
EXEMPLARS = 32  # of every class, for the others
MIXED_INPUTS = 2**16  # that pass the network in a measurement of pairs; more if one class needs it
CURVE = tuple(k / 8 for k in range(9))  # ratios of the approximation error


@dataclass(frozen=True)
class Analysis:
    """A measurement by name."""

    summary: str
    source: str
    measure: Callable[[Method, torch.Generator], dict[str, Any]]
    possible: Callable[[Method], bool]  # with the samples there are
    every_epoch: bool = False  # else after epochs 1, 2, 4, 8 … of a task and the last


# --- samples of the pool ------------------------------------------------------------------------


def has_memory(method: Method) -> bool:
    """Exemplars of earlier tasks, replayed."""
    return method.replays and len(method.pool) > method.pool.num_new


def has_classes(method: Method) -> bool:
    """Two of them, and two samples of one."""
    counts = method.pool.y.bincount()
    return int((counts > 0).sum()) > 1 and int(counts.max()) > 1


def _memory(method: Method) -> Samples:
    pool = method.pool
    return _fetch(method, torch.arange(pool.num_new, len(pool), device=pool.y.device))


def _exemplars(method: Method, number: int, generator: torch.Generator) -> Samples:
    """Some of every class among the first `number` samples of the pool."""
    index = ClassIndex(method.pool.y[:number], method.head.out_features)
    drawn = [index.draw_some(label, EXEMPLARS, generator) for label in index.classes.tolist()]
    return _fetch(method, torch.cat(drawn))


def _fetch(method: Method, index: Tensor) -> Samples:
    return Samples(method.pool.images(index), method.pool.y[index])


# --- measurements -------------------------------------------------------------------------------


def measure_detrimental_rate(method: Method, generator: torch.Generator) -> dict[str, Any]:
    """Of the run's own batches and α, both ways for the same mixes."""
    pool, settings, recipe = method.pool, method.settings, method.mixer.recipe
    order = torch.randperm(pool.num_new, generator=generator, device=pool.y.device)
    current = _fetch(method, order[: BATCHES * settings.batch_size])
    memory = _memory(method)
    state = generator.get_state()
    rates = {}
    for name, whole_network in (("whole_network", True), ("last_layer", False)):
        generator.set_state(state)
        rates[name] = detrimental_rate(
            method.model,
            memory,
            current,
            whole_network=whole_network,
            alpha=1.0 if recipe is None else recipe.alpha,
            batches=BATCHES,
            batch_size=settings.batch_size,
            replay_batch_size=settings.replay_batch_size,
            head=method.head,
            generator=generator,
        )
    return rates


def measure_approximation_error(method: Method, generator: torch.Generator) -> dict[str, Any]:
    """Against λ, of as many pairs as the limit allows."""
    error = approximation_error(
        method.model,
        _memory(method),
        _exemplars(method, method.pool.num_new, generator),
        lambdas=CURVE,
        exemplars_per_class=EXEMPLARS,
        rows=_rows(method, len(CURVE)),
        head=method.head,
        generator=generator,
    )
    return _plain(error._asdict())


def measure_precision_recall(method: Method, generator: torch.Generator) -> dict[str, Any]:
    """For λ uniform in 0 to 1, of as many pairs as the limit allows."""
    agreement = pair_agreement(
        method.model,
        _memory(method),
        _exemplars(method, method.pool.num_new, generator),
        lambdas=CENTRES,
        exemplars_per_class=EXEMPLARS,
        rows=_rows(method, len(CENTRES)),
        head=method.head,
        generator=generator,
    )
    return _plain(agreement._asdict())


def _rows(method: Method, ratios: int) -> int:
    """So many first classes that samples and mixes stay within their limit."""
    classes = len(method.pool.y.unique())
    return max(1, MIXED_INPUTS // (classes * EXEMPLARS * (ratios + 2)))


def measure_class_distance(method: Method, generator: torch.Generator) -> dict[str, Any]:
    """Of some samples of every class, remembered ones included."""
    samples = _exemplars(method, len(method.pool), generator)
    return _plain(class_distances(method.model, samples, head=method.head)._asdict())


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
