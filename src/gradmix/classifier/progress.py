"""The progress of a call: events for a callback, and lines of text without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

from gradmix.errors import InputError
from gradmix.training.loop import EpochDone, Event, StepDone, Training

LINE_SECONDS = 5.0  # between two lines


class PhotosEmbedded(NamedTuple):
    """Photos that have passed a frozen backbone."""

    done: int
    total: int


Callback = Callable[[Event | PhotosEmbedded], object]


class Observer:
    """Passes the progress of a call on, to a callback or as lines of text.

    Args:
        say: Receives a line about every five seconds, and one at the end; None prints none.
        callback: Receives every event. An exception in it ends the call.
    """

    def __init__(
        self, say: Callable[[str], object] | None = None, callback: Callback | None = None
    ) -> None:
        if callback is not None and not callable(callback):
            raise InputError(f"callback is {str(callback)[:80]!r}; give a function of one event")
        self._say, self._callback = say, callback
        self._last = time.monotonic()

    def on_photo(self, done: int, total: int) -> None:
        """Receive the number of photos embedded and in total."""
        if self._callback is not None:
            self._callback(PhotosEmbedded(done, total))
        self._line(f"computing features: {done} of {total} photos")

    def on_event(self, training: Training, event: Event) -> None:
        """Receive an event of the training loop."""
        if self._callback is not None:
            self._callback(event)
        if isinstance(event, StepDone):
            stage = training.method.stage
            at = f"{stage.name} epoch {event.epoch + 1}/{stage.epochs}"
            self._line(f"{at}, step {event.step}/{event.steps}")
        elif isinstance(event, EpochDone):
            at = f"{event.stage} epoch {event.epoch}/{event.epochs}"
            self._line(f"{at}: loss {event.loss:.3f}", always=event.epoch == event.epochs)
        else:
            self._line(f"learned; {event.memory_size} exemplars in memory", always=True)

    def _line(self, text: str, always: bool = False) -> None:
        now = time.monotonic()
        if self._say is not None and (always or now - self._last >= LINE_SECONDS):
            self._last = now
            self._say(text)


def observer_for(verbose: Any, callback: Callback | None) -> Observer:
    """Return the observer of a call; `verbose` above 0 prints lines to standard error."""
    loud = isinstance(verbose, Integral) and int(verbose) > 0  # anything else is refused later
    return Observer(_to_stderr if loud else None, callback)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
