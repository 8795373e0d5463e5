"""Groups of results, and the settings that tell them apart."""

from dataclasses import replace

import pytest

from gradmix.errors import ResultError, UnknownNameError
from gradmix.runs.comparisons import (
    find_base,
    gradients_add,
    is_best,
    uses_gradients,
)
from gradmix.runs.groups import capability_note, differing, group_results, in_order, select

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05, 0.07 and 0.03 more


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
        assert labels == {"digits er balanced-remix", "digits er balanced-remix level sample"}


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
