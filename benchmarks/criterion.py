"""Compare the closed-form criterion with explicit gradients, and measure its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import seconds
from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.scores import Exemplars
from gradmix.criterion.selector import pair_tables


def exemplars(classes: int, features: int, each: int) -> Exemplars:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(classes * each, features, generator=generator)
    weight = torch.randn(classes, features, generator=generator) / features**0.5
    return Exemplars(X, X @ weight.T, torch.arange(classes).repeat_interleave(each))


def _all(samples: Exemplars) -> Tensor:
    return torch.ones_like(samples.labels, dtype=torch.bool)


def reference_over_fast() -> str:
    samples = exemplars(100, 512, 32)
    pair_tables(samples, _all(samples), [0.3])
    fast = sorted(seconds(lambda: pair_tables(samples, _all(samples), [0.3])) for _ in range(9))[4]
    slow = seconds(lambda: reference_pair_table(samples, _all(samples), 0.3))
    return (
        "explicit gradients over closed form, C=100 d=512 m=32 (at least 200): "
        f"{slow / fast:.0f} ({slow:.2f} s over a median of {1000 * fast:.1f} ms)"
    )


def peak_memory() -> str:
    """Return the resident memory beyond the inputs, measured in a separate process."""
    outcome = subprocess.run(
        [sys.executable, "-m", "benchmarks.criterion"], capture_output=True, text=True, check=True
    )
    return f"criterion beyond its inputs, C=1000 m=8 (at most 200 MB): {outcome.stdout.strip()}"


def _measure_peak() -> None:
    torch.set_num_threads(1)
    small = exemplars(10, 512, 8)
    pair_tables(small, _all(small), [0.3])  # libraries are loaded before the count
    samples = exemplars(1000, 512, 8)
    before = _peak_kilobytes()
    pair_tables(samples, _all(samples), [0.3])
    print(f"{(_peak_kilobytes() - before) / 1024:.0f} MB")


def _peak_kilobytes() -> int:
    """Return Linux's peak memory of this process; ru_maxrss would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    _measure_peak()
