"""The report of a call of fit or partial_fit, and the stored exemplars as pictures."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from gradmix.classifier.labels import Label
from gradmix.errors import InputError
from gradmix.files.schema import Schema

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from gradmix.classifier.state import Learned

SHOWN_PAIRS = 20
UNKNOWN = (
    "accuracy and forgetting are unknown: there is no data to measure them; pass eval_set=, or set "
    "holdout_per_class= to hold out some samples of each class"
)

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
    measured_on: str | None
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
        lines = [self._classes(), self._training(), *self._measured()]
        if self.avoided_share is not None:
            lines.append(f"class pairs avoided in mixing: {self.avoided_share:.0%} of all")
            lines += [f"  {a} with {b}: {share:.0%}" for a, b, share in self.avoided[:SHOWN_PAIRS]]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _classes(self) -> str:
        new, more = (", ".join(map(str, names)) for names in (self.new, self.more))
        named = f" ({new})" if new else ""
        rest = f", more of {more}" if more else ""
        return f"call {self.call}: {plural(len(self.new), 'new class', 'new classes')}{named}{rest}"

    def _training(self) -> str:
        parts = [
            plural(self.samples, "sample"),
            plural(self.epochs, "epoch"),
            plural(self.steps, "step"),
            *(["stopped early"] if self.stopped_early else []),
            f"loss {self.loss:.3f}; {plural(self.memory, 'exemplar')} in memory",
            *([f"{self.held_out} held out"] if self.held_out else []),
        ]
        return ", ".join(parts)

    def _measured(self) -> list[str]:
        if self.measured_on is None:
            return [UNKNOWN]
        lines = [f"accuracy on {self.measured_on}, before and after:"]
        for label, before, after, count in self.accuracy:
            was = "  new" if before is None else f"{before:.3f}"
            lines.append(f"  {label}: {was} → {after:.3f} ({plural(count, 'sample')})")
        if self.forgotten is not None:
            lines.append(f"forgotten on average: {self.forgotten:.3f}")
        return lines


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


# --- the exemplars as pictures --------------------------------------------------------------

SIDE, GAP, MOST = 48, 2, 64  # pixels of a thumbnail, pixels between two, thumbnails per class


def contact_sheet(learned: Learned) -> bytes:
    """Return all exemplars as one PNG: one line per class, with its name above."""
    from PIL import Image, ImageDraw

    strips = class_strips(learned)
    above = 14
    width = max(max(strip.width for _, strip in strips), 160)
    height = sum(strip.height + above + GAP for _, strip in strips)
    sheet = Image.new("RGB", (width, height), "white")
    draw, top = ImageDraw.Draw(sheet), 0
    for name, strip in strips:
        draw.text((2, top + 1), name.encode("latin-1", "replace").decode("latin-1"), fill="black")
        sheet.paste(strip, (0, top + above))
        top += strip.height + above + GAP
    return _png(sheet)


def contact_page(learned: Learned) -> str:
    """Return all exemplars as a self-contained HTML page."""
    lines = [
        f"<h2>{html.escape(name)}</h2>\n<img alt='exemplars of {html.escape(name)}' "
        f"src='data:image/png;base64,{base64.b64encode(_png(strip)).decode()}'>"
        for name, strip in class_strips(learned)
    ]
    style = "body{font:16px sans-serif;margin:2em}h2{font-size:1em}img{max-width:100%}"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Exemplars</title>"
        f"<style>{style}</style></head><body>\n<h1>Exemplars</h1>\n"
        + "\n".join(lines)
        + "\n</body></html>\n"
    )


def class_strips(learned: Learned) -> list[tuple[str, Image.Image]]:
    """Return for each class its name with the number of exemplars, and these side by side."""
    if not learned.basis.given.images:
        raise InputError("this classifier stores rows of numbers and no pictures")
    x, y = learned.exemplars()
    strips = []
    for number, label in enumerate(learned.labels.known):
        own = x[y == number].cpu() if len(y) else x
        strips.append((f"{label} ({len(own)})", _strip(own[:MOST])))
    return strips


def _strip(images: Tensor) -> Image.Image:
    from PIL import Image, ImageOps

    step = SIDE + GAP
    strip = Image.new("RGB", (max(1, len(images)) * step, SIDE), "white")
    for place, image in enumerate(images):
        pixels = np.asarray(image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1))
        picture = Image.fromarray(pixels.transpose(1, 2, 0).copy())
        strip.paste(ImageOps.contain(picture, (SIDE, SIDE)), (place * step, 0))
    return strip


def _png(image: Image.Image) -> bytes:
    result = io.BytesIO()
    image.save(result, "PNG")
    return result.getvalue()
