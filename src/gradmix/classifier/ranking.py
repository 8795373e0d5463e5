"""The most likely classes of samples, with what `gradmix predict` and the web page show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradmix.classifier.labels import Label
from gradmix.closed_form import energy

if TYPE_CHECKING:
    from gradmix.classifier.classifier import IncrementalClassifier


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
    """Return the most likely classes of each sample; each sample is computed once.

    Args:
        classifier: A fitted classifier.
        X: The samples; see `IncrementalClassifier.predict`.
        top: The number of classes to return.
        false_alarm_rate: The share of samples of learned classes that may be called unknown;
            None calls no sample unknown.
        name: The name of X in messages.

    Raises:
        InputError: If the samples cannot be used, or too few are held out for the rate.
    """
    learned, scores = classifier._scores(X, name)
    scores = scores.double()
    threshold = None
    if false_alarm_rate is not None:
        threshold = learned.novelty_threshold(false_alarm_rate)
    shares, order = scores.softmax(dim=1).sort(dim=1, descending=True, stable=True)  # (N, K)
    known = learned.labels.known
    return [
        Ranking(
            [(known[k], share) for k, share in zip(classes[:top], some[:top], strict=True)],
            novelty,
            None if threshold is None else novelty > threshold,
        )
        for classes, some, novelty in zip(
            order.tolist(), shares.tolist(), energy(scores).tolist(), strict=True
        )
    ]
