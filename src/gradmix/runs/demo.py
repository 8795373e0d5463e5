"""The demonstration: what selective mixing buys on a small set that comes with the package."""

from __future__ import annotations

from gradmix.runs.config import RunConfig, config_for

MIXES = ("none", "mixup", "remix", "gradmix+")
SEEDS = (5, 6, 7, 8, 9)
"""The settings of the digits were fixed on seeds 0 to 4; these were not looked at then."""


def demo_configs() -> list[RunConfig]:
    """Every mix with every seed, in the order they are run."""
    return [config_for("digits", mix=mix, seed=seed) for mix in MIXES for seed in SEEDS]
