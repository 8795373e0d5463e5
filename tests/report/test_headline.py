"""The sentences follow from the numbers, whichever mix wins."""

import re

from gradmix.report.headline import headlines
from gradmix.report.rows import make_rows


def runs(result, levels, seeds=(0, 1, 2), **settings):
    return [
        result(mix=mix, seed=seed, level=level, **settings)
        for mix, level in levels.items()
        for seed in seeds
    ]


def test_one_comparison_is_one_sentence_with_winner_gap_and_seeds(result):
    rows = make_rows(runs(result, {"none": 0.6, "remix": 0.7, "gradmix+": 0.9}))
    (sentence,) = headlines(rows)
    gap = rows[2].metric("average_accuracy").mean - rows[1].metric("average_accuracy").mean
    assert sentence.startswith("On MNIST with ER, <strong>gradmix+</strong> has the highest")
    assert f"{gap:.3f} above remix, ahead with all 3 common seeds." in sentence


def test_gradmix_behind_is_said_plainly(result):
    rows = make_rows(runs(result, {"none": 0.7, "remix": 0.9, "gradmix+": 0.5}))
    (sentence,) = headlines(rows)
    gap = rows[1].metric("average_accuracy").mean - rows[2].metric("average_accuracy").mean
    assert "<strong>remix</strong> has the highest" in sentence
    assert f"The best mix by gradients, gradmix+, is {gap:.3f} below the best." in sentence


def test_a_single_seed_proves_nothing(result):
    (sentence,) = headlines(make_rows(runs(result, {"none": 0.6, "gradmix+": 0.9}, seeds=(0,))))
    assert "over 1 seed" in sentence
    assert "too few common seeds to rule out chance" in sentence


def test_seeds_that_disagree_are_counted(result):
    better = [result(mix="gradmix+", seed=s, level=level) for s, level in ((0, 0.95), (1, 0.7))]
    (sentence,) = headlines(make_rows([*better, *runs(result, {"none": 0.78}, (0, 1))]))
    assert "ahead with only 1 of 2 common seeds" in sentence


def test_several_comparisons_begin_with_how_many_gradmix_wins(result):
    wins = runs(result, {"none": 0.6, "gradmix+": 0.9})
    loses = runs(result, {"none": 0.9, "gradmix": 0.6}, method="mir")
    overview, *others = headlines(make_rows([*wins, *loses]))
    assert "<strong>1 of 2 comparisons</strong>" in overview
    assert len(others) == 2


def test_methods_are_compared_where_none_has_two_mixes(result):
    found = [result(mix="none", level=0.6), result(mix="none", level=0.9, method="mir")]
    (sentence,) = headlines(make_rows(found))
    assert sentence.startswith("On MNIST, <strong>MIR</strong> has the highest")


def test_a_row_alone_is_not_called_a_winner(result):
    (sentence,) = headlines(make_rows([result()]))
    assert "there is nothing to compare it with" in sentence
    assert "highest" not in sentence


CONTROL = {"mix": "class-balanced:linear:remix", "alpha": 1.0, "tau": 0.75}


def test_what_gradients_add_is_told_with_the_gain_over_no_mixing(result):
    found = [
        *runs(result, {"none": 0.6, "gradmix+": 0.9}, (0, 1)),
        *(result(seed=seed, level=0.8, **CONTROL) for seed in (0, 1)),
    ]
    (sentence,) = headlines(make_rows(found))
    assert re.search(
        r"What gradients add: <strong>\+0\.\d{3} \[.*?\]</strong>, gradmix\+", sentence
    )
    assert "control, class-balanced:linear:remix" in sentence
    assert "Over no mixing: +0.3" in sentence or "Over no mixing: +0.2" in sentence


def test_a_missing_control_is_told(result):
    (sentence,) = headlines(make_rows(runs(result, {"none": 0.6, "gradmix+": 0.9}, (0, 1))))
    assert "No gradient-free control of gradmix+ was run." in sentence
    (sentence,) = headlines(make_rows(runs(result, {"none": 0.6, "mixup": 0.9}, (0, 1))))
    assert "control" not in sentence


def test_the_comparison_with_a_control_is_not_lost_when_another_row_is_best(result):
    found = [result(seed=s, level=0.8) for s in (0, 1)]
    found += [result(seed=s, level=0.7, **CONTROL) for s in (0, 1)]
    found += [result(seed=s, mix="gradient:cutmix:remix", level=0.9) for s in (0, 1)]
    (sentence,) = headlines(make_rows(found))
    assert "<strong>gradient:cutmix:remix</strong> has the highest" in sentence
    assert "gradmix+ against its best gradient-free control" in sentence


def test_the_overview_counts_what_gradients_add(result):
    found = [
        result(method=method, seed=seed, **{"mix": "gradmix+", "level": 0.8, **settings})
        for method in ("er", "mir")
        for seed in range(3)
        for settings in ({}, {**CONTROL, "level": 0.5 if method == "er" else 0.95})
    ]
    overview, *_ = headlines(make_rows(found))
    assert "Gradients add accuracy in <strong>1 of 2 comparisons</strong>" in overview
    assert "highest average accuracy in <strong>1 of 2 comparisons</strong>" in overview


def test_other_tasks_or_memory_are_not_compared(result):
    rows = make_rows([result(mix="none", increments=[10]), result(), result(lr=0.5)])
    assert all("nothing to compare" in sentence for sentence in headlines(rows))
    rows = make_rows([result(mix="none", lr=0.5), result(), result(lr=0.5)])
    (sentence,) = headlines(rows)
    assert sentence.count("lr 0.5") == 3
    assert "lr 0.01" not in sentence


def test_names_of_users_are_escaped(result):
    sentences = headlines(make_rows([result("folder:<b>"), result("folder:<b>", mix="none")]))
    assert "folder:&lt;b&gt;" in sentences[0]
    assert "<b>" not in sentences[0]
