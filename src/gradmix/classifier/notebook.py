"""A classifier as a small HTML table, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from gradmix.classifier.state import Learned

SHOWN_CLASSES = 20


def table(name: str, learned: Learned | None, changed: Mapping[str, Any]) -> str:
    """Return a table of what a classifier knows and of its parameters.

    Args:
        name: The name of the estimator.
        learned: Its knowledge; None before the first call.
        changed: The parameters that differ from their defaults.
    """
    facts = {} if learned is None else _facts(learned)
    given = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    facts["parameters"] = given or "defaults"
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for key, value in facts.items()
    )
    state = "" if learned else " (not fitted)"
    return f"<table><caption>{escape(name)}{state}</caption>{rows}</table>"


def _facts(learned: Learned) -> dict[str, str]:
    known, report, basis = learned.labels.known, learned.history[-1], learned.basis
    named = ", ".join(str(label) for label in known[:SHOWN_CLASSES])
    more = f" and {len(known) - SHOWN_CLASSES} more" if len(known) > SHOWN_CLASSES else ""
    network = basis.model if isinstance(basis.model, str) else type(basis.model).__name__
    if basis.features is not None:
        network = f"{basis.features.backbone.name}, frozen"
    accuracy = "not measured"
    if report.after is not None:
        accuracy = f"{report.after:.3f} on {report.measured_on}"
        if report.forgotten is not None:
            accuracy += f"; forgotten {report.forgotten:.3f}"
    return {
        "classes": f"{len(known)}: {named}{more}",
        "calls": str(report.call),
        "samples seen": f"{sum(learned.counts):,}",
        "accuracy": accuracy,
        "memory": f"{report.memory} exemplars, {report.held_out} held out",
        "method": f"{type(learned.method).__name__} on {network}",
    }
