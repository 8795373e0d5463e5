"""Grouping and statistics, by hand."""

import math
from dataclasses import replace

import pytest
from result_cases import example

from gradmix.errors import InputError, ResultError, UnknownNameError
from gradmix.runs.tables import (
    base_of,
    differing,
    group_results,
    in_order,
    is_best,
    mean_std,
    paired,
    select,
    summaries,
)

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05, 0.07 and 0.03 more


def runs(values, **config):
    return [example(value, seed=seed, **config) for seed, value in values.items()]


def two_mixes(**config):
    return runs(NONE, mix="none", **config) + runs(MIXUP, mix="mixup", **config)


def test_groups_are_over_seeds_in_order():
    results = two_mixes()
    one, two = group_results(results[::-1])
    assert (one.key, one.seeds) == ({"data": "digits", "method": "er", "mix": "mixup"}, [0, 1, 2])
    assert one.values("average_accuracy") == [0.85, 0.89, 0.87]
    assert two.label == "digits er none"


def test_what_else_differs_within_a_group_makes_groups_of_its_own():
    results = two_mixes(exemplars_per_class=4) + two_mixes(exemplars_per_class=8)
    groups = group_results(results)
    assert len(groups) == 4
    assert groups[0].label == "digits er none exemplars_per_class=4"
    assert differing(results, ("data",)) == ("mix", "exemplars_per_class")


def test_what_differs_between_mixes_without_being_theirs_is_shown_and_not_compared():
    results = runs(NONE, mix="none", epochs=1) + runs(MIXUP, mix="mixup", epochs=6)
    one, two = group_results(results)
    assert (one.label, two.label) == ("digits er none epochs=1", "digits er mixup epochs=6")
    assert not is_best(two, [one, two], "average_accuracy")
    assert base_of(two, [one, two], "none") is None


def test_what_differs_between_data_sets_only_does_not():
    groups = group_results(runs(NONE, mix="none") + runs(NONE, mix="none", data="mnist"))
    assert [set(group.key) for group in groups] == [{"data", "method", "mix"}] * 2


def test_a_grouping_of_ones_own_must_not_have_a_seed_twice():
    results = two_mixes()
    with pytest.raises(ResultError, match=r"digits has a seed more than once: .* differ in mix"):
        group_results(results, by=["data"])
    assert len(group_results(results, by=["seed", "mix"])) == 6
    with pytest.raises(UnknownNameError, match="did you mean 'mix'"):
        group_results(results, by=["mixx"])


def test_settings_younger_than_a_result_have_their_defaults():
    new = example(seed=0)
    config = {name: value for name, value in new.config.items() if name != "analyses"}
    old = replace(example(), config={**config, "seed": 1})
    (group,) = group_results([old, new])
    assert group.seeds == [0, 1]


def test_selection():
    results = two_mixes() + two_mixes(increments=(5, 5))
    assert len(select(results, {"mix": ["mixup"], "seed": [0, 2]})) == 4
    assert len(select(results, {"increments": [[5, 5]]})) == 6
    assert select(results, {"data": ["mnist"]}) == []
    with pytest.raises(UnknownNameError, match="did you mean 'epochs'"):
        select(results, {"epoch": [1]})


def test_order_is_plain_replay_first_and_numbers_by_size():
    results = [
        example(mix=mix, exemplars_per_class=number)
        for mix in ("gradient:cutmix:remix", "gradmix+", "mixup", "none")
        for number in (16, 4)
    ]
    order = [(r.config["mix"], r.config["exemplars_per_class"]) for r in in_order(results)]
    mixes = ("none", "mixup", "gradmix+", "gradient:cutmix:remix")
    assert order == [(mix, number) for mix in mixes for number in (4, 16)]


def test_mean_and_standard_deviation_of_a_sample():
    mean, std = mean_std([0.85, 0.89, 0.87])
    assert mean == pytest.approx(0.87)
    assert std == pytest.approx(0.02)
    assert mean_std([0.5]) == (0.5, None)


def test_the_paired_difference_over_common_seeds():
    base, group = group_results(runs({**NONE, 7: 0.1}, mix="none") + runs(MIXUP, mix="mixup"))
    found = paired(group, base)
    assert found.seeds == [0, 1, 2]
    assert found.difference == pytest.approx(0.05)
    assert found.std == pytest.approx(0.02)
    t = 0.05 / (0.02 / math.sqrt(3))
    assert found.p_value == pytest.approx(1 - t / math.sqrt(t * t + 2))  # Student's, 2 freedoms
    assert paired(base, group).difference == pytest.approx(-0.05)


@pytest.mark.parametrize(
    ("values", "difference", "note"),
    [
        ({0: 0.9}, 0.1, "one common seed"),
        ({5: 0.9}, None, "no common seeds"),
        ({0: 0.9, 1: 0.92}, 0.1, "the same difference for every seed"),
    ],
)
def test_where_there_is_no_p_value_it_is_said_why(values, difference, note):
    base, group = group_results(runs(NONE, mix="none") + runs(values, mix="mixup"))
    found = paired(group, base)
    assert found.difference == (None if difference is None else pytest.approx(difference))
    assert (found.p_value, found.note) == (None, note)


def test_the_base_has_all_but_the_mix_in_common():
    results = two_mixes() + two_mixes(method="mir")
    none, mixup, mir_none, mir_mixup = groups = group_results(results)
    assert base_of(mixup, groups, "none") is none
    assert base_of(mir_mixup, groups, "none") is mir_none
    assert base_of(mixup, groups, "remix") is None
    with pytest.raises(InputError, match="not grouped by mix"):
        base_of(group_results(results[:3], by=["data"])[0], groups, "none")


def test_a_base_without_the_settings_of_a_mix_serves_all_of_them():
    results = runs(NONE, mix="none") + [
        result for alpha in (0.4, 2.0) for result in runs(MIXUP, mix="mixup", alpha=alpha)
    ]
    none, weak, strong = groups = group_results(results)
    assert weak.key["alpha"] == 0.4
    assert base_of(weak, groups, "none") is none
    assert base_of(strong, groups, "none") is none
    assert base_of(none, groups, "mixup") is None  # which one?
    assert base_of(strong, groups, "mixup") is strong


def test_the_best_is_among_mixes_of_the_same_data_method_and_settings():
    results = two_mixes() + runs(NONE, method="mir", mix="none")
    none, mixup, mir = groups = group_results(results)
    accuracy = "average_accuracy"
    assert [is_best(g, groups, accuracy) for g in groups] == [False, True, False]  # mir is alone
    assert is_best(none, groups, "forgetting_from_best")
    assert not is_best(mixup, groups, "forgetting_from_best")
    by_method = group_results(results[:3] + runs(MIXUP, method="mir", mix="none"), by=["method"])
    assert [is_best(g, by_method, accuracy) for g in by_method] == [False, True]
    with pytest.raises(UnknownNameError, match="did you mean 'average_accuracy'"):
        is_best(mir, groups, "accuracy")


def test_summaries_are_plain_values():
    base, record = summaries(group_results(two_mixes()), against="none")
    assert record["seeds"] == [0, 1, 2]
    assert (record["mix"], record["metric"], record["runs"]) == ("mixup", "average_accuracy", 3)
    assert [record["mean"], record["std"]] == pytest.approx([0.87, 0.02])
    assert (record["best"], base["best"]) == (True, False)
    assert [record["difference"], record["difference_std"]] == pytest.approx([0.05, 0.02])
    assert record["common_seeds"] == 3
    assert (base["difference"], base["p_value"], base["note"]) == (None, None, "")
    (lonely,) = summaries(group_results(runs(NONE, mix="none")), against="remix")
    assert lonely["note"] == "no runs of remix to compare with"
