"""The fourteen operations of RandAugment on batches of images.

Results agree with Pillow bit by bit, like torchvision's RandAugment on Pillow images. Operations
and strengths follow torchvision's `transforms/autoaugment.py`. kornia is not used: half of its
operations differ from Pillow, and the others take 1.5 to 50 times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_ENHANCED = ("Brightness", "Color", "Contrast", "Sharpness")
_MAPPED = ("Posterize", "Solarize", "AutoContrast", "Equalize")
OPERATIONS = ("Identity", *_GEOMETRIC, *_ENHANCED, *_MAPPED)
"""torchvision's fourteen, in its order."""

BINS = 31  # magnitudes 0 … 30

# An operation is a function of images (n, C, H, W) and of negative (n,), 1 where it is reversed.

_Function = Callable[[Tensor, Tensor], Tensor]


@lru_cache(maxsize=BINS)
def functions(magnitude: int) -> tuple[_Function, ...]:
    """Return the functions of `OPERATIONS` at a magnitude, in the same order."""
    change = _bin(0.0, 0.9, magnitude)
    cleared = round(magnitude / ((BINS - 1) / 4))  # lowest bits, 0 to 4
    threshold = math.ceil(_bin(255.0, 0.0, magnitude))

    def enhanced(degenerate: Callable[[Tensor], Tensor]) -> _Function:
        # The factor is 1 + change, or 1 − change where negative, (n, 1, 1, 1).
        def enhance(x: Tensor, negative: Tensor) -> Tensor:
            factor = 1 + change - (2 * change) * negative.double()
            return _blend(degenerate(x), x, factor.float().view(-1, 1, 1, 1))

        return enhance

    return (
        lambda x, _: x,
        *(partial(_affine, name=name, magnitude=magnitude) for name in _GEOMETRIC),
        enhanced(lambda x: x.new_zeros(1)),  # black
        enhanced(_grey),
        enhanced(_mean_grey),
        enhanced(_smooth),
        lambda x, _: x & (256 - 2**cleared),
        lambda x, _: x ^ (x >= threshold).to(torch.uint8).neg_(),  # x ^ 255 is 255 − x
        lambda x, _: _autocontrast(x),
        lambda x, _: _equalize(x),
    )


def _bin(first: float, last: float, magnitude: int) -> float:
    """Return the strength at `magnitude`, in float32 like torchvision."""
    return float(torch.linspace(first, last, BINS, dtype=torch.float32)[magnitude])


def _affine(x: Tensor, negative: Tensor, name: str, magnitude: int) -> Tensor:
    n, channels, height, width = x.shape
    both = _maps(name, magnitude, height, width, x.device)
    source, inside = (part.index_select(0, negative).unsqueeze(1) for part in both)
    return x.flatten(2).gather(2, source.expand(n, channels, -1)).mul_(inside).view(x.shape)


@lru_cache(maxsize=32)  # the five operations for a few sizes of images
def _maps(
    name: str, magnitude: int, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the source of each pixel and whether it is inside, for both directions, (2, H · W).

    These are Pillow's nearest neighbours, in 16.16 fixed point at the centres of the pixels; see
    `affine_fixed` of its libImaging/Geometry.c.
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
    return torch.stack(source).to(device), torch.stack(inside).to(device)


def _fixed(value: float) -> int:
    return math.floor(value * 65536 + 0.5)


def _matrix(name: str, sign: int, magnitude: int, height: int, width: int) -> tuple[float, ...]:
    """Return (a, b, c, d, e, f): pixel (x, y) comes from (ax + by + c, dx + ey + f)."""
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
    """Return degenerate + factor · (x − degenerate), clamped and truncated, as PIL.Image.blend.

    Float32 rounding after each product and sum gives the same bits as Pillow.
    """
    degenerate = degenerate.float()
    mixed = x.float().sub_(degenerate).mul_(factor).add_(degenerate)
    return mixed.clamp_(0, 255).to(torch.int16).to(torch.uint8)  # twice as fast as directly


def _grey(x: Tensor) -> Tensor:
    """Return the grey image (n, 1, H, W) by Pillow's weights, which are exact in float32."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.float().chunk(3, dim=1)
    weighted = red.mul(19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return weighted.add_(32768).mul_(2**-16).floor_()


def _mean_grey(x: Tensor) -> Tensor:
    """Return the mean of the grey image, rounded half up, (n, 1, 1, 1)."""
    pixels = x.shape[2] * x.shape[3]
    lines = _grey(x).sum(3, keepdim=True, dtype=torch.float32)  # exact for any width
    total = lines.long().sum((1, 2), keepdim=True)
    return torch.div(2 * total + pixels, 2 * pixels, rounding_mode="floor")


def _smooth(x: Tensor) -> Tensor:
    """Return Pillow's SMOOTH filter: a 3 × 3 mean in which the centre has weight five.

    The outermost pixels do not change. Sums run over the whole memory at once; sums that cross the
    edge of an image only affect its outermost pixels, which are restored.
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
    inner.copy_(box.add_(inner, alpha=4).div_(13).add_(0.5).floor_())  # never close to a tie
    for edge in (0, -1):
        smooth[..., edge, :] = x[..., edge, :]
        smooth[..., edge] = x[..., edge]
    return smooth


def _autocontrast(x: Tensor) -> Tensor:
    """Return each channel stretched to 0 … 255, with Pillow's steps and precision."""
    real = torch.float32 if x.device.type == "mps" else torch.float64  # MPS has no float64
    low = x.amin((2, 3), keepdim=True).to(real)
    high = x.amax((2, 3), keepdim=True).to(real)
    flat = high <= low
    whole = torch.full_like(high, 255.0)  # 255.0 / tensor would multiply by a reciprocal
    scale = torch.where(flat, 1.0, whole / (high - low))
    offset = torch.where(flat, 0.0, -low * scale)
    return x.to(real).mul_(scale).add_(offset).clamp_(0, 255).to(torch.uint8)


def _equalize(x: Tensor) -> Tensor:
    """Return each channel equalised by its histogram, as PIL.ImageOps.equalize, in integers."""
    values = x.flatten(2).flatten(0, 1).long()  # (n · C, H · W)
    one = torch.ones(1, 1, dtype=torch.int32, device=x.device).expand_as(values)
    counts = one.new_zeros(len(values), 256).scatter_add_(1, values, one)
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = (values.shape[1] - brightest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) / step.clamp(min=1)).floor_().clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256.0, device=x.device))
    return table.to(torch.uint8).gather(1, values).view(x.shape)
