"""The paper's diagnostics, for any model, memory and task; docs/analysis.md has the definitions.

Samples are network inputs and int64 labels, as for the drop-in `gradmix.GradMix`; the last layer
is found, or given as `head`. Models are left as they were: mode, statistics and gradients.

A run takes analyses along by name: whoever consumes the loop's events calls `take` at each.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradmix.diagnostics.approximation import (
    ApproximationError,
    PairAgreement,
    approximation_error,
    pair_agreement,
)
from gradmix.diagnostics.detrimental import detrimental_rate
from gradmix.diagnostics.distances import ClassDistances, class_distances
from gradmix.diagnostics.measurements import (
    Analysis,
    has_classes,
    has_memory,
    measure_approximation_error,
    measure_class_distance,
    measure_detrimental_rate,
    measure_precision_recall,
)
from gradmix.diagnostics.pairs import PairScores, class_pair_scores
from gradmix.diagnostics.timing import criterion_seconds
from gradmix.errors import UnknownNameError
from gradmix.methods import Method
from gradmix.training.loop import EpochDone, Event, Training

__all__ = [
    "ANALYSES",
    "Analysis",
    "ApproximationError",
    "ClassDistances",
    "PairAgreement",
    "PairScores",
    "approximation_error",
    "class_distances",
    "class_pair_scores",
    "criterion_seconds",
    "detrimental_rate",
    "pair_agreement",
    "take",
]

ANALYSES: dict[str, Analysis] = {
    "detrimental-rate": Analysis(
        "mixed samples that cause more forgetting than the original",
        "the paper, Theorem 1",
        measure_detrimental_rate,
        has_memory,
        every_epoch=True,
    ),
    "approximation-error": Analysis(
        "error of the criterion's scores against λ",
        "the paper, Sec. 5.2",
        measure_approximation_error,
        has_memory,
    ),
    "precision-recall": Analysis(
        "pairs mixed by approximated gradients against true ones",
        "the paper, Sec. 5.2",
        measure_precision_recall,
        has_memory,
    ),
    "class-distance": Analysis(
        "cosine distance of gradients within and between classes",
        "the paper, Sec. 5.3",
        measure_class_distance,
        has_classes,
    ),
}


def take(names: Sequence[str], training: Training, event: Event) -> dict[str, dict[str, Any]]:
    """The named analyses that are due at this event, by name; empty if none is.

    They are due at the end of epochs of a task's first stage, which is the one that trains the
    network of the criterion: the detrimental rate after every epoch, the others after epochs 1,
    2, 4, 8 … and the last. What is about a memory is not due while there is none.
    """
    for name in names:
        if name not in ANALYSES:
            raise UnknownNameError("analysis", name, ANALYSES)
    method = training.method
    if not isinstance(event, EpochDone) or event.stage != method.stages()[0].name:
        return {}
    doubled = event.epoch & (event.epoch - 1) == 0 or event.epoch == event.epochs
    return {
        name: ANALYSES[name].measure(method, _generator(name, method, event))
        for name in names
        if (doubled or ANALYSES[name].every_epoch) and ANALYSES[name].possible(method)
    }


def _generator(name: str, method: Method, event: EpochDone) -> torch.Generator:
    """Of nobody else, and the same whatever was measured before."""
    key = [method.streams.seed, zlib.crc32(f"analysis {name}".encode()), event.task, event.epoch]
    seed = int(np.random.default_rng(key).integers(2**63))
    return torch.Generator(method.pool.y.device).manual_seed(seed)
