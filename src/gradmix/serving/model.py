"""A model file that is served, and loaded again when it is replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore

from PIL import Image

from gradmix.classifier import IncrementalClassifier
from gradmix.classifier.inputs import Label
from gradmix.classifier.report import Ranking, rank
from gradmix.data.image_folders.given import photo_sizes
from gradmix.errors import GradMixError, InputError

AT_ONCE = 2  # requests that decode and compute at the same time; others wait
LARGEST_RATE = 0.5


class TooLargeError(InputError):
    """A photo has more pixels than the server accepts."""


@dataclass(frozen=True)
class Loaded:
    """A classifier, and the false-alarm rate that its held-out photos allow."""

    classifier: IncrementalClassifier
    rate: float | None  # None: no photo is called unknown

    @property
    def classes(self) -> list[Label]:
        """The classes that may be predicted."""
        return [_text(label) for label in self.classifier._fitted().labels.known]


class ServedModel:
    """The newest valid model of a file.

    Args:
        path: The model file.
        false_alarm_rate: The share of photos of learned classes that may be called unknown.
        max_pixels: Photos with more pixels are refused.
        device: Another device than the saved one.

    Raises:
        FileError: If the file cannot be loaded.
        InputError: If the model has not learned photos, or an argument is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        false_alarm_rate: float = 0.05,
        max_pixels: int = 50_000_000,
        device: str | None = None,
    ) -> None:
        if not 0 < false_alarm_rate <= LARGEST_RATE:
            raise InputError(
                f"false_alarm_rate is {false_alarm_rate}; give a number above 0 and at most "
                f"{LARGEST_RATE}"
            )
        self.path, self.problem = Path(path), ""
        self._rate, self._max_pixels, self._device = false_alarm_rate, max_pixels, device
        self._seen = self._version()
        self._loaded = self._load()
        self._room = BoundedSemaphore(AT_ONCE)

    @property
    def loaded(self) -> Loaded:
        """The model that is served now."""
        return self._loaded

    def refresh(self) -> None:
        """Load the file again if it has changed; keep the old model if the new one is invalid."""
        version = self._version()
        if version == self._seen:
            return
        self._seen = version
        try:
            self._loaded = self._load()
            self.problem = ""
        except (GradMixError, OSError) as error:
            self.problem = f"the file has changed and cannot be used: {error}"

    def rank(self, photos: list[bytes], top: int) -> list[Ranking]:
        """Return the most likely classes of encoded photos.

        Raises:
            TooLargeError: If a photo has too many pixels.
            CorruptFileError: If a photo cannot be read.
        """
        with self._room:
            for row, (width, height) in enumerate(photo_sizes(photos, "photo")):
                if width * height > self._max_pixels:
                    raise TooLargeError(
                        f"photo {row + 1} is {width}x{height}; at most {self._max_pixels:,} pixels "
                        "are accepted"
                    )
            loaded = self._loaded
            found = rank(loaded.classifier, photos, top, loaded.rate, "photo")
            return [
                row._replace(classes=[(_text(label), share) for label, share in row.classes])
                for row in found
            ]

    def _version(self) -> tuple[int, ...] | None:
        """Return what changes when the file is replaced; None if there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> Loaded:
        classifier = IncrementalClassifier.load(self.path, device=self._device)
        learned = classifier._fitted()
        if not learned.setup.given.images:
            raise InputError(f"{self.path} has learned rows of numbers; only photos can be served")
        held = 0 if learned.holdout is None else len(learned.holdout)
        rate = max(self._rate, 1 / (held + 1))  # the smallest rate that the held-out samples allow
        loaded = Loaded(classifier, rate if rate <= LARGEST_RATE else None)
        rank(classifier, [Image.new("RGB", (8, 8))], 1, loaded.rate)  # prepares the network
        return loaded


def _text(label: Label) -> Label:
    """Return a label that JSON can hold: folder names may contain bytes that are not text."""
    return label.encode(errors="replace").decode() if isinstance(label, str) else label
