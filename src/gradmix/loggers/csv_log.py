"""A log as a CSV file with the columns step, name and value."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmix.errors import FileError
from gradmix.files.atomic_write import replacing

HEAD = "step,name,value\n"


class CsvLogger:
    """Writes a file in a folder, a row for every number.

    Args:
        folder: The folder; it is made if it does not exist.
        name: Name of the file, without .csv.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.path = Path(folder) / f"{name}.csv"

    def begin(self, config: Mapping[str, Any], resumed: bool) -> Mapping[str, int]:
        """Start or continue the file; an incomplete last row is dropped."""
        text = self._text()
        rows = text[: text.rfind("\n") + 1] if resumed and text else HEAD
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if rows != text:
                with replacing(self.path) as file:
                    file.write(rows.encode())
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error}") from error
        return {row[1]: int(row[0]) for row in csv.reader(io.StringIO(rows[len(HEAD) :]))}

    def _text(self) -> str:
        """Return the content of the file; empty if there is none."""
        if not self.path.exists():
            return ""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.startswith(HEAD):
            raise FileError(f"{self.path} is not a log; give another folder")
        return text

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row for every number."""
        rows = "".join(f"{step},{name},{value!r}\n" for name, value in values.items())
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(rows)

    def close(self) -> None:
        """Do nothing: the file is complete after every row."""
