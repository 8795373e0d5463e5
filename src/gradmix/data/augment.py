"""Random transforms of whole batches: RandAugment, affine maps, crops and flips.

They take stored images before normalisation, uint8 (N, C, H, W) with one or three channels, on any
device. No code runs once per sample. Draws are made on the generator's device. RandAugment must
know on the host how many samples drew each operation: with a generator on the host, a batch on an
accelerator needs no synchronisation; with one on the accelerator, one per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.data.arrays import is_integer
from gradmix.data.operations import BINS, OPERATIONS, functions
from gradmix.data.pool import Normalise
from gradmix.errors import InputError


@dataclass(frozen=True)
class RandAugment:
    """Apply `num_ops` random operations of strength `magnitude` to every sample.

    Cubuk et al., RandAugment, 2020, with the operations of `torchvision.transforms.RandAugment`.
    Each sample draws its own operations, uniformly and with replacement. Shears, translations,
    rotations and enhancements are reversed with probability 1/2. Pixels come from the nearest
    neighbour, black outside the image. The defaults are the GradMix paper's.

    Strengths at magnitude M, with s = M/30: shear 0.3 s; translate 150/331 s of the side (whole
    pixels, rounded towards zero); rotate 30 s degrees; brightness, colour, contrast and sharpness
    1 ± 0.9 s; posterize to 8 − 4 s bits (rounded); solarize from 255 (1 − s). Color does not change
    images of one channel.
    """

    num_ops: int = 1
    magnitude: int = 14

    def __post_init__(self) -> None:
        if not is_integer(self.num_ops) or self.num_ops < 1:
            raise InputError(f"num_ops is {self.num_ops!r}; it must be an integer of 1 or more")
        if not is_integer(self.magnitude) or not 0 <= self.magnitude < BINS:
            raise InputError(f"magnitude is {self.magnitude!r}; it must be an integer of 0 to 30")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the transformed images, in new memory."""
        _check_images(x)
        shape, most = (self.num_ops, len(x)), 2 * len(OPERATIONS)
        drawn = torch.randint(most, shape, generator=generator, device=generator.device)
        return self.apply(x, drawn)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Apply one row of `drawn` after another, 2 · operation + negative for each sample."""
        drawn, order = drawn.sort(dim=1, stable=True)
        edges = torch.arange(0, 2 * len(OPERATIONS) + 1, 2, device=drawn.device)
        edges = edges.repeat(len(drawn), 1)
        bounds = torch.searchsorted(drawn, edges).tolist()  # the only synchronisation
        back = order.argsort(dim=1).to(x.device, non_blocking=True)
        order = order.to(x.device, non_blocking=True)
        negative = (drawn & 1).to(x.device, non_blocking=True)
        changes = functions(self.magnitude)
        for row in range(len(drawn)):
            x = x.index_select(0, order[row])  # sorted by operation
            for function, (i, j) in zip(changes, pairwise(bounds[row]), strict=True):
                if i < j:
                    x[i:j] = function(x[i:j], negative[row, i:j])
            x = x.index_select(0, back[row])
        return x


def random_affine(
    x: Tensor,
    *,
    degrees: float = 10.0,
    scale: float = 0.1,
    shear: float = 0.1,
    shift: float = 0.08,
    generator: torch.Generator,
) -> Tensor:
    """Return each image rotated, scaled, sheared and shifted a little about its centre.

    Every sample draws all four uniformly, up to the given strengths to either side: a relative
    change of size, a horizontal shear in pixels per pixel, a shift as a share of the side. Pixels
    are interpolated bilinearly, black outside the image.
    """
    _check_images(x)
    drawn = torch.rand(5, len(x), generator=generator, device=generator.device)
    drawn = drawn.mul_(2).sub_(1).to(x.device, non_blocking=True)  # from -1 to 1
    aspect = x.shape[3] / x.shape[2]
    angle, slant = drawn[0] * (math.pi / 180 * degrees), drawn[2] * shear
    zoom = 1 / (1 + drawn[1] * scale)
    right, down = 2 * shift * drawn[3], 2 * shift * drawn[4]
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    rows = [  # where each pixel comes from, in coordinates from -1 to 1
        torch.stack([cos, (cos * slant - sin) / aspect, right], dim=1),
        torch.stack([sin * aspect, sin * slant + cos, down], dim=1),
    ]
    return warp(x, torch.stack(rows, dim=1))


def warp(x: Tensor, theta: Tensor) -> Tensor:
    """Return uint8 images (N, C, H, W) whose pixels come from the places of `theta` (N, 2, 3).

    Pixels are interpolated bilinearly, black outside the image.
    """
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, align_corners=False).round_().to(torch.uint8)


def random_crop(x: Tensor, *, padding: int = 4, generator: torch.Generator) -> Tensor:
    """Return each image shifted at random by up to `padding` pixels in both directions.

    This is the usual crop of CIFAR: pad with black, then cut out a window of the old size.
    """
    _check_images(x)
    if not is_integer(padding) or padding < 0:
        raise InputError(f"padding is {padding!r}; it must be an integer of 0 or more")
    if len(x) == 0:
        return x.clone()
    device = generator.device
    corner = torch.randint(2 * padding + 1, (2, len(x)), generator=generator, device=device)
    top, left = corner.to(x.device, non_blocking=True)
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4)
    rows, columns = padded.shape[2:]
    plane = torch.arange(n * channels, device=x.device).view(n, channels, 1) * (rows * columns)
    line = torch.arange(height, device=x.device) * columns
    start = plane + line + (top * columns + left).view(n, 1, 1)  # (N, C, H), start of each line
    lines = padded.flatten().unfold(0, width, 1)  # a view of every run of `width` pixels
    return lines.index_select(0, start.flatten()).view(x.shape)


def random_flip(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return the images, each mirrored left to right with probability 1/2."""
    _check_images(x)
    mirrored = torch.randint(2, (len(x),), generator=generator, device=generator.device)
    mirrored = mirrored.to(x.device, non_blocking=True)
    both = torch.cat([x, x.flip(-1)])  # torch.where is five times slower on bytes
    return both.index_select(0, torch.arange(len(x), device=x.device) + len(x) * mirrored)


def _check_images(x: Tensor) -> None:
    tensor = isinstance(x, Tensor)
    shaped = tensor and x.ndim == 4 and x.shape[1] in (1, 3) and 0 not in x.shape[2:]
    if not shaped or x.dtype != torch.uint8:
        found = f"{x.dtype} of shape {tuple(x.shape)}" if tensor else f"a {type(x).__name__}"
        raise InputError(
            f"x is {found}; it must be uint8 images (N, C, H, W) with C = 1 or 3, not normalised"
        )


TRANSFORMS: dict[str, Callable[..., Tensor]] = {
    "affine": random_affine,
    "crop": random_crop,
    "flip": random_flip,
    "randaugment": RandAugment(),
}
"""Transforms by name; RandAugment with the paper's one operation of magnitude 14."""


# --- a second view of network inputs, for contrastive losses -------------------------------------
#
# These transforms take network inputs, after normalisation, because a batch may be mixed before
# its second view is drawn.

NOISE = 0.1  # standard deviation of the noise on rows, which have a standard deviation of 1
RATIO = 4 / 3  # largest ratio of a crop's sides
JITTER, TURN = 0.4, 0.1  # of brightness, contrast and saturation; of the hue, in turns
JITTERED, GREYED = 0.8, 0.2  # shares of the images
LUMA = (0.299, 0.587, 0.114)


def second_view(
    x: Tensor, normalise: Normalise, *, smallest: float, generator: torch.Generator
) -> Tensor:
    """Return another view of network inputs, images (B, C, H, W) or rows (B, d).

    Images are cropped to at least `smallest` of their area and resized, and brightness and contrast
    change. Images with three channels are also mirrored, and their colours change. Rows of numbers
    get some noise.
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
