"""Diagnostics of a run: measured from a method's own samples, as plain JSON numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmix.diagnostics.approximation import (
    CENTRES,
    EXEMPLARS,
    ApproximationError,
    PairAgreement,
    approximation_error,
    pair_agreement,
)
from gradmix.diagnostics.gradients import class_distances, detrimental_rate
from gradmix.diagnostics.inner_products import draw_per_class
from gradmix.errors import UnknownNameError
from gradmix.methods import Method
from gradmix.training.loop import EpochDone, Event, Training
from gradmix.types import Samples

BATCHES = 4  # batches of a measurement of the detrimental rate
MAX_INPUTS = 2**16  # network inputs of a measurement of pairs; one class may need more
CURVE = tuple(k / 8 for k in range(9))  # mixing ratios of the approximation error


@dataclass(frozen=True)
class Analysis:
    """A diagnostic that a run can measure."""

    summary: str
    source: str
    measure: Callable[[Method, torch.Generator], dict[str, Any]]
    possible: Callable[[Method], bool]  # whether the method has the samples it needs
    every_epoch: bool = False  # otherwise after epochs 1, 2, 4, 8 … and the last of a task


def take(names: Sequence[str], training: Training, event: Event) -> dict[str, dict[str, Any]]:
    """Measure the diagnostics that are due at an event.

    Diagnostics are due after epochs of the first stage of a task, which trains the network of
    the criterion: the detrimental rate after every epoch, the others after epochs 1, 2, 4, 8 …
    and the last. Diagnostics of the memory start when there is a memory.

    Args:
        names: Names in `ANALYSES`.
        training: The training loop.
        event: Its latest event.

    Returns:
        The measurements by name; empty if none is due.

    Raises:
        UnknownNameError: A name is not in `ANALYSES`.
    """
    for name in names:
        if name not in ANALYSES:
            raise UnknownNameError("analysis", name, ANALYSES)
    method = training.method
    if not isinstance(event, EpochDone) or event.stage != method.stages()[0].name:
        return {}
    due = event.epoch.bit_count() == 1 or event.epoch == event.epochs
    return {
        name: ANALYSES[name].measure(method, _generator(name, method, event))
        for name in names
        if (due or ANALYSES[name].every_epoch) and ANALYSES[name].possible(method)
    }


def _generator(name: str, method: Method, event: EpochDone) -> torch.Generator:
    """Return a generator that depends only on the seed, the diagnostic, the task and the epoch."""
    key = [method.streams.seed, zlib.crc32(f"analysis {name}".encode()), event.task, event.epoch]
    seed = int(np.random.default_rng(key).integers(2**63))
    return torch.Generator(method.pool.y.device).manual_seed(seed)


def _has_memory(method: Method) -> bool:
    """Whether the method replays exemplars of earlier tasks."""
    return method.replays and len(method.pool) > method.pool.num_new


def _has_two_classes(method: Method) -> bool:
    """Whether the pool has two classes, and two samples of one of them."""
    counts = method.pool.y.bincount()
    return int((counts > 0).sum()) > 1 and int(counts.max()) > 1


def _memory_of(method: Method) -> Samples:
    """Return all exemplars of earlier tasks."""
    pool = method.pool
    return _fetch(method, torch.arange(pool.num_new, len(pool), device=pool.y.device))


def _draw_exemplars(method: Method, generator: torch.Generator, with_memory: bool) -> Samples:
    """Draw up to `EXEMPLARS` samples of every class of the current task, or of all classes."""
    number = len(method.pool) if with_memory else method.pool.num_new
    labels, outputs = method.pool.y[:number], method.head.out_features
    return _fetch(method, draw_per_class(labels, EXEMPLARS, generator, outputs))


def _fetch(method: Method, index: Tensor) -> Samples:
    return Samples(method.pool.inputs(index), method.pool.y[index])


def _measure_detrimental_rate(method: Method, generator: torch.Generator) -> dict[str, Any]:
    """Measure both rates on the same mixed samples, with the run's batch sizes and α."""
    settings, recipe, pool = method.settings, method.mixer.recipe, method.pool
    order = torch.randperm(pool.num_new, generator=generator, device=pool.y.device)
    current = _fetch(method, order[: BATCHES * settings.batch_size])
    memory = _memory_of(method)
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


def _measure_pairs(
    diagnostic: Callable[..., ApproximationError | PairAgreement], ratios: tuple[float, ...]
) -> Callable[[Method, torch.Generator], dict[str, Any]]:
    """Return a function that measures a diagnostic of pairs at these mixing ratios."""

    def measure(method: Method, generator: torch.Generator) -> dict[str, Any]:
        found = diagnostic(
            method.model,
            _memory_of(method),
            _draw_exemplars(method, generator, with_memory=False),
            lambdas=ratios,
            rows=_num_rows(method, len(ratios)),
            head=method.head,
            generator=generator,
        )
        values = found._asdict().items()
        return {name: list(one) if isinstance(one, tuple) else one for name, one in values}

    return measure


def _num_rows(method: Method, ratios: int) -> int:
    """Return the number of first classes that keeps the network inputs within `MAX_INPUTS`."""
    classes = len(method.pool.y.unique())
    return max(1, MAX_INPUTS // (classes * EXEMPLARS * (ratios + 2)))


def _measure_class_distance(method: Method, generator: torch.Generator) -> dict[str, Any]:
    samples = _draw_exemplars(method, generator, with_memory=True)
    return class_distances(method.model, samples, head=method.head)._asdict()


ANALYSES: dict[str, Analysis] = {
    "detrimental-rate": Analysis(
        "mixed samples that cause more forgetting than the original",
        "the paper, Theorem 1",
        _measure_detrimental_rate,
        _has_memory,
        every_epoch=True,
    ),
    "approximation-error": Analysis(
        "error of the criterion's scores against λ",
        "the paper, Sec. 5.2",
        _measure_pairs(approximation_error, CURVE),
        _has_memory,
    ),
    "precision-recall": Analysis(
        "pairs mixed by approximated gradients against true ones",
        "the paper, Sec. 5.2",
        _measure_pairs(pair_agreement, CENTRES),
        _has_memory,
    ),
    "class-distance": Analysis(
        "cosine distance of gradients within and between classes",
        "the paper, Sec. 5.3",
        _measure_class_distance,
        _has_two_classes,
    ),
}
