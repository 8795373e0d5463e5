"""Classes one by one where they fit, by task where they do not."""

import numpy as np

from gradmix.report import data as classes
from gradmix.report.data import class_accuracy, class_axis, pair_counts, shown_by_task
from gradmix.report.rows import make_rows


def test_pair_counts_are_summed_over_seeds_for_the_classes_seen(result):
    runs = [result(seed=0), result(seed=1)]
    (row,) = make_rows(runs)
    counts = pair_counts(row, class_axis(runs[0], ()))
    assert [len(square) for square in counts] == [4, 16, 36, 64, 100]
    total = np.add(*(np.array(run.pair_counts) for run in runs))
    assert counts[1] == total[1, :4, :4].ravel().tolist()


def test_pair_counts_by_task_lose_nothing(result):
    (row,) = make_rows([result()])
    by_class = pair_counts(row, class_axis(row.results[0], ()))
    by_task = pair_counts(row, class_axis(row.results[0], ["mnist"]))
    assert [len(square) for square in by_task] == [1, 4, 9, 16, 25]
    assert [sum(square) for square in by_task] == [sum(square) for square in by_class]
    corner = np.array(row.results[0].pair_counts)[4, 2:4, 8:10]
    assert by_task[4][1 * 5 + 4] == corner.sum()


def test_a_row_that_never_mixed_has_no_pair_counts(result):
    (row,) = make_rows([result(mix="none")])
    assert pair_counts(row, class_axis(row.results[0], ())) is None


def test_accuracy_is_that_of_classes_or_tasks_learned_so_far(result):
    (row,) = make_rows([result()])
    run = row.results[0]
    by_class = class_accuracy(row, class_axis(run, ()))
    by_task = class_accuracy(row, class_axis(run, ["mnist"]))
    assert [value.mean for value in by_class[0]] == run.class_accuracy[0][:2]
    assert [value.mean for value in by_task[2]] == run.accuracy[2][:3]


def test_many_classes_are_shown_by_task(result):
    rows = make_rows([result("cifar-100", classes=100, tasks=10), result("mnist")])
    assert shown_by_task(rows) == set()
    rows = make_rows([result("tiny-imagenet", classes=200, tasks=10), result("mnist")])
    assert shown_by_task(rows) == {"tiny-imagenet"}


def test_where_all_heatmaps_are_too_much_the_largest_data_set_gives_way(result, monkeypatch):
    rows = make_rows([result("cifar-100", classes=100, tasks=10), result("mnist")])
    monkeypatch.setattr(classes, "MAX_CELLS", 1000)
    assert shown_by_task(rows) == {"cifar-100"}
    monkeypatch.setattr(classes, "MAX_CELLS", 100)
    assert shown_by_task(rows) == {"cifar-100", "mnist"}
