"""Measure the processor time of every method over ER's: `python -m benchmarks.methods_times`.

One run of five tasks on a sixth of MNIST's size and shape, random images, one epoch per task, one
thread. The time includes selection of exemplars and the evaluation of few test images. Processor
time hardly depends on other programs, so the machine need not be idle.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

import gradmix
from gradmix.data import from_arrays
from gradmix.methods import METHODS

REPEATS = 3


def images() -> object:
    """Return ten classes of 1,000 training and 20 test images, noise around random patterns."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (10, 28, 28))
    parts = []
    for count in (1000, 20):
        y = np.repeat(np.arange(10), count)
        parts += [(patterns[y] + rng.integers(0, 56, (len(y), 28, 28))).astype(np.uint8), y]
    return from_arrays(*parts, name="patterns")


def seconds(method: str, mix: str) -> float:
    """Return the least processor time of a run."""
    config = gradmix.config_for("patterns", method=method, mix=mix, epochs=1, lr=0.001)
    spent = []
    for _ in range(REPEATS):
        began = time.process_time()
        gradmix.run(config)
        spent.append(time.process_time() - began)
    return min(spent)


def main() -> None:
    warnings.filterwarnings("ignore")
    gradmix.register("dataset", "patterns", images)
    trained = [name for name, info in METHODS.items() if info.build.trains]
    base = seconds("er", "none")
    print(f"ER takes {base:.2f} s\n\n| Method | run / ER's run |\n|---|---|")
    for method in trained:
        print(f"| `{method}` | {seconds(method, 'none') / base:.2f} |", flush=True)


if __name__ == "__main__":
    main()
