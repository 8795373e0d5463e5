"""A log for TensorBoard, from the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gradmix.loggers.log import import_service


class TensorBoardLogger:
    """Writes scalars to a folder that `tensorboard --logdir` shows.

    Args:
        folder: The folder of all logs.
        name: Name of the folder of this log.

    Raises:
        MissingPackageError: If tensorboard is not installed.
    """

    def __init__(self, folder: str, name: str) -> None:
        import_service("tensorboard", "'gradmix[tensorboard]'")
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
