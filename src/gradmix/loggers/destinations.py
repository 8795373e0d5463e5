"""The loggers of gradmix: a CSV file, TensorBoard, Weights & Biases and MLflow.

Each is made from a place, such as a folder or a project, and the name of the log. The packages of
the services are imported when they are used.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from gradmix.errors import FileError, MissingPackageError
from gradmix.files.atomic_write import replacing

HEAD = "step,name,value\n"
TAG = "gradmix.name"  # by which a resumed training finds its MLflow run


class CsvLogger:
    """Writes a CSV file in a folder, with a row for every number."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = Path(folder) / f"{name}.csv"

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start or continue the file; an incomplete last row is dropped."""
        text = ""
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.startswith(HEAD):
            raise FileError(f"{self.path} is not a log; give another folder")
        rows = text[: text.rfind("\n") + 1] if resumed and text else HEAD
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if rows != text:
                with replacing(self.path) as file:
                    file.write(rows.encode())
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error}") from error
        return {row[1]: int(row[0]) for row in csv.reader(io.StringIO(rows[len(HEAD) :]))}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row for every number."""
        rows = "".join(f"{step},{name},{value!r}\n" for name, value in values.items())
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(rows)

    def close(self) -> None:
        """Do nothing: the file is complete after every row."""


class TensorBoardLogger:
    """Writes scalars to a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: str, name: str) -> None:
        _import_service("tensorboard", "'gradmix[tensorboard]'")
        self.folder = Path(folder) / name

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start a new log, or continue with another file beside those of the earlier log."""
        if not resumed:
            for file in self.folder.glob("events.out.tfevents.*"):
                file.unlink()
        last = self._last_steps() if resumed and self.folder.is_dir() else {}
        writers: Any = import_module("torch.utils.tensorboard")  # slow to import
        self._writer = writers.SummaryWriter(str(self.folder))
        if not resumed:
            lines = "\n".join(f"    {name} = {value}" for name, value in config.items())
            self._writer.add_text("config", lines)
        return last

    def _last_steps(self) -> dict[str, int]:
        readers: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
        earlier = readers.EventAccumulator(str(self.folder), {"scalars": 1})  # keeps the last
        earlier.Reload()
        return {name: earlier.Scalars(name)[-1].step for name in earlier.Tags()["scalars"]}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars to the file at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """Writes the history of a run of Weights & Biases.

    The same name gives the same run, also from another process, so that a resumed training
    continues it.
    """

    def __init__(self, project: str, name: str) -> None:
        self._wandb = _import_service("wandb")
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


class MlflowLogger:
    """Writes the metrics of an MLflow run; the place is an experiment."""

    def __init__(self, experiment: str, name: str) -> None:
        self._mlflow = _import_service("mlflow")
        self.experiment, self.name = experiment, name

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start a run, or continue the newest one of this name."""
        self._client = client = self._mlflow.MlflowClient()
        place = self._mlflow.set_experiment(self.experiment).experiment_id
        if resumed:
            where, order = f"tags.`{TAG}` = '{self.name}'", ["attributes.start_time DESC"]
            for earlier in client.search_runs([place], where, order_by=order, max_results=1):
                self._run: str = earlier.info.run_id
                logged = {n: client.get_metric_history(self._run, n) for n in earlier.data.metrics}
                return {n: max(int(row.step) for row in rows) for n, rows in logged.items()}
        tags = {TAG: self.name}
        self._run = client.create_run(place, run_name=self.name, tags=tags).info.run_id
        for name, value in config.items():
            client.log_param(self._run, name, value)
        return {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


def _import_service(name: str, install: str = "") -> Any:
    """Return a package that not every installation has."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackageError(
            f"{name} is not installed: pip install {install or name}, or log to csv"
        ) from None
