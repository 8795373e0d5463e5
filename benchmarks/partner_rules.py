"""Milder gradient vetoes on top of a balanced draw, as plugins; docs/science.md has their results.

    gradmix run --import benchmarks.partner_rules --mix gradient-old-rows:linear:remix …

All draw partners evenly over the classes and then change pairs in S⁻, as `gradient-class-balanced`
does. They differ in which pairs they change:

- gradient-old-rows: only pairs of a sample of an old class
- gradient-spare-new: all except pairs of two new classes
- gradient-half: each with probability 1/2
- gradient-redraw: all; the class is drawn again, up to three times, instead of S*
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import gradmix
from gradmix.mixing.plan import Request
from gradmix.types import Partners

EXEMPLARS = 32  # per old class; a class with more samples is new


def _old(request: Request, classes: Tensor) -> Tensor:
    return request.index.counts[classes] <= EXEMPLARS


def old_rows(request: Request, classes: Tensor, harmful: Tensor) -> Tensor:
    """Replace the partners of samples of old classes by S*."""
    return _replaced(request, classes, harmful & _old(request, request.y))


def spare_new(request: Request, classes: Tensor, harmful: Tensor) -> Tensor:
    """Replace partners by S*, except in pairs of two new classes."""
    some_old = _old(request, request.y) | _old(request, classes)
    return _replaced(request, classes, harmful & some_old)


def half(request: Request, classes: Tensor, harmful: Tensor) -> Tensor:
    """Replace half of the partners by S*."""
    _, coin = request.classes_and_uniforms()
    return _replaced(request, classes, harmful & (coin < 0.5))


def redraw(request: Request, classes: Tensor, harmful: Tensor) -> Tensor:
    """Draw the classes of harmful pairs again, up to three times."""
    for _ in range(3):
        again, _ = request.classes_and_uniforms()
        classes = torch.where(request.harmful(classes), again, classes)
    return classes


def _replaced(request: Request, classes: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, request.best(where), classes)


def _rule(change: Callable[[Request, Tensor, Tensor], Tensor]) -> Callable[[Request], Partners]:
    def draw(request: Request) -> Partners:
        classes, uniform = request.classes_and_uniforms()
        chosen = change(request, classes, request.harmful(classes))
        own = torch.arange(request.y.shape[1], device=request.y.device).expand_as(request.y)
        everywhere = torch.ones_like(request.y, dtype=torch.bool)
        return Partners(own, everywhere, request.index.at(chosen, uniform))

    return draw


for name, change in {
    "old-rows": old_rows,
    "spare-new": spare_new,
    "half": half,
    "redraw": redraw,
}.items():
    gradmix.register("partners", f"gradient-{name}", _rule(change))
