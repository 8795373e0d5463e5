"""Train one small classifier per line of standard input, each in a forked process.

The server imports PyTorch once and runs no PyTorch operation itself, so a fork is safe and takes
milliseconds. A child that crashes ends only itself; the server reports its exit status.

    python training_server.py < cases > results        # JSON lines in, JSON lines out
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  # imported lazily by gradmix; here once for all children
import numpy as np

from gradmix import IncrementalClassifier
from gradmix.errors import DataWarning

PREDICTED = 4  # images


def train_predict_save_load(case: dict[str, Any]) -> None:
    """Train for two steps; the saved and loaded classifier must predict the same."""
    size, batch = case["size"], case["batch"]
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (2 * batch, case["channels"], size, size), dtype=np.uint8)
    classifier = IncrementalClassifier(
        method="er", model=case["model"], epochs=1, batch_size=batch, random_state=0, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # few samples per class
        classifier.fit(x, np.arange(2 * batch) % 2)
    assert classifier.report_.steps == 2
    before = classifier.predict_proba(x[:PREDICTED])
    assert np.isfinite(before).all()
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder, "model.gradmix"))
        loaded = IncrementalClassifier.load(Path(folder, "model.gradmix"))
    assert np.array_equal(loaded.predict(x[:PREDICTED]), classifier.predict(x[:PREDICTED]))
    assert np.array_equal(loaded.predict_proba(x[:PREDICTED]), before)


def run_in_child(case: dict[str, Any]) -> dict[str, Any]:
    """Return the child's exit status (negative: a signal), error output and peak memory."""
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            _child(case, errors.fileno())
        _, status, usage = os.wait4(pid, 0)
        errors.seek(0)
        text = errors.read().decode(errors="replace")[-2000:]
    exit_code = os.waitstatus_to_exitcode(status)
    return {"exit": exit_code, "errors": text, "megabytes": usage.ru_maxrss // 1024}


def _child(case: dict[str, Any], errors: int) -> None:
    """Run the case and end the process without the parent's clean-up."""
    os.dup2(errors, 2)
    code = 1
    try:
        train_predict_save_load(case)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_in_child(json.loads(line))), flush=True)  # noqa: T201
