"""Count lines, files, function lengths, and the files that one action passes."""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import gradmix

SOURCE = Path(gradmix.__file__).parent


def files_passed(action: Callable[[], object]) -> list[str]:
    """Return the source files of gradmix in which a function runs during an action."""
    action()  # so that all modules are imported
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    inside = [Path(name) for name in seen if name.startswith(str(SOURCE))]
    return sorted(str(path.relative_to(SOURCE)) for path in inside)


def function_lengths() -> list[int]:
    """Return the number of lines of every function, docstrings included."""
    lengths = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                lengths.append(node.end_lineno - node.lineno + 1)
    return sorted(lengths)


def files_mentioning(word: str) -> list[str]:
    """Return the source files that mention a word."""
    pattern = re.compile(rf"\b{word}\b")
    return [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]


def one_run() -> object:
    """Run `gradmix run` on the digits, in this process."""
    from typer.testing import CliRunner

    from gradmix.cli.commands import app

    with tempfile.TemporaryDirectory() as folder:
        options = ["--data", "digits", "--mix", "gradmix+", "--epochs", "1", "--out", folder]
        result = CliRunner().invoke(app, ["run", *options])
        assert result.exit_code == 0, result.output
        return result


def one_step() -> list[str]:
    """Return the files that a step of ER with gradmix+ passes, the start of an epoch excluded."""
    from gradmix.runs.config import config_for
    from gradmix.runs.run import load_benchmark, prepare
    from gradmix.training.loop import StepDone

    config = config_for("digits", mix="gradmix+", epochs=2)
    events = prepare(config, load_benchmark(config)).events()
    steps = (event for event in events if isinstance(event, StepDone) and event.task == 1)
    next(steps)
    return files_passed(lambda: next(events))


def one_partial_fit() -> object:
    """Learn two classes of random rows, then two more."""
    rng = np.random.default_rng(0)
    classifier = gradmix.IncrementalClassifier(epochs=1, random_state=0, threads=1)
    for first in (0, 2):
        y = np.repeat([first, first + 1], 20)
        classifier.partial_fit(rng.normal(size=(40, 5)) + y[:, None], y)
    return classifier


def main() -> None:
    sources = list(SOURCE.rglob("*.py"))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources)
    lengths = function_lengths()
    print(f"lines {lines}, files {len(sources)}")
    p90 = lengths[int(0.9 * len(lengths))]
    print(f"function length: median {statistics.median(lengths):g}, 90th percentile {p90}")
    for name, passed in (
        ("gradmix run", files_passed(one_run)),
        ("one step", one_step()),
        ("two partial_fit", files_passed(one_partial_fit)),
    ):
        print(f"{name} passes {len(passed)} files: {' '.join(passed)}")
    for setting in ("replay_batch_size", "criterion_exemplars", "weight_decay", "pairing", "tau"):
        found = files_mentioning(setting)
        print(f"{setting} in {len(found)} files: {' '.join(found)}")


if __name__ == "__main__":
    main()
