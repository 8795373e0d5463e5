"""What a run gave, and its file.

The format is described in docs/results.md.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradmix.errors import ResultError

FORMAT = "gradmix-result"

SCHEMA_VERSION = 2
"""Of the files: which fields they have."""

PROTOCOL_VERSION = 1
"""Of what is computed: raised by hand when a configuration comes to give other results."""

LONGEST_NAME = 160
"""Of the readable part of a file name; systems allow 255 letters in all."""


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
    epochs: list[dict[str, Any]]  # task, stage, and for each epoch loss and negative-pair rate
    pair_counts: list[list[list[int]]]  # [l][a][b]: how often a was mixed with b in task l
    seconds: dict[str, Any]  # train, criterion, evaluate, total, criterion_by_task
    analysis: dict[str, Any] = field(default_factory=dict)  # by name, what was measured when
    protocol_version: int = PROTOCOL_VERSION
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION


def result_name(config: dict[str, Any], protocol_version: int = PROTOCOL_VERSION) -> str:
    """The file name of a run: readable, and its own for every configuration and protocol.

    Only settings that differ from their defaults count, so that one that is added later leaves
    the names of older results as they are.
    """
    from gradmix.runs.config import changed_settings

    identity = {"protocol_version": protocol_version, "config": changed_settings(config)}
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    parts = [str(config[key]) for key in ("data", "method", "mix")]
    readable = re.sub(r"[^A-Za-z0-9+.-]", "_", "-".join([*parts, f"seed{config['seed']}"]))
    return f"{readable[:LONGEST_NAME]}-{digest}.json"


def load_result(path: str | os.PathLike[str]) -> RunResult:
    """Read one result file; another format, version or a damaged file is refused."""
    path = Path(path)
    content = read_json(path)
    check_version(path, content)
    known = {f.name for f in fields(RunResult)}
    if content.keys() != known:
        odd = sorted(content.keys() ^ known)
        raise ResultError(f"{path} is damaged: {', '.join(odd)} missing or not expected")
    for f in fields(RunResult):
        kind = str(f.type).partition("[")[0]
        if type(content[f.name]).__name__ != kind:
            raise ResultError(f"{path} is damaged: {f.name} is no {kind}")
    for name in ("data", "method", "mix", "seed"):
        if name not in content["config"]:
            raise ResultError(f"{path} is damaged: config has no {name}")
    return RunResult(**content)


def read_json(path: Path) -> Any:
    """The content of a file; ResultError if it is none or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is no result file: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"it has {constant}, which is no number")


def check_version(path: Path, content: object) -> None:
    """Refuse what is not of this format and version."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ResultError(f"{path} is not of the format {FORMAT!r}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ResultError(
            f"{path} is of version {content.get('schema_version')!r} of the result format; this "
            f"gradmix reads and writes version {SCHEMA_VERSION}: give another folder"
        )
