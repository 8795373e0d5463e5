"""Recipes: the table of named mixes, free combinations, and what is refused."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing import ABOUT, RECIPES, Recipe, parse_recipe
from gradmix.mixing.recipe import BLENDS, LABELS, PARTNERS, with_partners

NAMED = {
    "mixup": ("shuffle", "linear", "proportional", (1.0, 1.0)),
    "manifold-mixup": ("shuffle", "manifold", "proportional", (2.0, 2.0)),
    "cutmix": ("shuffle", "cutmix", "proportional", (1.0, 1.0)),
    "remix": ("shuffle", "linear", "remix", (1.0, 1.0)),
    "balanced-mixup": ("class-balanced", "linear", "proportional", (1.0, 0.2)),
    "balanced-remix": ("class-balanced", "linear", "remix", (1.0, 1.0)),
    "gradmix": ("gradient", "linear", "proportional", (1.0, 1.0)),
    "gradmix+": ("gradient", "linear", "remix", (1.0, 1.0)),
}
ALL = list(itertools.product(PARTNERS, BLENDS, LABELS))


@pytest.mark.parametrize("name", NAMED)
def test_named_recipes(name):
    recipe = parse_recipe(name)
    assert (recipe.partners, recipe.blend, recipe.labels, recipe.ratio) == NAMED[name]
    assert recipe.uses_gradients == name.startswith("gradmix")


def test_the_default_has_the_labels_of_gradmix_plus_and_no_gradients():
    default, plus = parse_recipe("balanced-remix"), parse_recipe("gradmix+")
    assert default.label_rule == plus.label_rule == ("remix", 0.75)
    assert default.ratio == plus.ratio
    assert default.mixes_first_task


@pytest.mark.parametrize(
    ("partners", "mix", "given", "expected"),
    [
        ("class-balanced", "gradmix+", {}, ("balanced-remix", None, None)),
        ("class-balanced", "gradmix+", {"alpha": 1.0, "tau": 0.75}, ("balanced-remix", None, None)),
        ("class-balanced", "gradmix+", {"alpha": 0.4, "tau": 0.5}, ("balanced-remix", 0.4, 0.5)),
        (
            "class-balanced",
            "gradient-class-balanced:linear:remix",
            {"alpha": 1.0, "tau": 0.75},
            ("balanced-remix", None, None),
        ),
        ("class-balanced", "gradmix", {}, ("balanced-mixup", 1.0, None)),
        ("shuffle", "gradmix+", {}, ("shuffle:linear:remix", None, 0.75)),
        ("shuffle", "gradmix+", {"tau": 0.5}, ("remix", None, 0.5)),
    ],
)
def test_other_partners_have_the_name_of_their_mix_and_leave_out_its_own_settings(
    partners, mix, given, expected
):
    other = with_partners(partners, mix, **given)
    assert (other["mix"], other["alpha"], other["tau"]) == expected
    ours, theirs = parse_recipe(mix, **given), parse_recipe(**other)
    assert (ours.label_rule, ours.alpha) == (theirs.label_rule, theirs.alpha)


def test_no_recipe_is_without_a_row_of_the_table_and_a_source():
    assert RECIPES.keys() == NAMED.keys()
    assert ABOUT.keys() == {"none", *NAMED}


def test_none_is_no_recipe():
    assert parse_recipe("none") is None


@pytest.mark.parametrize("axes", ALL)
@pytest.mark.parametrize("between", [":", "×", " × ", "*", " * ", " x ", " : "])
def test_free_combinations(axes, between):
    recipe = parse_recipe(between.join(axes))
    assert (recipe.partners, recipe.blend, recipe.labels) == axes
    assert recipe.uses_gradients == axes[0].startswith("gradient")


@pytest.mark.parametrize(
    ("text", "alpha"),
    [
        ("gradient:cutmix:remix", 1.0),
        ("gradient:manifold:proportional", 2.0),
        ("class-balanced:cutmix:remix", 0.2),
        ("class-balanced:manifold:remix", 0.2),
    ],
)
def test_a_combination_has_the_usual_alpha_of_its_kin(text, alpha):
    assert parse_recipe(text).alpha == alpha


@pytest.mark.parametrize("name", NAMED)
def test_a_named_recipe_written_out_is_the_same(name):
    assert parse_recipe(":".join(NAMED[name][:3])) == parse_recipe(name)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(NAMED)), st.floats(1e-6, 1e6))
def test_a_given_alpha_replaces_the_usual(name, alpha):
    recipe = parse_recipe(name, alpha=alpha)
    assert recipe.alpha == alpha
    assert recipe.ratio == ((1.0 if name.startswith("balanced") else alpha), alpha)
    assert RECIPES[name].ratio == NAMED[name][3]  # the named one is not changed


@pytest.mark.parametrize(
    ("mix", "given", "mixes"),
    [
        ("mixup", None, True),
        ("mixup", "no", False),
        ("gradmix+", None, False),
        ("gradmix+", "yes", True),
        ("gradient-class-balanced:linear:remix", "no", False),
    ],
)
def test_whether_the_first_task_is_mixed_depends_on_the_partners_unless_given(mix, given, mixes):
    assert parse_recipe(mix, mix_first_task=given).mixes_first_task is mixes


def test_balanced_gradient_partners_have_the_ratio_of_their_control():
    ours, control = (
        parse_recipe(f"{partners}:linear:remix", alpha=0.4)
        for partners in ("gradient-class-balanced", "class-balanced")
    )
    assert ours.ratio == control.ratio == (1.0, 0.4)
    assert ours.uses_gradients
    assert not control.uses_gradients


@pytest.mark.parametrize(
    ("text", "kind", "suggestion"),
    [
        ("mixp", "mix", "mixup"),
        ("gradmixx", "mix", "gradmix"),
        ("gradent:linear:remix", "partners", "gradient"),
        ("shuffle:linera:remix", "blend", "linear"),
        ("shuffle × linear × remx", "labels", "remix"),
    ],
)
def test_unknown_names_suggest_the_nearest(text, kind, suggestion):
    with pytest.raises(UnknownNameError, match=f"unknown {kind} .*did you mean '{suggestion}'"):
        parse_recipe(text)


@pytest.mark.parametrize("text", ["", "shuffle:linear", "shuffle:linear:remix:remix", "None"])
def test_what_is_neither_name_nor_combination_is_refused(text):
    with pytest.raises(UnknownNameError, match=r"unknown mix .*partners:blend:labels"):
        parse_recipe(text)


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, math.nan, math.inf, -math.inf])
def test_bad_alphas_are_refused(alpha):
    with pytest.raises(InputError, match="alpha is"):
        Recipe(alpha=alpha)
    with pytest.raises(InputError, match="alpha is"):
        parse_recipe("mixup", alpha=alpha)


@pytest.mark.parametrize("axis", ["partners", "blend", "labels"])
def test_a_recipe_names_the_axis_that_is_wrong(axis):
    with pytest.raises(UnknownNameError, match=f"unknown {axis} 'nonsense'"):
        Recipe(**{axis: "nonsense"})
