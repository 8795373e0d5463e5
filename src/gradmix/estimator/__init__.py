"""IncrementalClassifier: what an application uses; scikit-learn's conventions, files, reports."""

from gradmix.estimator.classifier import IncrementalClassifier
from gradmix.estimator.report import Report

__all__ = ["IncrementalClassifier", "Report"]
