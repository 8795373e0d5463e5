"""The exemplars a classifier keeps, as pictures."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

import numpy as np

from gradmix.classifier.learned import Learned
from gradmix.errors import InputError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

SIDE, GAP, MOST = 48, 2, 64  # pixels of a thumbnail and between them; thumbnails of a class


def contact_sheet(learned: Learned) -> bytes:
    """All exemplars as one PNG: a line for each class, with its name above."""
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
    """The same as an HTML page that needs nothing else."""
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
    """For each class its name with the number kept, and its exemplars side by side."""
    if not learned.basis.layout.images:
        raise InputError("this classifier has learned rows of numbers; there are no pictures of it")
    x, y = learned.method.memory.samples
    strips = []
    for number, label in enumerate(learned.labels.known):
        own = x[y == number].cpu() if len(y) else x
        strips.append((f"{label} ({len(own)})", _strip(own[:MOST])))
    return strips


def _strip(images: Tensor) -> Image.Image:
    from PIL import Image

    step = SIDE + GAP
    strip = Image.new("RGB", (max(1, len(images)) * step, SIDE), "white")
    for place, image in enumerate(images):
        pixels = np.asarray(image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1))
        picture = Image.fromarray(pixels.transpose(1, 2, 0).copy())
        picture.thumbnail((SIDE, SIDE))
        scale = SIDE // max(picture.size)
        if scale > 1:
            picture = picture.resize((picture.width * scale, picture.height * scale), 0)
        strip.paste(picture, (place * step, 0))
    return strip


def _png(image: Image.Image) -> bytes:
    result = io.BytesIO()
    image.save(result, "PNG")
    return result.getvalue()
