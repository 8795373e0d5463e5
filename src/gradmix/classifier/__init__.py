"""IncrementalClassifier: what an application uses; scikit-learn's conventions, files, reports."""

from gradmix.classifier.classifier import IncrementalClassifier
from gradmix.classifier.report import Report

__all__ = ["IncrementalClassifier", "Report"]
