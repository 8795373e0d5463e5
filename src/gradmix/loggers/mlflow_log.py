"""A log for MLflow, if the user has installed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradmix.loggers.log import import_service

TAG = "gradmix.name"  # by which a resumed training finds its run


class MlflowLogger:
    """Writes the metrics of an MLflow run.

    Args:
        experiment: The experiment; it is made if it does not exist.
        name: Name of the run.

    Raises:
        MissingPackageError: If mlflow is not installed.
    """

    def __init__(self, experiment: str, name: str) -> None:
        self._mlflow = import_service("mlflow")
        self.experiment, self.name = experiment, name

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start a run, or continue the newest one of this name."""
        self._client = self._mlflow.MlflowClient()
        place = self._mlflow.set_experiment(self.experiment).experiment_id
        earlier = self._earlier(place) if resumed else []
        if earlier:
            self._run: str = earlier[0].info.run_id
            return {name: self._last_step(name) for name in earlier[0].data.metrics}
        tags = {TAG: self.name}
        self._run = self._client.create_run(place, run_name=self.name, tags=tags).info.run_id
        for name, value in config.items():
            self._client.log_param(self._run, name, value)
        return {}

    def _earlier(self, place: str) -> list[Any]:
        where, order = f"tags.`{TAG}` = '{self.name}'", ["attributes.start_time DESC"]
        return list(self._client.search_runs([place], where, order_by=order, max_results=1))

    def _last_step(self, name: str) -> int:
        history = self._client.get_metric_history(self._run, name)
        return max(int(metric.step) for metric in history)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)
