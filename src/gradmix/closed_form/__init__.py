"""Closed-form heads: classifiers on frozen embeddings that need no training and forget nothing."""

from gradmix.closed_form.calibration import (
    energy,
    expected_calibration_error,
    fit_temperature,
    fit_threshold,
)
from gradmix.closed_form.gaussian import SLDA, NearestMean
from gradmix.closed_form.head import ClosedFormHead, Linear
from gradmix.closed_form.ridge import Ridge

__all__ = [
    "HEADS",
    "SLDA",
    "ClosedFormHead",
    "Linear",
    "NearestMean",
    "Ridge",
    "energy",
    "expected_calibration_error",
    "fit_temperature",
    "fit_threshold",
]

HEADS: dict[str, type[ClosedFormHead]] = {"ncm": NearestMean, "ridge": Ridge, "slda": SLDA}
"""The closed-form heads by name; each takes `embedding_size` and its own settings."""
