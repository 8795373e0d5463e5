"""Tables: the numbers, and colour only where a difference is more than scatter."""

import re
from dataclasses import replace
from html import escape

import pytest

from gradmix.report import tables
from gradmix.report.data import final_class_accuracy, shown_by_task
from gradmix.report.rows import make_rows
from gradmix.report.tables import (
    runs_table,
    settings_list,
    version_sets,
    versions_table,
)
from gradmix.runs.comparisons import compare_groups, difference_to
from gradmix.runs.groups import show_setting
from gradmix.runs.measures import Summary


def body(html):
    """The texts of the cells, row by row."""
    lines = re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(?:<i[^>]*></i>)?([^<]*)</t", line) for line in lines]


@pytest.mark.parametrize(
    ("paper", "kind"), [(0.80, "above"), (0.99, "below"), (None, "same"), (0.0, "none")]
)
def test_the_difference_to_the_paper_is_coloured(result, monkeypatch, paper, kind):
    rows = make_rows([result(seed=0), result(seed=1)])
    ours = rows[0].metric("average_accuracy")
    mean = ours.mean if paper is None else paper
    value = Summary(mean, 0.001) if kind != "none" else None
    monkeypatch.setattr(tables, "paper_accuracy", lambda config: value)
    html = tables.results_table(rows)
    cells = body(html)[2]
    if kind == "none":
        assert cells[3] == "no control"  # neither paper nor difference
    else:
        assert cells[3] == f"{mean:.3f} ± 0.001"
        assert float(cells[4]) == pytest.approx(ours.mean - mean, abs=5e-4)
        assert f'class="{kind}"' in html


def test_a_single_run_is_given_twice_the_deviation_of_the_paper(result, monkeypatch):
    rows = make_rows([result()])
    mean = rows[0].metric("average_accuracy").mean
    for difference, kind in ((0.019, "same"), (0.021, "above")):
        value = Summary(mean - difference, 0.01)
        monkeypatch.setattr(tables, "paper_accuracy", lambda config, value=value: value)
        assert f'class="{kind}"' in tables.results_table(rows)


def test_the_best_row_of_a_block_is_marked_and_a_row_alone_is_not(result):
    html = tables.results_table(make_rows([result(level=0.9), result(mix="none", level=0.5)]))
    assert re.findall(r'<tr class="best"><th scope="row"><i[^>]*></i>([^<]*)', html) == ["gradmix+"]
    assert "best" not in tables.results_table(make_rows([result()]))


def test_other_predictors_have_a_line_of_their_own(result):
    run = result()
    metrics = dict.fromkeys(run.metrics, 0.125)
    run = replace(run, variants={"student": {"accuracy": run.accuracy, "metrics": metrics}})
    lines = body(tables.results_table(make_rows([run])))
    assert lines[3] == ["its student", "1", "0.125", "–", "–", "–", "0.125", "0.125"]


def test_rows_with_fewer_tasks_leave_cells_empty(result):
    rows = make_rows([result(increments=(5,), tasks=2), result(tasks=5)])
    lines = body(tables.tables_of("", rows, tables.accuracy_by_task))
    assert lines[0] == ["method and mix", "task 1", "task 2", "task 3", "task 4", "task 5"]
    assert sorted(line.count("–") for line in lines[1:]) == [0, 3]


def test_classes_stand_under_their_names_whatever_their_order(result):
    first, second = result(names="abcdefghij"), result(names="jihgfedcba", class_order="seed:1")
    rows = make_rows([first, second])
    head, *lines = body(tables.tables_of("", rows, final_class_accuracy(()), 2))
    assert head == ["method and mix", *"abcdefghij"]
    assert {line[1] for line in lines} == {
        f"{first.class_accuracy[-1][0]:.2f}",
        f"{second.class_accuracy[-1][9]:.2f}",
    }


def test_there_is_a_table_for_every_data_set_marked_with_its_name(some_results):
    rows = make_rows(some_results)
    by_task = shown_by_task(rows)
    reads = (tables.accuracy_by_task, final_class_accuracy(by_task), tables.FORGETTING, tables.cost)
    for read in reads:
        html = tables.tables_of("A title", rows, read)
        assert "A title · MNIST: mean ± standard deviation over 2 seeds" in html
        assert re.findall(r'data-of="([^"]*)"', html) == ["mnist", "fashion-mnist"]


def test_other_accuracies_are_shown_for_the_results_that_have_them(result):
    old, new = result(mix="none"), result(mix="mixup")
    assert tables.tables_of("", make_rows([old]), tables.OTHER_ACCURACIES) == ""
    new.metrics["anytime_accuracy"] = 0.75
    head, line = body(tables.tables_of("", make_rows([old, new]), tables.OTHER_ACCURACIES))
    assert head == ["method and mix", "anytime accuracy"]
    assert line == ["ER + mixup", "0.750"]


def test_cost_has_seconds_the_share_and_the_pairs_excluded(result):
    rows = make_rows([result(), result(mix="none")])
    lines = body(tables.tables_of("Seconds", rows, tables.cost, 1))
    assert lines[1] == ["ER", "8.0", "1.0", "0.5", "10.0", "10.0", "–"]
    assert lines[2][-1] == "25.0"


def test_common_and_differing_settings_together_are_the_whole_configuration(some_results):
    common = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", settings_list(some_results)))
    head = body(runs_table(some_results))[0]
    differing = ["data", "method", "mix", "seed", "validation"]
    assert head[: len(differing)] == differing
    assert {*common, *differing} == set(some_results[0].config)
    for run in some_results:
        assert common == {name: escape(show_setting(run.config[name])) for name in common}


def test_every_run_names_its_versions(result):
    older = replace(result(seed=1), versions={"python": "3.10.1", "numpy": "1.26"})
    runs = [result(seed=0), older, result(seed=2)]
    assert [line[-1] for line in body(runs_table(runs))[1:]] == ["A", "B", "A"]
    assert version_sets(runs) == [runs[0].versions, older.versions]
    head, first, second = body(versions_table(runs))
    assert head == ["set", "python", "gradmix", "torch", "numpy"]
    assert first == ["A", "3.11.7", "0.1.0", "2.13.0", "–"]
    assert second == ["B", "3.10.1", "–", "–", "1.26"]


def test_names_are_escaped(result):
    rows = make_rows([result("folder:<i>", names=["<img src=x>", *"bcdefghij"])])
    html = tables.results_table(rows) + tables.tables_of("", rows, final_class_accuracy(()))
    assert "<img" not in html
    assert "folder:&lt;i&gt;" in html


def test_only_common_seeds_are_paired_and_the_settings_are_the_same(result):
    ours = [result(seed=s, lr=0.1) for s in (0, 1)]
    plain = [result(mix="none", seed=s, lr=0.1) for s in (1, 2)]
    rows = make_rows([*ours, *plain, result(mix="none", seed=1, lr=0.01)])
    row = next(row for row in rows if row.mixes)
    base = next(row for row in rows if not row.mixes and row.config["lr"] == 0.1)
    found = difference_to(row, rows, "average_accuracy", "none")
    assert found == compare_groups(row, base)
    expected = ours[1].metrics["average_accuracy"] - plain[0].metrics["average_accuracy"]
    assert (found.seeds, found.mean) == ((1,), pytest.approx(expected))
    assert difference_to(base, rows, "average_accuracy", "none").seeds == ()


def test_what_gradients_add_has_a_column(result):
    control = {"mix": "shuffle:linear:remix", "tau": 0.75, "level": 0.7}
    found = [result(seed=s, **kind) for s in (0, 1) for kind in ({"mix": "gradmix+"}, control)]
    head, _, *lines = body(tables.results_table(make_rows(found)))
    place = head.index("what gradients add")
    assert [line[place] == "–" for line in lines] == [False, True]
    assert lines[0][place].startswith("+0.")


def test_different_processors_are_noted(result):
    found = [replace(result(seed=s), versions={"cpu_capability": c}) for s, c in enumerate("AB")]
    assert "different capabilities (A, B)" in tables.results_table(make_rows(found))


def test_what_was_measured_along_the_runs(result):
    plain, measured = result(mix="none"), result(mix="mixup")
    entries = [
        {"task": 1, "epoch": 1, "whole_network": 0.2, "last_layer": 0.4},
        {"task": 1, "epoch": 2, "whole_network": 0.4, "last_layer": 0.4},
        {"task": 2, "epoch": 1, "whole_network": 0.5, "last_layer": 0.4},
    ]
    measured = replace(measured, analysis={"detrimental-rate": entries})
    html = tables.tables_of("", make_rows([plain, measured]), tables.DIAGNOSTICS)
    head, cells = body(html)
    assert head[1:] == ["detrimental mixes, whole network", "last layer"]
    assert cells[1:] == ["0.400", "0.400"]
    assert tables.tables_of("", make_rows([plain]), tables.DIAGNOSTICS) == ""
