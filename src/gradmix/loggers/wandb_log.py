"""A log for Weights & Biases, if the user has installed it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from gradmix.loggers.log import import_service


class WandbLogger:
    """Writes the history of a run of Weights & Biases.

    The same name gives the same run, also from another process, so that a resumed training
    continues it.

    Args:
        project: The project.
        name: Name of the run.

    Raises:
        MissingPackageError: If wandb is not installed.
    """

    def __init__(self, project: str, name: str) -> None:
        self._wandb = import_service("wandb")
        self.project, self.name = project, name

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start or continue the run."""
        self._run = self._wandb.init(
            project=self.project,
            name=self.name,
            id=sha256(self.name.encode()).hexdigest()[:16],
            config=dict(config),
            resume="allow" if resumed else None,  # None replaces a run of this name
        )
        self._first = int(self._run.step) if resumed else 0  # W&B ignores earlier steps
        return {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers to the history, unless the earlier process has added this step."""
        if step >= self._first:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
