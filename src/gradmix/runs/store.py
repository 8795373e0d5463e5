"""A folder of results that several processes may use at once.

    gradmix.json      which version of the format the folder holds
    NAME.json         a finished run
    NAME.checkpoint   an unfinished one, to go on with
    failed/NAME.json  a run that ended in an error, and the error
    running/NAME      kept by the process that is computing the run

Files are written to a temporary name, flushed and renamed: a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmix.files.atomic_write import remove_leftovers, write_text
from gradmix.errors import ResultError
from gradmix.runs.claims import (
    Claim,
    RunProgress,
    claimed_in,
    free,
    read_progress,
    try_to_claim,
)
from gradmix.runs.results import (
    FORMAT,
    PROTOCOL_VERSION,
    SCHEMA_VERSION,
    RunResult,
    check_version,
    load_result,
    read_json,
    result_name,
)

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig

MARKER = "gradmix.json"
CHECKPOINT = ".checkpoint"


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error."""

    config: dict[str, Any]  # a RunConfig
    error: str  # its type
    message: str
    traceback: str  # with paths below the folders that Python imports from
    protocol_version: int = PROTOCOL_VERSION


class ResultStore:
    """The results in a folder, of this version of the format.

    A folder that is not there yet is one without results, until `create` makes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise ResultError("out is ''; name a folder, such as runs")
        self.path = Path(path)
        marker = self.path / MARKER
        if marker.exists():
            check_version(marker, read_json(marker))

    def create(self) -> ResultStore:
        """Make the folder; ResultError, before any work, if it cannot be written to."""
        marker = self.path / MARKER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                text = json.dumps({"format": FORMAT, "schema_version": SCHEMA_VERSION})
                write_text(marker, text + "\n")
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise ResultError(
                f"out is {os.fspath(self.path)!r}, where results cannot be kept ({error}); "
                "give a folder that can be written to"
            ) from error
        return self

    # --- finished runs ----------------------------------------------------------------------

    def path_of(self, config: RunConfig) -> Path:
        """Where the result of this configuration is, or would be."""
        return self.path / result_name(config.to_json())

    def find(self, config: RunConfig) -> RunResult | None:
        """The result of this configuration, if there is one."""
        path = self.path_of(config)
        return load_result(path) if path.exists() else None

    def save(self, result: RunResult) -> Path:
        """Write one result; one of the same configuration is replaced, the rest forgotten."""
        path = self.path / result_name(result.config, result.protocol_version)
        write_text(path, json.dumps(asdict(result), allow_nan=False) + "\n")
        self._failed(path.name).unlink(missing_ok=True)
        _forget(path.with_suffix(CHECKPOINT))
        return path

    def results(self) -> list[RunResult]:
        """All of them, in the order of their names."""
        paths = sorted(p for p in self.path.glob("[!.]*.json") if p.name != MARKER)
        return [load_result(path) for path in paths]

    # --- unfinished runs --------------------------------------------------------------------

    def checkpoint_of(self, config: RunConfig) -> Path:
        """Where a run of this configuration is kept until it is finished."""
        return self.path_of(config).with_suffix(CHECKPOINT)

    def forget_checkpoint(self, config: RunConfig) -> None:
        """Let the run start anew."""
        _forget(self.checkpoint_of(config))

    # --- failed runs ------------------------------------------------------------------------

    def _failed(self, name: str) -> Path:
        return self.path / "failed" / name

    def save_failure(self, config: RunConfig, error: BaseException) -> Failure:
        """Record that a run ended in this error."""
        failure = Failure(
            config.to_json(), type(error).__name__, str(error), _short_traceback(error)
        )
        path = self._failed(self.path_of(config).name)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(asdict(failure), indent=1) + "\n")
        return failure

    def find_failure(self, config: RunConfig) -> Failure | None:
        """How the run of this configuration failed, if it did and has not succeeded since."""
        path = self._failed(self.path_of(config).name)
        return _load_failure(path) if path.exists() else None

    def failures(self) -> list[Failure]:
        """All of them, in the order of their names."""
        return [_load_failure(path) for path in sorted(self._failed("").glob("[!.]*.json"))]

    # --- running ones -----------------------------------------------------------------------

    def _running(self, config: RunConfig) -> Path:
        return self.path / "running" / self.path_of(config).stem

    def claim(self, config: RunConfig) -> Claim | None:
        """The right to compute this run, until it is released; None while another has it."""
        return try_to_claim(self._running(config))

    def progress(self) -> dict[str, RunProgress | None]:
        """How far each running run is, by the stem of its file's name."""
        return {path.name: read_progress(path) for path in claimed_in(self.path / "running")}

    def free_if_abandoned(self, config: RunConfig) -> bool:
        """Whether the process died that was computing this run; what it left is removed."""
        path = self._running(config)
        return path in claimed_in(path.parent) and self._tidy(path)

    def tidy(self) -> None:
        """Remove what processes left behind that died while they computed a run."""
        for path in claimed_in(self.path / "running"):
            self._tidy(path)

    def _tidy(self, path: Path) -> bool:
        claim = try_to_claim(path)
        if claim is None:
            return False
        with claim:
            name = f"{path.name}.json"
            for file in (path, self.path / name, self._failed(name)):
                remove_leftovers(file)
            checkpoint = self.path / f"{path.name}{CHECKPOINT}"
            free(checkpoint)
            if (self.path / name).exists():  # the process died just before it did this
                _forget(checkpoint)
            remove_leftovers(checkpoint)
        return True


def _forget(checkpoint: Path) -> None:
    checkpoint.unlink(missing_ok=True)
    remove_leftovers(checkpoint)


def _load_failure(path: Path) -> Failure:
    content = read_json(path)
    if not isinstance(content, dict) or content.keys() != {f.name for f in fields(Failure)}:
        raise ResultError(f"{path} is damaged; remove it, and the run counts as never begun")
    return Failure(**content)


def _short_traceback(error: BaseException) -> str:
    """Without the folders of this machine."""
    text = "".join(traceback.format_exception(error))
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(os.path.join(folder, ""), "")
    return text
