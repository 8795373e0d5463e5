"""Fixtures that run code in processes of their own, because it may crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., dict[str, Any]]
_SERVER = Path(__file__).with_name("training_server.py")


@pytest.fixture(scope="session")
def train_in_child() -> Iterator[Run]:
    """Return a function that runs one case of `training_server` in a forked process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, results = server.stdin, server.stdout

        def run(**case: Any) -> dict[str, Any]:
            print(json.dumps(case), file=requests, flush=True)
            answer: dict[str, Any] = json.loads(results.readline())
            return answer

        yield run
        requests.close()
