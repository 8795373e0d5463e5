"""IncrementalClassifier: scikit-learn's conventions, files and reports, for applications."""

from gradmix.classifier.classifier import IncrementalClassifier
from gradmix.classifier.report import Report

__all__ = ["IncrementalClassifier", "Report"]
