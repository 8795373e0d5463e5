"""Groups of results and their statistics, checked by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradmix.errors import InputError, ResultError, UnknownNameError
from gradmix.runs.comparisons import (
    best_control,
    compare_groups,
    find_base,
    gradients_add,
    is_best,
    is_control,
    parse_against,
    parse_condition,
    uses_gradients,
)
from gradmix.runs.groups import capability_note, differing, group_results, in_order, select
from gradmix.runs.statistics import paired_difference, summarize

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05, 0.07 and 0.03 more


@pytest.fixture(scope="session")
def runs(example):
    def runs(values, **config):
        return [example(value, seed=seed, **config) for seed, value in values.items()]

    return runs


@pytest.fixture(scope="session")
def two_mixes(runs):
    def two_mixes(**config):
        return runs(NONE, mix="none", **config) + runs(MIXUP, mix="mixup", **config)

    return two_mixes


def test_groups_are_over_seeds_in_order(two_mixes):
    results = two_mixes()
    one, two = group_results(results[::-1])
    assert (one.key, one.seeds) == ({"data": "digits", "method": "er", "mix": "mixup"}, [0, 1, 2])
    assert one.by_seed("average_accuracy") == MIXUP
    assert two.label == "digits er none"


def test_what_else_differs_within_a_group_makes_groups_of_its_own(two_mixes):
    results = two_mixes(exemplars_per_class=4) + two_mixes(exemplars_per_class=8)
    groups = group_results(results)
    assert len(groups) == 4
    assert groups[0].label == "digits er none exemplars 4"
    assert differing(results, ("data",)) == ("mix", "exemplars_per_class")


def test_what_differs_between_mixes_without_being_theirs_is_shown_and_not_compared(runs):
    results = runs(NONE, mix="none", epochs=1) + runs(MIXUP, mix="mixup", epochs=6)
    one, two = group_results(results)
    assert (one.label, two.label) == ("digits er none epochs 1", "digits er mixup epochs 6")
    assert not is_best(two, [one, two], "average_accuracy")
    assert find_base(two, [one, two], "none") is None


def test_what_differs_between_data_sets_only_does_not(runs):
    groups = group_results(runs(NONE, mix="none") + runs(NONE, mix="none", data="mnist"))
    assert [set(group.key) for group in groups] == [{"data", "method", "mix"}] * 2


@pytest.mark.parametrize("other", [{"data": "mnist"}, {"method": "mir"}, {"mix": "mixup"}])
def test_a_scenario_is_shown_whatever_else_differs(runs, other):
    results = runs(NONE, mix="none")
    results += runs(NONE, **{"mix": "none", "scenario": "online", **other})
    scenarios = [group.key["scenario"] for group in group_results(results)]
    assert scenarios == ["class-incremental", "online"]


def test_epochs_are_shown_if_methods_differ_in_them(runs):
    results = runs(NONE, mix="none", epochs=1) + runs(NONE, mix="none", epochs=2, method="mir")
    assert [group.key["epochs"] for group in group_results(results)] == [1, 2]


def test_a_grouping_of_ones_own_must_not_have_a_seed_twice(two_mixes):
    results = two_mixes()
    with pytest.raises(
        ResultError, match=r"digits has a seed more than once: its runs differ in mix"
    ):
        group_results(results, by=["data"])
    assert len(group_results(results, by=["seed", "mix"])) == 6
    with pytest.raises(UnknownNameError, match="did you mean 'mix'"):
        group_results(results, by=["mixx"])


def test_settings_younger_than_a_result_have_their_defaults(example):
    new = example(seed=0)
    config = {name: value for name, value in new.config.items() if name != "analyses"}
    old = replace(example(), config={**config, "seed": 1})
    (group,) = group_results([old, new])
    assert group.seeds == [0, 1]


def test_selection(two_mixes):
    results = two_mixes() + two_mixes(increments=(5, 5))
    assert len(select(results, {"mix": ["mixup"], "seed": [0, 2]})) == 4
    assert len(select(results, {"increments": [[5, 5]]})) == 6
    assert select(results, {"data": ["mnist"]}) == []
    with pytest.raises(UnknownNameError, match="did you mean 'epochs'"):
        select(results, {"epoch": [1]})


def test_order_is_plain_replay_first_and_numbers_by_size(example):
    results = [
        example(mix=mix, exemplars_per_class=number)
        for mix in ("gradient:cutmix:remix", "gradmix+", "mixup", "none")
        for number in (16, 4)
    ]
    order = [(r.config["mix"], r.config["exemplars_per_class"]) for r in in_order(results)]
    mixes = ("none", "mixup", "gradmix+", "gradient:cutmix:remix")
    assert order == [(mix, number) for mix in mixes for number in (4, 16)]


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


# --- old and foreign results --------------------------------------------------------------------


def foreign(result, **config):
    """A result with settings that gradmix would refuse today."""
    return replace(result, config={**result.config, **config})


def test_removed_settings_at_their_default_do_not_split_groups(example):
    old = foreign(example(seed=1), level="class", rolling=1)
    bare = {k: v for k, v in example().config.items() if k not in ("level", "rolling")}
    (group,) = group_results([old, replace(example(), config=bare)])
    assert group.seeds == [0, 1]
    sample = foreign(example(seed=1), level="sample", rolling=1)
    for results in ([sample, old], [old, sample]):
        labels = {group.label for group in group_results(results)}
        assert labels == {"digits er gradmix+", "digits er gradmix+ level sample"}


def test_unknown_mixes_and_methods_are_groups_like_any_other(runs, two_mixes):
    results = [
        *two_mixes(),
        *(foreign(r, mix="gradient-refined:linear:remix") for r in runs(MIXUP)),
        *(foreign(r, method="unheard-of", mix="whatever") for r in runs(MIXUP)),
    ]
    groups = group_results(in_order(results))
    assert [group.key["mix"] for group in groups] == [
        *("none", "mixup", "gradient-refined:linear:remix", "whatever"),
    ]
    assert uses_gradients(groups[2].config)
    assert not uses_gradients(groups[3].config)
    assert gradients_add(groups[2], groups).note == "no control"


def test_results_from_different_processors_are_noted(example):
    def on(*names):
        return [replace(example(), versions={"cpu_capability": n} if n else {}) for n in names]

    assert capability_note(on("AVX2", "AVX2", None)) == ""
    assert "(AVX2, AVX512)" in capability_note(on("AVX512", None, "AVX2"))
