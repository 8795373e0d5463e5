"""A second random view of network inputs, for contrastive losses.

These transforms take network inputs, after normalisation, because a batch may be mixed before its
second view is drawn. `augment.py` has the transforms of stored images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.data.pool import Normalise

NOISE = 0.1  # standard deviation of the noise on rows, which have a standard deviation of 1
RATIO = 4 / 3  # largest ratio of a crop's sides
JITTER, TURN = 0.4, 0.1  # of brightness, contrast and saturation; of the hue, in turns
JITTERED, GREYED = 0.8, 0.2  # shares of the images
LUMA = (0.299, 0.587, 0.114)


def second_view(
    x: Tensor, normalise: Normalise, *, smallest: float, generator: torch.Generator
) -> Tensor:
    """Return another view of every sample, of the same shape.

    Images are cropped and resized, and brightness and contrast change. Images with three channels
    are also mirrored, and their colours change. Rows of numbers get some noise.

    Args:
        x: Network inputs: images (B, C, H, W) or rows (B, d).
        normalise: How stored images became network inputs.
        smallest: Smallest share of an image's area that a crop may have.
        generator: Source of randomness, on the device of the inputs.
    """
    if x.ndim != 4:
        noise = torch.randn(x.shape, generator=generator, device=x.device)
        return x + NOISE * noise
    x = resized_crop(x, smallest=smallest, generator=generator)
    if x.shape[1] == 3:
        mirrored = _uniform(len(x), generator) < 0.5
        x = torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)
    return normalise(jitter(normalise.undo(x), generator=generator))


def resized_crop(x: Tensor, *, smallest: float, generator: torch.Generator) -> Tensor:
    """Return a random part of every image, resized to the whole.

    The part has from `smallest` to all of the area, and sides in ratios from 3/4 to 4/3.
    """
    share, ratio, right, down = _uniform((4, len(x)), generator)
    share = smallest + (1 - smallest) * share
    ratio = (math.log(RATIO) * (2 * ratio - 1)).exp()
    width, height = ((share * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    theta = x.new_zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 0, 2] = width, (1 - width) * (2 * right - 1)
    theta[:, 1, 1], theta[:, 1, 2] = height, (1 - height) * (2 * down - 1)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def jitter(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return images of values from 0 to 255 with other brightness, contrast and colours.

    Four of five images change. The hue turns in the plane of the colour differences of YIQ.
    """
    jittered, greyed, *drawn = _uniform((6, len(x)), generator).view(6, -1, 1, 1, 1)
    brightness, contrast, saturation = (1 + JITTER * (2 * u - 1) for u in drawn[:3])
    changed = x * brightness
    mean = _grey(changed).mean(dim=(1, 2, 3), keepdim=True)
    changed = mean + contrast * (changed - mean)
    if x.shape[1] == 3:
        changed = _turn(changed, 2 * math.pi * TURN * (2 * drawn[3] - 1).flatten())
        grey = _grey(changed)
        changed = grey + saturation * (changed - grey)
    x = torch.where(jittered < JITTERED, changed.clamp(0, 255), x)
    return torch.where(greyed < GREYED, _grey(x), x) if x.shape[1] == 3 else x


def _grey(x: Tensor) -> Tensor:
    """Return the brightness of every pixel, (B, 1, H, W)."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the colours of every image by an angle; grey stays grey, and brightness the same."""
    to_yiq = x.new_tensor([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
    cos, sin = angle.cos(), angle.sin()
    turn = torch.eye(3, device=x.device).repeat(len(x), 1, 1)
    turn[:, 1, 1], turn[:, 1, 2], turn[:, 2, 1], turn[:, 2, 2] = cos, -sin, sin, cos
    return torch.einsum("bij,bjhw->bihw", to_yiq.inverse() @ turn @ to_yiq, x)


def _uniform(shape: int | tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)
