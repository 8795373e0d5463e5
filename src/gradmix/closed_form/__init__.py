"""Closed-form heads: classifiers on frozen embeddings that need no training and forget nothing."""

from gradmix.closed_form.calibration import expected_calibration_error, fit_temperature
from gradmix.closed_form.head import ClosedFormHead, Linear
from gradmix.closed_form.ncm import NearestMean
from gradmix.closed_form.novelty import energy, fit_threshold
from gradmix.closed_form.ridge import Ridge
from gradmix.closed_form.slda import SLDA

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
