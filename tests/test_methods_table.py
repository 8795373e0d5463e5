"""The benchmark of all methods: which mixes it measures."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def configurations(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from benchmarks.methods_table import configurations

    return configurations


@pytest.mark.parametrize(("epochs", "tau"), [(1, 0.5), (10, 0.5), (20, None), (None, None)])
def test_methods_run_plain_and_with_the_default_mix(epochs, tau, configurations):
    configs = configurations(["mnist"], ["er", "lwf"], [0, 1], epochs)
    found = [(c.method, c.mix, c.tau) for c in configs if c.seed == 1]
    assert found == [
        ("er", "none", None),
        ("er", "balanced-remix", tau),
        ("lwf", "none", None),
        ("lwf", "mixup", None),
    ]
    assert len(configs) == 8
