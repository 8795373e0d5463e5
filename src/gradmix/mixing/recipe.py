"""Recipes: how batches are mixed, as a point on three independent axes.

| axis     | what it decides                  | choices                                        |
|----------|----------------------------------|------------------------------------------------|
| partners | which sample each is mixed with  | shuffle, class-balanced, gradient,             |
|          |                                  | gradient-class-balanced,                       |
|          |                                  | gradient-keep-original                         |
| blend    | how two samples are combined     | linear, cutmix, manifold                       |
| labels   | how much of each label is used   | proportional, remix                            |

Named mixes such as `mixup` are points in this space. Any other combination is written
`partners:blend:labels`, for example `gradient:cutmix:remix`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from gradmix.errors import InputError, UnknownNameError

PARTNERS = [
    *("shuffle", "class-balanced"),
    *("gradient", "gradient-class-balanced", "gradient-keep-original"),
]
BLENDS = ["linear", "cutmix", "manifold"]
LABELS = ["proportional", "remix"]
"""The values of each axis; `gradmix.register` adds others."""


@dataclass(frozen=True)
class Recipe:
    """How batches are mixed.

    Args:
        partners: How partners are drawn.
        blend: How two samples are combined.
        labels: How the two labels are weighted.
        alpha: The paper's α, the parameter of the distribution of λ; see `ratio`.
        tables: Number of pair tables, for gradient partners. One table uses a λ drawn once per
            epoch (Algorithm 1, step 4). Several tables cover 0 to 1 evenly, and each batch uses
            the one nearest its own λ.
        tau: Threshold of Remix's labels: the rarer class takes the whole label if the other's
            share of the input is below it.
        mix_first_task: Whether batches are mixed while the memory is empty; gradient partners are
            then as drawn, without replacements. None: unless gradients choose the partners.
    """

    partners: str = "shuffle"
    blend: str = "linear"
    labels: str = "proportional"
    alpha: float = 1.0
    tables: int = 1
    tau: float = 0.5
    mix_first_task: bool | None = None

    def __post_init__(self) -> None:
        for axis, known in (("partners", PARTNERS), ("blend", BLENDS), ("labels", LABELS)):
            if getattr(self, axis) not in known:
                raise UnknownNameError(axis, getattr(self, axis), known)
        if self.tables < 1:
            raise InputError(f"tables is {self.tables}; the criterion needs at least 1")
        if not 0 <= self.tau <= 1:
            raise InputError(f"tau is {self.tau}; it must be from 0 to 1")
        if not (0 < self.alpha < math.inf):
            raise InputError(f"alpha is {self.alpha}; Beta(α, α) needs a finite α above 0")

    @property
    def ratio(self) -> tuple[float, float]:
        """λ ~ Beta(α, α); for class-balanced partners Beta(1, α), as in Balanced-MixUp."""
        return 1.0 if self.partners.endswith("class-balanced") else self.alpha, self.alpha

    @property
    def uses_gradients(self) -> bool:
        """Whether the recipe needs the criterion."""
        return self.partners.startswith("gradient")

    @property
    def mixes_first_task(self) -> bool:
        """Whether batches are mixed while the memory is empty."""
        return not self.uses_gradients if self.mix_first_task is None else self.mix_first_task

    @property
    def label_rule(self) -> tuple[str, float]:
        """How labels are weighted, and τ; 0 for proportional labels, which have none."""
        return self.labels, 0.0 if self.labels == "proportional" else self.tau

    @property
    def own_settings(self) -> dict[str, Any]:
        """The number of tables and τ, as settings of a run."""
        return {"tables": self.tables, "tau": self.tau}

    @property
    def axes(self) -> tuple[str, str, str]:
        """Partners, blend and labels."""
        return self.partners, self.blend, self.labels


RECIPES: dict[str, Recipe] = {
    "mixup": Recipe(),
    "manifold-mixup": Recipe(blend="manifold", alpha=2.0),
    "cutmix": Recipe(blend="cutmix"),
    "remix": Recipe(labels="remix"),
    "balanced-mixup": Recipe(partners="class-balanced", alpha=0.2),
    "balanced-remix": Recipe(partners="class-balanced", labels="remix", tau=0.75),
    "gradmix": Recipe(partners="gradient"),
    "gradmix+": Recipe(partners="gradient", labels="remix", tables=8, tau=0.75),
}
"""The named mixes with the paper's α. `gradmix` is Algorithm 1 as published. `gradmix+` uses
Remix's labels with a higher τ and a pair table for each λ; docs/protocol.md says how both were
chosen. `balanced-remix`, the default, has the same labels and no gradients."""

ABOUT: dict[str, tuple[str, str]] = {
    "none": ("no mixing", "plain replay"),
    "mixup": ("shuffled partners, linear blend", "Zhang et al., ICLR 2018"),
    "manifold-mixup": ("Mixup of hidden states", "Verma et al., ICML 2019"),
    "cutmix": ("pastes a box of the partner", "Yun et al., ICCV 2019"),
    "remix": ("Mixup with labels that favour the rarer class", "Chou et al., ECCV Workshops 2020"),
    "balanced-mixup": ("draws partners evenly over the classes", "Galdran et al., MICCAI 2021"),
    "balanced-remix": (
        "partners drawn evenly over the classes, Remix's labels",
        "ours; see docs/science.md",
    ),
    "gradmix": ("replaces harmful class pairs by the best", "Kim et al., KDD 2026, Algorithm 1"),
    "gradmix+": (
        "gradmix with Remix's labels and a pair table for each λ",
        "ours; see docs/protocol.md",
    ),
}
"""One line and a source for each named mix."""


def parse_recipe(mix: str, **settings: Any) -> Recipe | None:
    """Return the recipe of a named mix or of `partners:blend:labels`; None for "none".

    Args:
        mix: The mix; the axes may also be separated by × or an asterisk.
        **settings: Other settings of `MixSettings`, which replace the recipe's own; None does not.

    Raises:
        UnknownNameError: If the mix or one of its axes is unknown.

    >>> parse_recipe("gradient × cutmix × remix", tau=0.6).tau
    0.6
    """
    mix = mix.strip()
    axes = re.split(r"\s*[:×*]\s*|\s+x\s+", mix)
    if mix == "none":
        return None
    if mix in RECIPES:
        recipe = RECIPES[mix]
    elif len(axes) == 3:
        recipe = _combine(*axes)
    else:
        raise UnknownNameError("mix", mix, (*ABOUT, "partners:blend:labels"))
    changes = {name: value for name, value in settings.items() if value is not None}
    if "mix_first_task" in changes:
        changes["mix_first_task"] = changes["mix_first_task"] == "yes"
    return replace(recipe, **changes)


def _combine(partners: str, blend: str, labels: str) -> Recipe:
    """Return the named recipe with these axes, or one with the α and tables of similar recipes."""
    for recipe in RECIPES.values():
        if recipe.axes == (partners, blend, labels):
            return recipe
    alpha = 1.0
    if partners == "class-balanced":
        alpha = RECIPES["balanced-mixup"].alpha
    elif blend == "manifold":
        alpha = RECIPES["manifold-mixup"].alpha
    free = Recipe(partners, blend, labels, alpha)
    best = RECIPES["gradmix+"]
    return replace(free, **best.own_settings) if free.uses_gradients else free


def with_partners(partners: str, mix: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of a mix with other partners, and with the same blend, labels, α and τ.

    Args:
        partners: The partners.
        mix: The mix, and in `settings` its other settings, as in `parse_recipe`; not "none".
        **settings: See `mix`.

    Returns:
        The mix, by its name if a named mix has the same axes and the same label rule. α and τ
        are None where both mixes have the same value of their own.

    >>> with_partners("shuffle", "gradmix")
    {'mix': 'mixup', 'alpha': None, 'tau': None, 'tables': None}
    >>> with_partners("class-balanced", "gradmix+", tau=0.5)
    {'mix': 'balanced-remix', 'alpha': None, 'tau': 0.5, 'tables': None}
    """
    own, recipe = parse_recipe(mix), parse_recipe(mix, **settings)
    assert own is not None
    assert recipe is not None
    name = f"{partners}:{recipe.blend}:{recipe.labels}"
    other = _combine(partners, recipe.blend, recipe.labels)
    same_labels = other.label_rule in (own.label_rule, recipe.label_rule)
    if same_labels:
        name = next((known for known, one in RECIPES.items() if one.axes == other.axes), name)
    alpha = None if recipe.alpha == own.alpha == other.alpha else recipe.alpha
    tau = None if same_labels and recipe.tau == own.tau else recipe.tau
    return {"mix": name, "alpha": alpha, "tau": tau, "tables": None}
