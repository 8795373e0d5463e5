"""What a classifier tells: the progress and the report of a call, a summary, likely classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gradmix.classifier.inputs import Label
from gradmix.closed_form import energy
from gradmix.errors import InputError
from gradmix.files.schema import Schema
from gradmix.training.loop import EpochDone, Event, StepDone, Training

if TYPE_CHECKING:
    from gradmix.classifier.classifier import IncrementalClassifier
    from gradmix.classifier.state import Learned

LINE_SECONDS = 5.0  # between two lines of progress
SHOWN_CLASSES = 20
SHOWN_PAIRS = 20
MEASURED_ON: dict[str | None, str] = {"eval_set": "eval_set", "holdout": "held-out samples"}
UNKNOWN = (
    "accuracy and forgetting are unknown: there is no data to measure them; pass eval_set=, or set "
    "holdout_per_class= to hold out some samples of each class"
)

MeasuredOn = Literal["eval_set", "holdout"]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Accuracy = list[tuple[Label, Share | None, Share, Count]]


class Report(Schema):
    """What one call did; lists of classes are in order of arrival.

    Attributes:
        call: Number of the call, from 1.
        new: Classes that were new.
        more: Classes that were known before and had more samples.
        samples: Samples trained on.
        epochs: Epochs trained.
        steps: Steps trained.
        loss: Mean loss of the last epoch.
        stopped_early: Whether early stopping ended the training.
        memory: Exemplars in the memory.
        held_out: Samples held out for measuring.
        measured_on: "eval_set" or "holdout"; None if there was no data to measure.
        accuracy: For each measured class: the class, its accuracy before (None if it was new) and
            after the call, and the number of samples.
        before: Mean accuracy before the call over the classes known then.
        after: Mean accuracy after the call over all classes.
        forgotten: Mean loss of accuracy on the classes known before; None if unknown.
        avoided: Class pairs that gradmix did not mix in the last epoch, each with the share of
            mixing ratios at which it was avoided. The mixing ratio λ weights the first class.
        avoided_share: The share over all pairs; None if the mix avoids no pairs.
        warnings: Warnings about the data.
    """

    call: Annotated[int, Field(ge=1)]
    new: list[Label]
    more: list[Label]
    samples: Count
    epochs: Count
    steps: Count
    loss: float
    stopped_early: bool
    memory: Count
    held_out: Count
    measured_on: MeasuredOn | None
    accuracy: Accuracy
    before: Share | None
    after: Share | None
    forgotten: Annotated[float, Field(ge=-1, le=1)] | None
    avoided: list[tuple[Label, Label, Share]]
    avoided_share: Share | None
    warnings: list[str]

    def without(self, label: Label) -> Report:
        """Return the report without the name of a forgotten class."""
        changes = {
            "new": [other for other in self.new if other != label],
            "more": [other for other in self.more if other != label],
            "accuracy": [row for row in self.accuracy if row[0] != label],
            "avoided": [row for row in self.avoided if label not in row[:2]],
            "warnings": [text for text in self.warnings if not text.startswith(few_samples(label))],
        }
        return self.model_copy(update=changes)

    def shortened(self) -> Report:
        """Return the report without single classes and pairs; older calls are stored like this."""
        return self.model_copy(update={"accuracy": [], "avoided": []})

    def __str__(self) -> str:
        new, more = (", ".join(map(str, names)) for names in (self.new, self.more))
        named = f" ({new})" if new else ""
        rest = f", more of {more}" if more else ""
        early = ", stopped early" if self.stopped_early else ""
        held = f", {self.held_out} held out" if self.held_out else ""
        lines = [
            f"call {self.call}: {plural(len(self.new), 'new class', 'new classes')}{named}{rest}",
            f"{plural(self.samples, 'sample')}, {plural(self.epochs, 'epoch')}, "
            f"{plural(self.steps, 'step')}{early}, loss {self.loss:.3f}; "
            f"{plural(self.memory, 'exemplar')} in memory{held}",
            f"accuracy on {MEASURED_ON[self.measured_on]}, before and after:"
            if self.measured_on
            else UNKNOWN,
        ]
        for label, before, after, count in self.accuracy:
            was = "  new" if before is None else f"{before:.3f}"
            lines.append(f"  {label}: {was} → {after:.3f} ({plural(count, 'sample')})")
        if self.forgotten is not None:
            lines.append(f"accuracy lost on earlier classes, on average: {self.forgotten:.3f}")
        if self.avoided_share is not None:
            lines.append(f"class pairs avoided in mixing: {self.avoided_share:.0%} of all")
            lines += [f"  {a} with {b}: {share:.0%}" for a, b, share in self.avoided[:SHOWN_PAIRS]]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun.

    >>> plural(1, "epoch"), plural(0, "epoch"), plural(2, "new class", "new classes")
    ('1 epoch', '0 epochs', '2 new classes')
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def few_samples(label: Label) -> str:
    """Return the start of a warning about one class."""
    return f"class {label!r} has "


def means(accuracy: Accuracy) -> dict[str, float | None]:
    """Return the fields of a report that follow from its accuracies."""
    known = [(before, after) for _, before, after, _ in accuracy if before is not None]
    return {
        "before": _mean([before for before, _ in known]),
        "after": _mean([after for _, _, after, _ in accuracy]),
        "forgotten": _mean([before - after for before, after in known]),
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# --- the progress of a call -----------------------------------------------------------------


class PhotosEmbedded(NamedTuple):
    """Photos that have passed a frozen backbone."""

    done: int
    total: int


Callback = Callable[[Event | PhotosEmbedded], object]
Say = Callable[[str], object]  # receives a text for the user


def say_nothing(_: str) -> None:
    """Ignore a text."""


class Observer:
    """Observes a call: passes events to `callback`, and a line about every five seconds to `say`.

    `say` also receives messages, such as what a checkpoint does. An `Observer()` shows nothing.
    """

    def __init__(self, say: Say = say_nothing, callback: Callback | None = None) -> None:
        if callback is not None and not callable(callback):
            raise InputError(f"callback is {str(callback)[:80]!r}; give a function of one event")
        self.say, self._callback = say, callback
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
        elif training.method.trains:  # closed-form methods have no training that could finish
            stored = plural(event.memory_size, "exemplar")
            self._line(f"training finished; {stored} in memory", always=True)

    def _line(self, text: str, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._last >= LINE_SECONDS:
            self._last = now
            self.say(text)


# --- a classifier as a table, and rankings of classes ---------------------------------------


def table(name: str, learned: Learned | None, changed: Mapping[str, Any]) -> str:
    """Return an HTML table of what a classifier knows, and of its parameters that are changed."""
    known = {} if learned is None else facts(learned)
    given = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    known["parameters"] = given or "defaults"
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for key, value in known.items()
    )
    state = "" if learned else " (not fitted)"
    return f"<table><caption>{escape(name)}{state}</caption>{rows}</table>"


def facts(learned: Learned) -> dict[str, str]:
    """Return the main facts about a classifier, each with its name."""
    known, report, setup = learned.labels.known, learned.history[-1], learned.setup
    named = ", ".join(str(label) for label in known[:SHOWN_CLASSES])
    more = f" and {len(known) - SHOWN_CLASSES} more" if len(known) > SHOWN_CLASSES else ""
    network = setup.model if isinstance(setup.model, str) else type(setup.model).__name__
    if setup.backbone is not None:
        network = f"{setup.backbone.name}, frozen"
    accuracy = "not measured"
    if report.after is not None:
        accuracy = f"{report.after:.3f} on {MEASURED_ON[report.measured_on]}"
        if report.forgotten is not None:
            accuracy += f"; forgotten {report.forgotten:.3f}"
    return {
        "classes": f"{len(known)}: {named}{more}",
        "calls": str(report.call),
        "samples seen": f"{sum(learned.counts):,}",
        "accuracy": accuracy,
        "memory": f"{report.memory} exemplars, {report.held_out} held out",
        "method": f"{type(learned.method).__name__} on {network}",
    }


class Ranking(NamedTuple):
    """What a classifier says about one sample."""

    classes: list[tuple[Label, float]]  # the most likely first, with its probability
    novelty: float  # higher for samples unlike every learned class
    unknown: bool | None  # whether no learned class fits; None without a threshold


def rank(
    classifier: IncrementalClassifier,
    X: Any,
    top: int,
    false_alarm_rate: float | None = None,
    name: str = "X",
) -> list[Ranking]:
    """Return the `top` most likely classes of each sample; without a rate, none is unknown."""
    learned, scores = classifier._scores_of(X, name)
    known, scores, rate = learned.labels.known, scores.double(), false_alarm_rate
    limit = None if rate is None else learned.novelty_threshold(rate)
    best = scores.softmax(dim=1).sort(dim=1, descending=True, stable=True)  # (N, K)
    found = []
    for shares, numbers, novelty in zip(*best, energy(scores).tolist(), strict=True):
        labels = [known[k] for k in numbers[:top].tolist()]
        classes = list(zip(labels, shares[:top].tolist(), strict=True))
        found.append(Ranking(classes, novelty, None if limit is None else novelty > limit))
    return found
