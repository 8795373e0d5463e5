"""The sentences say what the numbers say, also when it is not what one would like."""

import pytest

from gradmix.report.headline import gain_over_plain, headlines, paired
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
    assert f"{gap:.3f} above remix, ahead with each of 3 common seeds." in sentence


def test_gradmix_behind_is_said_plainly(result):
    rows = make_rows(runs(result, {"none": 0.7, "remix": 0.9, "gradmix+": 0.5}))
    (sentence,) = headlines(rows)
    gap = rows[1].metric("average_accuracy").mean - rows[2].metric("average_accuracy").mean
    assert "<strong>remix</strong> has the highest" in sentence
    assert f"those that mix by gradients, gradmix+, is {gap:.3f} below it." in sentence


def test_a_single_seed_proves_nothing(result):
    (sentence,) = headlines(make_rows(runs(result, {"none": 0.6, "gradmix+": 0.9}, seeds=(0,))))
    assert "over 1 seed" in sentence
    assert "too few common seeds to tell it from chance" in sentence


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


def test_only_common_seeds_are_paired(result):
    ours, theirs = [result(seed=s) for s in (0, 1)], [result(mix="none", seed=s) for s in (1, 2)]
    plain, row = make_rows([*ours, *theirs])
    expected = ours[1].metrics["average_accuracy"] - theirs[0].metrics["average_accuracy"]
    assert paired(row, plain) == [pytest.approx(expected)]


def test_the_gain_over_no_mixing_is_that_of_the_same_settings(result):
    rows = make_rows([result(lr=0.1), result(mix="none", lr=0.01), result(mix="none", lr=0.1)])
    plain = next(row for row in rows if not row.mixes and row.config["lr"] == 0.1)
    row = next(row for row in rows if row.mixes)
    assert gain_over_plain(row, rows) == (pytest.approx(paired(row, plain)[0]), None)
    assert gain_over_plain(plain, rows) is None


def test_other_tasks_or_memory_are_not_compared(result):
    rows = make_rows([result(mix="none", increments=[10]), result(), result(lr=0.5)])
    assert all("nothing to compare" in sentence for sentence in headlines(rows))
    rows = make_rows([result(mix="none", lr=0.5), result(), result(lr=0.5)])
    (sentence,) = headlines(rows)
    assert sentence.count("lr 0.5") == 2
    assert "lr 0.01" not in sentence


def test_names_of_users_are_escaped(result):
    sentences = headlines(make_rows([result("folder:<b>"), result("folder:<b>", mix="none")]))
    assert "folder:&lt;b&gt;" in sentences[0]
    assert "<b>" not in sentences[0]
