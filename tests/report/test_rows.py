"""Runs become rows: over seeds, in order, with names that tell them apart."""

import pytest

from gradmix.errors import InputError
from gradmix.report.rows import make_rows
from gradmix.runs.measures import accuracy_by_task


def test_runs_that_differ_in_the_seed_only_are_one_row(result):
    runs = [result(seed=2), result(mix="remix", seed=0), result(seed=0), result(seed=1)]
    assert [(row.mix, row.seeds) for row in make_rows(runs)] == [
        ("remix", [0]),
        ("gradmix+", [0, 1, 2]),
    ]


def test_rows_are_ordered_by_data_set_method_and_mix_whatever_the_order_of_runs(some_results):
    rows = make_rows(some_results[::-1])
    assert [row.label for row in rows[:6]] == [
        "ER",
        "ER + remix",
        "ER + gradmix+",
        "MIR",
        "MIR + remix",
        "MIR + gradmix+",
    ]
    assert [row.data for row in rows] == ["mnist"] * 6 + ["fashion-mnist"] * 6


def test_a_name_has_the_settings_that_differ_within_the_data_set_and_no_others(result):
    runs = [result(lr=0.01), result(lr=0.1), result("fashion-mnist", lr=0.5)]
    assert [row.name for row in make_rows(runs)] == [
        "gradmix+ · lr 0.01",
        "gradmix+ · lr 0.1",
        "gradmix+",  # the only one of its data set; its validation differs from MNIST's
    ]


def test_a_setting_left_to_the_mix_is_not_in_the_name(result):
    rows = make_rows([result(mix="remix"), result(mix="remix", tau=0.75)])
    assert [row.name for row in rows] == ["remix", "remix · τ 0.75"]


def test_runs_of_other_classes_are_not_averaged_even_if_the_configuration_is_the_same(result):
    rows = make_rows([result(seed=0), result(seed=1, names="abcdefghij")])
    assert [row.seeds for row in rows] == [[0], [1]]


def test_accuracy_after_each_task_is_the_mean_over_seeds(result):
    runs = [result(seed=0), result(seed=1)]
    (row,) = make_rows(runs)
    after = row.summaries(accuracy_by_task)
    last = [sum(run.accuracy[-1]) / 5 for run in runs]
    assert after["5"].mean == pytest.approx(sum(last) / 2)
    assert after["5"].std == pytest.approx(abs(last[0] - last[1]) / 2**0.5)


def test_a_mix_has_the_same_colour_everywhere(some_results, result):
    rows = make_rows([*some_results, result(mix="gradient:cutmix:remix")])
    colours = {}
    for row in rows:
        colours.setdefault(row.mix, set()).add(row.colour)
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 4


def test_no_results_are_refused():
    with pytest.raises(InputError, match="results is empty"):
        make_rows([])
