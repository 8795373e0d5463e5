"""Compare RandAugment on batches with Pillow, one image at a time."""

from __future__ import annotations

import random

import torch
from PIL import Image, ImageEnhance, ImageOps

from benchmarks.timing import ratio
from gradmix.data.augment import OPERATIONS, RandAugment

IMAGES = 512


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PILLOW = {  # RandAugment's operations at magnitude 14 on 32 × 32 pixels; s is the sign
    "Identity": lambda image, s: image,
    "ShearX": lambda image, s: _affine(image, 1, s * 0.14, 0, 0, 1, 0),
    "ShearY": lambda image, s: _affine(image, 1, 0, 0, s * 0.14, 1, 0),
    "TranslateX": lambda image, s: _affine(image, 1, 0, s * 6, 0, 1, 0),
    "TranslateY": lambda image, s: _affine(image, 1, 0, 0, 0, 1, s * 6),
    "Rotate": lambda image, s: image.rotate(s * 14, fillcolor=0),
    "Brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + s * 0.42),
    "Color": lambda image, s: ImageEnhance.Color(image).enhance(1 + s * 0.42),
    "Contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + s * 0.42),
    "Sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + s * 0.42),
    "Posterize": lambda image, s: ImageOps.posterize(image, 6),
    "Solarize": lambda image, s: ImageOps.solarize(image, 136),
    "AutoContrast": lambda image, s: ImageOps.autocontrast(image),
    "Equalize": lambda image, s: ImageOps.equalize(image),
}


def batched_over_pillow() -> str:
    """Return the throughput of batches over Pillow's; converting images to Pillow is not counted.

    A float batch is allocated and freed first, as in every training step. The C library then keeps
    memory of this size. Otherwise it would return the memory after each call, and allocating it
    again page by page takes a third of the time.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (IMAGES, 3, 32, 32), generator=generator, dtype=torch.uint8)
    x.float()
    pictures = [Image.fromarray(image) for image in x.permute(0, 2, 3, 1).contiguous().numpy()]
    operations = [PILLOW[name] for name in OPERATIONS]
    draw, augment = random.Random(0), RandAugment(1, 14)

    def batched() -> None:
        for _ in range(4):
            augment(x, generator=generator)

    def one_by_one() -> None:
        for _ in range(4):
            for picture in pictures:
                draw.choice(operations)(picture, draw.choice((1, -1)))

    # the ratio of throughputs is the inverse of the ratio of times
    return "throughput of RandAugment(1, 14) over Pillow's, 512 of 3 x 32 x 32 (at least 5): " + (
        ratio(one_by_one, batched)
    )
