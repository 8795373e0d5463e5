"""Input transforms of whole batches: RandAugment, random crops and random flips.

They take stored images, uint8 (N, C, H, W) with one or three channels, before they are
normalised, on any device; nothing runs once per sample. Draws are made on the generator's
device: RandAugment has to know how many samples drew which operation, so with a generator of
the host a batch on an accelerator costs no synchronisation at all, with one of the
accelerator one per call.

What the operations do follows Pillow bit for bit, as torchvision's RandAugment does on Pillow
images; which operations there are and how strong they get follows torchvision's
`transforms/autoaugment.py`. kornia is not used: its functions work on floats in [0, 1]. Scaled
back, its equalize, posterize, solarize, brightness, min-max normalisation and translate agree
with Pillow but take 1.5 to 50 times as long as the lines below (kornia 0.9, 37 images of
3 × 32 × 32, one thread); contrast and saturation (other grey weights, a mean that is not rounded)
and sharpness (a blur that is not rounded) are a grey level off in 8 % of the pixels; rotate takes
another neighbour near ties; shear has another centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.errors import InputError

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""torchvision's fourteen, in its order."""

BINS = 31  # magnitudes 0 … 30


@dataclass(frozen=True)
class RandAugment:
    """Every sample goes through `num_ops` operations drawn for it alone, uniformly, at `magnitude`.

    Cubuk et al., RandAugment, 2020, with the operations of `torchvision.transforms.RandAugment`:
    drawn with replacement; shears, translations, rotations and enhancements are turned round
    with probability 1/2; nearest neighbours, black outside. The defaults are the GradMix
    paper's. Strengths at `magnitude` M, where s = M/30: shear 0.3 s, translate 150/331 s of the
    image's side (whole pixels, towards zero), rotate 30 s degrees, brightness, colour, contrast
    and sharpness 1 ± 0.9 s, posterize to 8 − 4 s bits (rounded), solarize from 255 (1 − s) on.
    On one channel Color changes nothing.
    """

    num_ops: int = 1
    magnitude: int = 14

    def __post_init__(self) -> None:
        if not _is_int(self.num_ops) or self.num_ops < 1:
            raise InputError(f"num_ops is {self.num_ops!r}; it must be an integer of 1 or more")
        if not _is_int(self.magnitude) or not 0 <= self.magnitude < BINS:
            raise InputError(f"magnitude is {self.magnitude!r}; it must be an integer of 0 to 30")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """The transformed images, in new memory."""
        _check_images(x)
        device = generator.device
        shape = (self.num_ops, len(x))
        drawn = torch.randint(2 * len(OPERATIONS), shape, generator=generator, device=device)
        return self._apply(x, drawn)

    def apply(self, x: Tensor, operation: Tensor, negative: Tensor) -> Tensor:
        """`OPERATIONS[operation[i]]` of image i, turned round if `negative[i]`; both (N,)."""
        _check_images(x)
        if operation.shape != (len(x),) or negative.shape != (len(x),):
            raise InputError(
                f"operation has shape {tuple(operation.shape)} and negative "
                f"{tuple(negative.shape)}; {len(x)} images need ({len(x)},) of both"
            )
        return self._apply(x, (2 * operation.long() + negative.bool())[None])

    def _apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """One row of `drawn`, 2 · operation + negative of each sample, after the other."""
        drawn, order = drawn.sort(dim=1, stable=True)
        edges = torch.arange(0, 2 * len(OPERATIONS) + 1, 2, device=drawn.device)
        edges = edges.repeat(len(drawn), 1)
        bounds = torch.searchsorted(drawn, edges).tolist()  # the only synchronisation
        if len(x) and any((first, last) != (0, len(x)) for first, *_, last in bounds):
            low, high = int(drawn.min()) // 2, int(drawn.max()) // 2
            raise InputError(f"operation holds {low} to {high}; the operations are 0 to 13")
        back = order.argsort(dim=1).to(x.device, non_blocking=True)
        order = order.to(x.device, non_blocking=True)
        negative = (drawn & 1).to(x.device, non_blocking=True)
        for row in range(len(drawn)):
            x = x.index_select(0, order[row])  # in the order of their operations
            self._change_groups(x, negative[row], bounds[row])
            x = x.index_select(0, back[row])
        return x

    def _change_groups(self, x: Tensor, negative: Tensor, bounds: list[int]) -> None:
        """The k-th operation for the samples from `bounds[k]` to before `bounds[k + 1]`."""
        functions = _functions(self.magnitude)
        for function, (i, j) in zip(functions, pairwise(bounds), strict=True):
            if i < j:
                x[i:j] = function(x[i:j], negative[i:j])


def random_crop(x: Tensor, *, padding: int = 4, generator: torch.Generator) -> Tensor:
    """Each image shifted by its own −padding … padding pixels both ways, black coming in.

    The usual crop of CIFAR: pad by `padding`, then cut a window of the old size anywhere.
    """
    _check_images(x)
    if not _is_int(padding) or padding < 0:
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
    start = plane + line + (top * columns + left).view(n, 1, 1)  # (N, C, H) where lines begin
    lines = padded.flatten().unfold(0, width, 1)  # every run of `width` pixels, not copied
    return lines.index_select(0, start.flatten()).view(x.shape)


def random_flip(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability 1/2."""
    _check_images(x)
    mirrored = torch.randint(2, (len(x),), generator=generator, device=generator.device)
    mirrored = mirrored.to(x.device, non_blocking=True)
    both = torch.cat([x, x.flip(-1)])  # torch.where takes five times as long on bytes
    return both.index_select(0, torch.arange(len(x), device=x.device) + len(x) * mirrored)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_images(x: Tensor) -> None:
    right = "they must be uint8 images (N, C, H, W) with C = 1 or 3, before normalisation"
    if not isinstance(x, Tensor):
        raise InputError(f"x is a {type(x).__name__}; {right}")
    if x.dtype != torch.uint8:
        raise InputError(f"x has type {x.dtype}; {right}")
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:]:
        raise InputError(f"x has shape {tuple(x.shape)}; {right}")


# The operations: functions of images (n, C, H, W) and of negative (n,), 1 where turned round.

_Function = Callable[[Tensor, Tensor], Tensor]


@lru_cache(maxsize=BINS)
def _functions(magnitude: int) -> tuple[_Function, ...]:
    """What OPERATIONS do at this magnitude, in that order."""
    change = _bin(0.0, 0.9, magnitude)
    bits = 8 - int((torch.arange(BINS) / ((BINS - 1) / 4)).round()[magnitude])
    threshold = math.ceil(_bin(255.0, 0.0, magnitude))

    def geometric(name: str) -> _Function:
        return lambda x, negative: _affine(x, negative, name, magnitude)

    def enhanced(degenerate: Callable[[Tensor], Tensor]) -> _Function:
        return lambda x, negative: _blend(degenerate(x), x, _factor(negative, change))

    return (
        lambda x, _: x,
        *(geometric(name) for name in OPERATIONS[1:6]),
        enhanced(_black),
        enhanced(_grey),
        enhanced(_mean_grey),
        enhanced(_smooth),
        lambda x, _: x & (256 - 2 ** (8 - bits)),
        lambda x, _: _solarize(x, threshold),
        lambda x, _: _autocontrast(x),
        lambda x, _: _equalize(x),
    )


def _bin(first: float, last: float, magnitude: int) -> float:
    """The strength at `magnitude`; in float32, because torchvision's is."""
    return float(torch.linspace(first, last, BINS, dtype=torch.float32)[magnitude])


def _factor(negative: Tensor, change: float) -> Tensor:
    """1 + change, or 1 − change where negative, (n, 1, 1, 1)."""
    return (1 + change - (2 * change) * negative.double()).float().view(-1, 1, 1, 1)


class _Maps(NamedTuple):
    """Where the pixels of the image moved one way and the other come from, two rows (2, H · W)."""

    source: Tensor  # int64 index of the pixel
    inside: Tensor  # uint8, 0 where that pixel is outside the image


def _affine(x: Tensor, negative: Tensor, name: str, magnitude: int) -> Tensor:
    n, channels, height, width = x.shape
    maps = _maps(name, magnitude, height, width, x.device)
    source = maps.source.index_select(0, negative).unsqueeze(1).expand(n, channels, -1)
    inside = maps.inside.index_select(0, negative).unsqueeze(1)
    return x.flatten(2).gather(2, source).mul_(inside).view(x.shape)


@lru_cache(maxsize=32)  # the five operations for a few sizes of images
def _maps(name: str, magnitude: int, height: int, width: int, device: torch.device) -> _Maps:
    """Pillow's nearest neighbours: 16.16 fixed point, taken at the centres of the pixels.

    `affine_fixed` of Pillow's libImaging/Geometry.c.
    """
    source, inside = [], []
    for sign in (1, -1):
        a, b, c, d, e, f = _matrix(name, sign, magnitude, height, width)
        x, y = torch.arange(width), torch.arange(height).unsqueeze(1)
        column = (_fixed(a) * x + _fixed(b) * y + _fixed(c + a * 0.5 + b * 0.5)) >> 16
        line = (_fixed(d) * x + _fixed(e) * y + _fixed(f + d * 0.5 + e * 0.5)) >> 16
        within = (column >= 0) & (column < width) & (line >= 0) & (line < height)  # (H, W)
        source.append(torch.where(within, line * width + column, 0).flatten())
        inside.append(within.to(torch.uint8).flatten())
    return _Maps(torch.stack(source).to(device), torch.stack(inside).to(device))


def _fixed(value: float) -> int:
    return math.floor(value * 65536 + 0.5)


def _matrix(name: str, sign: int, magnitude: int, height: int, width: int) -> tuple[float, ...]:
    """(a, b, c, d, e, f): pixel (x, y) comes from (ax + by + c, dx + ey + f)."""
    if name.startswith("Shear"):
        level = sign * _bin(0.0, 0.3, magnitude)
        return (1, level, 0, 0, 1, 0) if name == "ShearX" else (1, 0, 0, level, 1, 0)
    if name == "TranslateX":
        return (1, 0, -sign * int(_bin(0.0, 150 / 331 * width, magnitude)), 0, 1, 0)
    if name == "TranslateY":
        return (1, 0, 0, 0, 1, -sign * int(_bin(0.0, 150 / 331 * height, magnitude)))
    angle = -math.radians(sign * _bin(0.0, 30.0, magnitude))  # as in PIL.Image.rotate
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y)


def _blend(degenerate: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """PIL.Image.blend: degenerate + factor · (x − degenerate), cut to 0 … 255 and truncated.

    Rounding after each product and sum, in float32, gives Pillow's bits.
    """
    degenerate = degenerate.float()
    mixed = x.float().sub_(degenerate).mul_(factor).add_(degenerate)
    return mixed.clamp_(0, 255).to(torch.int16).to(torch.uint8)  # twice as fast as at once


def _black(x: Tensor) -> Tensor:
    return x.new_zeros(1)


def _grey(x: Tensor) -> Tensor:
    """(n, 1, H, W), by Pillow's weights for RGB → L; float32 holds them exactly."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.float().chunk(3, dim=1)
    weighted = red.mul(19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return weighted.add_(32768).mul_(2**-16).floor_()


def _mean_grey(x: Tensor) -> Tensor:
    """The mean of the grey image, rounded half up, (n, 1, 1, 1)."""
    pixels = x.shape[2] * x.shape[3]
    lines = _grey(x).sum(3, keepdim=True, dtype=torch.float32)  # exact for any width
    total = lines.long().sum((1, 2), keepdim=True)
    return torch.div(2 * total + pixels, 2 * pixels, rounding_mode="floor")


def _smooth(x: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: a 3 × 3 mean in which the centre counts five times.

    It leaves the outermost pixels as they are. Sums run over the whole memory at once; those
    that reach round the edge of an image fall on its outermost pixels.
    """
    width = x.shape[3]
    if min(x.shape[2:]) < 3:
        return x
    smooth = x.float().contiguous()
    flat = smooth.flatten()
    lines = flat[:-2] + flat[1:-1]
    lines += flat[2:]
    box = lines[: -2 * width] + lines[width:-width]
    box += lines[2 * width :]
    inner = flat[width + 1 : -width - 1]
    inner.copy_(box.add_(inner, alpha=4).div_(13).add_(0.5).floor_())  # never near a tie
    for edge in (0, -1):
        smooth[..., edge, :] = x[..., edge, :]
        smooth[..., edge] = x[..., edge]
    return smooth


def _solarize(x: Tensor, threshold: int) -> Tensor:
    """Inverted from `threshold` on."""
    return x ^ (x >= threshold).to(torch.uint8).neg_()  # x ^ 255 is 255 − x


def _autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to 0 … 255, in Pillow's own steps and precision."""
    real = torch.float32 if x.device.type == "mps" else torch.float64  # MPS has no float64
    low = x.amin((2, 3), keepdim=True).to(real)
    high = x.amax((2, 3), keepdim=True).to(real)
    flat = high <= low
    whole = torch.full_like(high, 255.0)  # 255.0 / tensor would be 255 times a reciprocal
    scale = torch.where(flat, 1.0, whole / (high - low))
    offset = torch.where(flat, 0.0, -low * scale)
    return x.to(real).mul_(scale).add_(offset).clamp_(0, 255).to(torch.uint8)


def _equalize(x: Tensor) -> Tensor:
    """Each channel through its cumulative histogram; PIL.ImageOps.equalize in whole numbers."""
    values = x.flatten(2).flatten(0, 1).long()  # (n · C, H · W)
    one = torch.ones(1, 1, dtype=torch.int32, device=x.device).expand_as(values)
    counts = one.new_zeros(len(values), 256).scatter_add_(1, values, one)
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = (values.shape[1] - brightest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) / step.clamp(min=1)).floor_().clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256.0, device=x.device))
    return table.to(torch.uint8).gather(1, values).view(x.shape)
