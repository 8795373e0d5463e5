"""The runs of the demo: a few mixes on a small data set that comes with the package."""

from __future__ import annotations

from gradmix.runs.config import RunConfig, config_for

MIXES = ("none", "mixup", "remix", "gradmix+")
SEEDS = (5, 6, 7, 8, 9)
"""The settings for the digits were chosen on seeds 0 to 4."""


def demo_configs() -> list[RunConfig]:
    """Return every mix with every seed, in the order of computation."""
    return [config_for("digits", mix=mix, seed=seed) for mix in MIXES for seed in SEEDS]
