"""The report: one self-contained HTML page about any number of runs."""

from __future__ import annotations

from gradmix.report.page import render, write_report

__all__ = ["render", "write_report"]
