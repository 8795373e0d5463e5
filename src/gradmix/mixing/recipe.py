"""Named mixes: each is a point on three independent axes, with a distribution of λ.

| axis     | question                                    | choices                              |
|----------|---------------------------------------------|--------------------------------------|
| partners | with whom is a sample mixed?                | shuffle, class-balanced, gradient,   |
|          |                                             | gradient-keep-original,              |
|          |                                             | gradient-refined, gradient-softmax   |
| blend    | how are the two combined, and where?        | linear, cutmix, manifold             |
| labels   | how much of each label?                     | proportional, remix                  |

Any combination can be written `partners:blend:labels`, for example `gradient:cutmix:remix`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradmix.errors import InputError, UnknownNameError

PARTNERS = (
    "shuffle",
    "class-balanced",
    "gradient",
    "gradient-keep-original",
    "gradient-refined",
    "gradient-softmax",
)
BY_SAMPLES = ("gradient-refined", "gradient-softmax")
"""Partners that need the scores of sample pairs."""

BLENDS = ("linear", "cutmix", "manifold")
LABELS = ("proportional", "remix")
LEVELS = ("class", "sample")


class Beta(NamedTuple):
    """The distribution of λ, the share of a sample itself in the mix."""

    a: float
    b: float


@dataclass(frozen=True)
class Recipe:
    """How batches are mixed.

    `alpha` is the paper's α; see `ratio` for what it means. `tables` is for gradient partners:
    1 is one pair table per epoch, at a drawn λ (Algorithm 1, step 4); with more they cover 0 to
    1 evenly, and each batch uses the one nearest its own λ. `tau` is for Remix's labels: the
    rarer class takes the whole label if the other's share of the input is below it. `level` says
    what is judged harmful: pairs of classes, or each pair of samples by itself, which needs a
    forward pass over the whole pool every epoch; a replacement is of the best class in either.
    """

    partners: str = "shuffle"
    blend: str = "linear"
    labels: str = "proportional"
    alpha: float = 1.0
    tables: int = 1
    tau: float = 0.5
    level: str = "class"

    def __post_init__(self) -> None:
        for axis, known in (
            ("partners", PARTNERS),
            ("blend", BLENDS),
            ("labels", LABELS),
            ("level", LEVELS),
        ):
            if getattr(self, axis) not in known:
                raise UnknownNameError(axis, getattr(self, axis), known)
        if self.tables < 1:
            raise InputError(f"tables is {self.tables}; the criterion needs at least 1")
        if not 0 <= self.tau <= 1:
            raise InputError(f"tau is {self.tau}; it must be from 0 to 1")
        if not (0 < self.alpha < math.inf):
            raise InputError(f"alpha is {self.alpha}; Beta(α, α) needs a finite α above 0")

    @property
    def ratio(self) -> Beta:
        """λ ~ Beta(α, α); with class-balanced partners Beta(1, α), as Balanced-MixUp has it."""
        return Beta(1.0 if self.partners == "class-balanced" else self.alpha, self.alpha)

    @property
    def uses_gradients(self) -> bool:
        """Whether the criterion is needed; such a recipe does not mix without a memory."""
        return self.partners.startswith("gradient")

    @property
    def judges_samples(self) -> bool:
        """Whether scores of sample pairs are needed."""
        return self.partners in BY_SAMPLES or (self.level == "sample" and self.uses_gradients)


RECIPES: dict[str, Recipe] = {
    "mixup": Recipe(),
    "manifold-mixup": Recipe(blend="manifold", alpha=2.0),
    "cutmix": Recipe(blend="cutmix"),
    "remix": Recipe(labels="remix"),
    "balanced-mixup": Recipe(partners="class-balanced", alpha=0.2),
    "gradmix": Recipe(partners="gradient"),
    "gradmix+": Recipe(partners="gradient", labels="remix", tables=8, tau=0.75),
}
"""With the paper's α. `gradmix` is Algorithm 1 to the letter. `gradmix+` has Remix's labels, which
favour the rarer class further than Remix's own, and pairs every batch by a table of nearly its own
λ; docs/protocol.md says how both were chosen."""

ABOUT: dict[str, tuple[str, str]] = {
    "none": ("no mixing", "plain replay"),
    "mixup": ("shuffled partners, linear blend", "Zhang et al., ICLR 2018"),
    "manifold-mixup": ("Mixup of hidden states", "Verma et al., ICML 2019"),
    "cutmix": ("a box of the partner is pasted in", "Yun et al., ICCV 2019"),
    "remix": ("Mixup, labels lean to the rarer class", "Chou et al., ECCV Workshops 2020"),
    "balanced-mixup": ("partners drawn evenly over classes", "Galdran et al., MICCAI 2021"),
    "gradmix": ("harmful class pairs replaced by the best", "Kim et al., KDD 2026, Algorithm 1"),
    "gradmix+": (
        "gradmix with Remix's labels and a table for each λ",
        "ours; see docs/protocol.md",
    ),
}
"""One line and a source for each named mix."""


def parse_recipe(
    text: str,
    alpha: float | None = None,
    tables: int | None = None,
    tau: float | None = None,
    level: str = "class",
) -> Recipe | None:
    """The recipe of a name, or of `partners:blend:labels` (also with × or *); None for "none".

    What is not given stays the recipe's own; combinations without a name pair as `gradmix+` does.

    >>> parse_recipe("gradient × cutmix × remix").blend
    'cutmix'
    """
    text = text.strip()
    axes = re.split(r"\s*[:×*]\s*|\s+x\s+", text)
    if text == "none":
        return None
    if text in RECIPES:
        recipe = RECIPES[text]
    elif len(axes) == 3:
        recipe = _combine(*axes)
    else:
        raise UnknownNameError("mix", text, (*ABOUT, "partners:blend:labels"))
    return replace(
        recipe,
        alpha=recipe.alpha if alpha is None else alpha,
        tables=recipe.tables if tables is None else tables,
        tau=recipe.tau if tau is None else tau,
        level=level,
    )


def _combine(partners: str, blend: str, labels: str) -> Recipe:
    """The named recipe with these axes; else one with the α and tables of its likes."""
    for recipe in RECIPES.values():
        if (recipe.partners, recipe.blend, recipe.labels) == (partners, blend, labels):
            return recipe
    alpha = 1.0
    if partners == "class-balanced":
        alpha = RECIPES["balanced-mixup"].alpha
    elif blend == "manifold":
        alpha = RECIPES["manifold-mixup"].alpha
    free = Recipe(partners, blend, labels, alpha)
    best = RECIPES["gradmix+"]
    return replace(free, tables=best.tables, tau=best.tau) if free.uses_gradients else free
