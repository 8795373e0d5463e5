"""The paper's diagnostics for any model, memory and task; docs/diagnostics.md defines them.

Samples are network inputs with int64 labels. The last layer is found, or given as `head`. No
diagnostic changes the model: its mode, statistics and gradients stay the same.

A run measures diagnostics by name: whoever consumes the events of the training loop passes each
event to `take`.
"""

from __future__ import annotations

from gradmix.diagnostics.approximation import (
    ApproximationError,
    PairAgreement,
    PairScores,
    approximation_error,
    class_pair_scores,
    pair_agreement,
)
from gradmix.diagnostics.gradients import (
    ClassDistances,
    class_distances,
    criterion_seconds,
    detrimental_rate,
)
from gradmix.diagnostics.measurements import ANALYSES, Analysis, take

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
