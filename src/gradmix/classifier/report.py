"""What a call of fit or partial_fit did, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gradmix.classifier.labels import Label

SHOWN_PAIRS = 20
UNKNOWN = (
    "accuracy and forgetting are unknown: there is nothing to measure them on; give eval_set=, or "
    "holdout_per_class= to keep some images of each class for this"
)

Accuracy = list[tuple[Label, float | None, float, int]]


@dataclass(frozen=True)
class Report:
    """One call. Lists of classes are in order of arrival.

    `accuracy` has, for each class that could be measured, the class, its accuracy before (None if
    it was new) and after, and on how many samples. `avoided` has class pairs that gradmix did not
    mix, the first being what λ weights, with the share of mixing ratios for which that held in
    the last epoch; `avoided_share` is that of all pairs.
    """

    call: int  # from 1
    new: list[Label]  # classes met for the first time
    more: list[Label]  # classes known before that came again
    samples: int  # that were trained on
    epochs: int
    steps: int
    loss: float  # mean of the last epoch
    stopped_early: bool
    memory: int  # exemplars kept
    held_out: int  # samples kept to measure on
    measured_on: str | None  # eval_set or holdout; None: nothing to measure on
    accuracy: Accuracy
    before: float | None  # accuracy before, over the classes known then; each counts the same
    after: float | None  # accuracy after, over all classes
    forgotten: float | None  # how far that on classes known before fell; None: unknown
    avoided: list[tuple[Label, Label, float]]
    avoided_share: float | None  # None: nothing was to be avoided
    warnings: list[str]

    def without(self, label: Label) -> Report:
        """After a class is forgotten, its name is not kept either."""
        return replace(
            self,
            new=[other for other in self.new if other != label],
            more=[other for other in self.more if other != label],
            accuracy=[row for row in self.accuracy if row[0] != label],
            avoided=[row for row in self.avoided if label not in row[:2]],
            warnings=[text for text in self.warnings if not text.startswith(few_samples(label))],
        )

    def shortened(self) -> Report:
        """Without what it says of single classes and pairs, for all but the last calls."""
        return replace(self, accuracy=[], avoided=[])

    def to_state(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Report:
        """From a file; ValueError if it is no report."""
        report = cls(**state)
        for name, kinds in _KINDS.items():
            if type(getattr(report, name)) not in kinds:
                raise ValueError(f"{name} of a report is {str(getattr(report, name))[:40]}")
        if not (
            {*map(type, (*report.new, *report.more))} <= {*_LABEL}
            and {*map(type, report.warnings)} <= {str}
            and all(_fits(row, (_LABEL, _MAYBE, (float,), (int,))) for row in report.accuracy)
            and all(_fits(row, (_LABEL, _LABEL, (float,))) for row in report.avoided)
        ):
            raise ValueError("a report has lists of other things than it should")
        return report

    def __str__(self) -> str:
        new, more = (", ".join(map(str, names)) for names in (self.new, self.more))
        lines = [
            f"call {self.call}: {len(self.new)} new classes{f' ({new})' if new else ''}"
            + (f", more of {more}" if more else ""),
            f"{self.samples} samples, {self.epochs} epochs, {self.steps} steps"
            + (", stopped early" if self.stopped_early else "")
            + f", loss {self.loss:.3f}; {self.memory} exemplars in memory"
            + (f", {self.held_out} held out" if self.held_out else ""),
        ]
        if self.measured_on is None:
            lines.append(UNKNOWN)
        else:
            lines.append(f"accuracy on {self.measured_on}, before and after:")
            for label, before, after, count in self.accuracy:
                was = "  new" if before is None else f"{before:.3f}"
                lines.append(f"  {label}: {was} → {after:.3f} ({count} samples)")
            if self.forgotten is not None:
                lines.append(f"forgotten on average: {self.forgotten:.3f}")
        if self.avoided_share is not None:
            lines.append(f"class pairs avoided in mixing: {self.avoided_share:.0%} of all")
            lines += [f"  {a} with {b}: {share:.0%}" for a, b, share in self.avoided[:SHOWN_PAIRS]]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


_LABEL, _MAYBE = (str, int, bool), (float, type(None))
_KINDS = {
    **dict.fromkeys(("call", "samples", "epochs", "steps", "memory", "held_out"), (int,)),
    **dict.fromkeys(("before", "after", "forgotten", "avoided_share"), _MAYBE),
    **dict.fromkeys(("new", "more", "accuracy", "avoided", "warnings"), (list,)),
    "loss": (float,),
    "stopped_early": (bool,),
    "measured_on": (str, type(None)),
}


def _fits(row: Any, kinds: Sequence[tuple[type, ...]]) -> bool:
    if type(row) not in (tuple, list) or len(row) != len(kinds):
        return False
    return all(type(value) in kind for value, kind in zip(row, kinds, strict=True))


def few_samples(label: Label) -> str:
    """How a warning begins that is of a single class."""
    return f"class {label!r} has "


def means(accuracy: Accuracy) -> dict[str, float | None]:
    """The fields of a report that follow from its accuracies."""
    known = [(before, after) for _, before, after, _ in accuracy if before is not None]
    return {
        "before": _mean([before for before, _ in known]),
        "after": _mean([after for _, _, after, _ in accuracy]),
        "forgotten": _mean([before - after for before, after in known]),
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
