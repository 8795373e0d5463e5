"""One JSON file per run, in a folder that says which version of the format it holds.

The format is described in docs/results.md. Files are written to a temporary name, flushed and
renamed: a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradmix.errors import ResultError

FORMAT = "gradmix-result"
SCHEMA_VERSION = 1
MARKER = "gradmix.json"


@dataclass(frozen=True)
class RunResult:
    """What a run gave; every list over tasks is in the order they were learned."""

    config: dict[str, Any]  # a RunConfig
    versions: dict[str, str]
    class_names: list[str]  # by label, in order of arrival
    class_order: list[int]  # the data set's own number of each class
    tasks: list[dict[str, Any]]  # classes, train and test samples, memory after, replay batch
    accuracy: list[list[float]]  # [l][t]: on task t after task l
    initial_accuracy: list[float]  # on every task, before training
    class_accuracy: list[list[float]]  # [l][c]: on class c after task l
    metrics: dict[str, float]
    variants: dict[str, dict[str, Any]]  # accuracy and metrics of a method's other predictors
    epochs: list[dict[str, Any]]  # task, stage, epoch, loss, negative-pair rate
    pair_counts: list[list[list[int]]]  # [l][a][b]: how often a was mixed with b in task l
    seconds: dict[str, float]  # train, criterion, evaluate, total
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION


def result_name(config: dict[str, Any]) -> str:
    """The file name of a run: readable, and its own for every configuration."""
    digest = sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    parts = [str(config[key]) for key in ("data", "method", "mix")]
    readable = re.sub(r"[^A-Za-z0-9+.-]", "_", "-".join([*parts, f"seed{config['seed']}"]))
    return f"{readable}-{digest}.json"


class ResultFolder:
    """A folder of results, checked before any work: writable, and of this version."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        marker = self.path / MARKER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if marker.exists():
                _check_version(marker, json.loads(marker.read_text(encoding="utf-8")))
            else:
                text = json.dumps({"format": FORMAT, "schema_version": SCHEMA_VERSION})
                write_atomically(marker, text + "\n")
            tempfile.TemporaryFile(dir=self.path).close()
        except (OSError, ValueError) as error:
            if isinstance(error, ResultError):
                raise
            raise ResultError(
                f"out is {os.fspath(path)!r}, where results cannot be kept ({error}); "
                "give a folder that can be written to"
            ) from error

    def save(self, result: RunResult) -> Path:
        """Write one result; one of the same configuration is replaced."""
        path = self.path / result_name(result.config)
        write_atomically(path, json.dumps(asdict(result), allow_nan=False) + "\n")
        return path

    def find(self, config: dict[str, Any]) -> RunResult | None:
        """The result of this configuration, if the folder has it."""
        path = self.path / result_name(config)
        return load_result(path) if path.exists() else None


def load_result(path: str | os.PathLike[str]) -> RunResult:
    """Read one result file; another format, version or a damaged file is refused."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is no result file: {error}") from error
    _check_version(path, content)
    known = {f.name for f in fields(RunResult)}
    if content.keys() != known:
        odd = sorted(content.keys() ^ known)
        raise ResultError(f"{path} is damaged: {', '.join(odd)} missing or not expected")
    return RunResult(**content)


def _check_version(path: Path, content: object) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ResultError(f"{path} is not of the format {FORMAT!r}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ResultError(
            f"{path} is of version {content.get('schema_version')!r} of the result format; this "
            f"gradmix reads and writes version {SCHEMA_VERSION}: give another folder"
        )


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, even after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
