"""What a second process buys a sweep."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

RUNS = ["--data", "digits", "--seeds", "0-7", "--epochs", "400"]


def two_jobs_over_one() -> str:
    """Eight equal runs by the command line, from its start to its end."""
    one, two = sweep_seconds(1), sweep_seconds(2)
    return (
        "gradmix sweep of 8 runs, --jobs 2 over --jobs 1 (at most 0.6): "
        f"{two / one:.3f} ({two:.0f} s over {one:.0f} s)"
    )


def sweep_seconds(jobs: int) -> float:
    program = [sys.executable, "-c", "from gradmix.cli import main; main()"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*program, "sweep", *RUNS, "--jobs", str(jobs), "--out", folder]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - started
