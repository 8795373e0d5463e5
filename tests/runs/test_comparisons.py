"""Comparisons of groups over seeds, checked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradmix.errors import InputError
from gradmix.runs.comparisons import (
    best_control,
    compare_groups,
    find_base,
    gradients_add,
    is_best,
    is_control,
    parse_against,
    parse_condition,
)
from gradmix.runs.groups import group_results
from gradmix.runs.measures import paired_difference, summarize

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05, 0.07 and 0.03 more


def test_mean_and_standard_deviation_of_a_sample():
    assert summarize([0.85, 0.89, 0.87]) == (pytest.approx(0.87), pytest.approx(0.02), 3)
    assert summarize([0.5]) == (0.5, None, 1)


def test_the_paired_difference_over_common_seeds(runs):
    base, group = group_results(runs({**NONE, 7: 0.1}, mix="none") + runs(MIXUP, mix="mixup"))
    found = compare_groups(group, base)
    assert found.seeds == (0, 1, 2)
    assert found.mean == pytest.approx(0.05)
    assert found.std == pytest.approx(0.02)
    t = 0.05 / (0.02 / math.sqrt(3))
    assert found.p_value == pytest.approx(1 - t / math.sqrt(t * t + 2))  # Student's t, df = 2
    half = 4.30265273 * 0.02 / math.sqrt(3)  # quantile of Student's t, df = 2
    assert (found.low, found.high) == (pytest.approx(0.05 - half), pytest.approx(0.05 + half))
    assert compare_groups(base, group).mean == pytest.approx(-0.05)


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 1), min_size=2), st.floats(-1, 1))
def test_p_value_and_interval_agree_with_scipy(base, shift):
    """They also agree with each other: p < 0.05 exactly if the interval excludes 0."""
    ours = {seed: value + shift + 0.1 * math.sin(seed) for seed, value in base.items()}
    found = paired_difference(ours, base)
    expected = stats.ttest_rel([ours[seed] for seed in base], list(base.values()))
    interval = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    if abs(found.p_value - 0.05) > 1e-6:
        assert (found.p_value < 0.05) == (found.low * found.high > 0)


@pytest.mark.parametrize(
    ("values", "difference", "note"),
    [
        ({0: 0.9}, 0.1, "one common seed"),
        ({5: 0.9}, None, "no common seeds"),
        ({0: 0.9, 1: 0.92}, 0.1, "the same difference for every seed"),
    ],
)
def test_where_there_is_no_p_value_it_is_said_why(values, difference, note, runs):
    base, group = group_results(runs(NONE, mix="none") + runs(values, mix="mixup"))
    found = compare_groups(group, base)
    assert found.mean == (None if difference is None else pytest.approx(difference))
    assert (found.p_value, found.note) == (None, note)


def test_the_base_has_all_but_the_mix_in_common(two_mixes):
    results = two_mixes() + two_mixes(method="mir")
    none, mixup, mir_none, mir_mixup = groups = group_results(results)
    assert find_base(mixup, groups, "none") is none
    assert find_base(mir_mixup, groups, "none") is mir_none
    assert find_base(mixup, groups, "remix") is None
    with pytest.raises(InputError, match="not grouped by mix"):
        parse_against("none", group_results(results[:3], by=["data"]))


def test_the_base_may_differ_in_any_setting(two_mixes):
    results = two_mixes() + two_mixes(method="mir") + two_mixes(exemplars_per_class=8)
    groups = {group.label: group for group in group_results(results)}
    er, mir = (f"digits {method} mixup exemplars 4" for method in ("er", "mir"))
    larger = "digits er mixup exemplars 8"
    every = list(groups.values())
    assert find_base(groups[mir], every, "er") is groups[er]
    assert find_base(groups[mir], every, "method=er") is groups[er]
    assert find_base(groups[larger], every, "exemplars_per_class=4") is groups[er]
    assert find_base(groups[mir], every, "exemplars_per_class=8") is None
    with pytest.raises(InputError, match="not grouped by epochs"):
        find_base(groups[er], every, "epochs=1")
    with pytest.raises(InputError, match="give name=value"):
        parse_condition("epochs")


def test_a_base_without_the_settings_of_a_mix_serves_all_of_them(runs):
    results = runs(NONE, mix="none") + [
        result for alpha in (0.4, 2.0) for result in runs(MIXUP, mix="mixup", alpha=alpha)
    ]
    none, weak, strong = groups = group_results(results)
    assert weak.key["alpha"] == 0.4
    assert find_base(weak, groups, "none") is none
    assert find_base(strong, groups, "none") is none
    assert find_base(none, groups, "mixup") is None  # which one?
    assert find_base(strong, groups, "mixup") is strong


def test_the_best_is_among_mixes_of_the_same_data_method_and_settings(runs, two_mixes):
    results = two_mixes() + runs(NONE, method="mir", mix="none")
    none, mixup, _ = groups = group_results(results)
    accuracy = "average_accuracy"
    assert [is_best(g, groups, accuracy) for g in groups] == [False, True, False]  # mir is alone
    assert is_best(none, groups, "forgetting_from_best")
    assert not is_best(mixup, groups, "forgetting_from_best")
    by_method = group_results(results[:3] + runs(MIXUP, method="mir", mix="none"), by=["method"])
    assert [is_best(g, by_method, accuracy) for g in by_method] == [False, True]


# --- controls -----------------------------------------------------------------------------------

GRADMIX = {0: 0.90, 1: 0.92, 2: 0.94}
SHUFFLED = {"mix": "shuffle:linear:remix", "tau": 0.75, "alpha": 1.0}
BALANCED = {"mix": "class-balanced:linear:remix", "tau": 0.75, "alpha": 1.0}
PLUS = {"mix": "gradmix+", "tau": 0.75}


def test_a_control_has_the_same_labels_alpha_and_tau_but_no_gradient_partners(example):
    def config(**settings):
        return example(**settings).config

    ours = config(**PLUS)
    assert is_control(config(**SHUFFLED), ours)
    assert is_control(config(**BALANCED, seed=3), ours)
    assert is_control(config(mix="mixup"), config(mix="gradmix", tables=3))
    assert not is_control(config(mix="remix", tau=0.5), ours)  # another τ
    assert not is_control(config(**{**SHUFFLED, "alpha": 2.0}), ours)
    assert not is_control(config(**SHUFFLED, epochs=1), ours)
    assert not is_control(config(mix="mixup"), ours)  # other labels
    assert not is_control(config(mix="gradient-keep-original:linear:remix", tau=0.75), ours)
    assert not is_control(ours, config(**SHUFFLED))


def test_a_control_mixes_the_first_task_if_its_run_does(example):
    def config(**settings):
        return example(0.9, **settings).config

    yes, no = {"mix_first_task": "yes"}, {"mix_first_task": "no"}
    assert is_control(config(**SHUFFLED, **yes), config(mix="gradmix+", tau=0.75, **yes))
    assert is_control(config(**SHUFFLED), config(mix="gradmix+", tau=0.75, **yes))
    assert is_control(config(**SHUFFLED, **no), config(mix="gradmix+", tau=0.75))
    assert not is_control(config(**SHUFFLED, **no), config(mix="gradmix+", tau=0.75, **yes))
    assert not is_control(config(**SHUFFLED), config(mix="gradmix+", tau=0.75, **no))


def test_a_control_may_be_older_than_its_run(example):
    old, new = example(**SHUFFLED).config, example(**PLUS).config
    del old["scenario"]
    assert is_control(old, new)
    assert not is_control(old, {**new, "scenario": "online"})


def test_what_gradients_add_is_the_difference_to_the_best_control(runs):
    results = runs(GRADMIX, **PLUS) + runs(NONE, **SHUFFLED) + runs(MIXUP, **BALANCED)
    plus, _, balanced = groups = group_results(results)
    assert best_control(plus, groups) is balanced
    found = gradients_add(plus, groups)
    assert (found.base, found.mean) == (BALANCED["mix"], pytest.approx(0.05))
    assert gradients_add(balanced, groups) is None
    assert gradients_add(plus, groups[:1]).interval() == "no control"
    assert gradients_add(plus, groups, "forgetting_from_best").base == SHUFFLED["mix"]
