"""The result of a run and its file; docs/results.md describes the format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from gradmix.errors import InputError
from gradmix.mixing.recipe import parse_recipe
from gradmix.settings import changed_settings

FORMAT = "gradmix-result"

SCHEMA_VERSION = 2
"""The version of the files: which fields they have."""

LONGEST_NAME = 160
"""Characters in the readable part of a file name; file systems allow 255 in all."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run; every list over tasks is in the order of learning."""

    config: dict[str, Any]  # a RunConfig in JSON form
    versions: dict[str, str]  # of Python, packages and platform, and the CPU capability
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
    analysis: dict[str, Any] = field(default_factory=dict)  # entries of each analysis, by name
    protocol_version: int = 1
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION

    @property
    def cpu_capability(self) -> str | None:
        """The CPU's instruction set as PyTorch names it; None if the file does not say.

        Runs of the same seed differ between instruction sets.
        """
        return self.versions.get("cpu_capability")


def protocol_version(config: Mapping[str, Any]) -> int:
    """Return the version of the computation that a configuration stands for.

    A result is current if it has the version of its configuration. Version 2 marks the
    configurations whose results changed when it was introduced:

    - Gradient partners with the CutMix blend: the pair table now follows the λ that CutMix uses.
    - Vision transformers: their initialisation changed.

    All other configurations keep version 1. Their results have the same bits as before, except for
    ResNets on CPUs with images above 32 pixels: these differ by rounding, as between two types of
    CPU, because they no longer use the channels-last format.

    >>> protocol_version({"mix": "gradmix+", "model": "mlp"})
    1
    >>> protocol_version({"mix": "gradient:cutmix:remix", "model": "mlp"})
    2
    """
    if str(config.get("model")).startswith("vit"):
        return 2
    try:
        recipe = parse_recipe(str(config.get("mix")))
    except InputError:  # a mix of another version
        return 1
    changed = recipe is not None and recipe.uses_gradients and recipe.blend == "cutmix"
    return 2 if changed else 1


def result_name(config: Mapping[str, Any], version: int | None = None) -> str:
    """Return the file name of a run: readable, and unique for its configuration and protocol.

    Only settings that differ from their defaults count, so a setting that is added later does
    not change the names of older results.

    Args:
        config: The configuration in JSON form.
        version: The protocol version; None is the one of the configuration.
    """
    version = protocol_version(config) if version is None else version
    identity = {"protocol_version": version, "config": changed_settings(config)}
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    parts = [str(config[key]) for key in ("data", "method", "mix")]
    readable = re.sub(r"[^A-Za-z0-9+.-]", "_", "-".join([*parts, f"seed{config['seed']}"]))
    return f"{readable[:LONGEST_NAME]}-{digest}.json"


def load_result(path: str | os.PathLike[str]) -> RunResult:
    """Return the result in a file.

    Raises:
        FileError: If the file cannot be read, has another format or version, or is damaged. The
            message names the file and the field.
    """
    from gradmix.runs._schemas import read_result  # imports PyTorch, which names do not need

    return RunResult(**read_result(path))
