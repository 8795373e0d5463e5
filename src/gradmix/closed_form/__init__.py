"""Closed-form heads: classifiers on frozen embeddings that need no training and forget nothing."""

from gradmix.closed_form.base import ClosedFormHead, Linear
from gradmix.closed_form.calibration import (
    CalibratedHead,
    energy,
    every_tenth,
    expected_calibration_error,
    fit_temperature,
    fit_threshold,
)
from gradmix.closed_form.heads import SLDA, NearestMean, Ridge

__all__ = [
    "SLDA",
    "CalibratedHead",
    "ClosedFormHead",
    "Linear",
    "NearestMean",
    "Ridge",
    "energy",
    "every_tenth",
    "expected_calibration_error",
    "fit_temperature",
    "fit_threshold",
]
