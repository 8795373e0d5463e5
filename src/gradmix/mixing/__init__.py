"""Mixing has three independent axes: partners, blend and labels; recipes name the points."""

from __future__ import annotations

from gradmix.mixing.recipe import ABOUT, RECIPES, Recipe, parse_recipe

__all__ = ["ABOUT", "RECIPES", "Recipe", "parse_recipe"]
