"""Compare a sweep in two processes with a sweep in one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

RUNS = ["--data", "digits", "--seeds", "0-7", "--epochs", "400"]


def two_jobs_over_one() -> str:
    """Return the wall time of eight equal runs with two jobs over one job, start-up included."""
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
