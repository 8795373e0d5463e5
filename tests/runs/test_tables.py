"""Tables and their text, compared exactly."""

from dataclasses import replace

import pytest

from gradmix.errors import UnknownNameError
from gradmix.runs.comparisons import Cell
from gradmix.runs.groups import group_results
from gradmix.runs.measures import Summary
from gradmix.runs.tables import (
    TextCell,
    TextTable,
    comparison_table,
    group_records,
    run_records,
    runs_table,
    to_csv,
    to_latex,
    to_markdown,
)

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}


@pytest.fixture(scope="session")
def results(example):
    def results():
        """Two mixes on two data sets; the second lacks mixup."""
        settings = [("digits", "none", NONE), ("digits", "mixup", MIXUP), ("mnist", "none", NONE)]
        return [
            example(value, data=data, mix=mix, seed=seed)
            for data, mix, values in settings
            for seed, value in values.items()
        ]

    return results


def layout(*args, **settings):
    return comparison_table(*args, **settings).text()


def test_the_cells_have_numbers(results):
    table = comparison_table(group_results(results()))
    (_, plain), (_, mixup) = table.rows
    assert plain[0].value == Summary(pytest.approx(0.82), pytest.approx(0.02), 3)
    assert (mixup[0].best, mixup[1]) == (True, Cell())
    assert table.seed_counts == {3}


def test_the_layout_has_a_column_for_each_data_set(results):
    table = layout(group_results(results()))
    assert table.heads == ("method", "mix")
    assert table.titles == ["digits", "mnist"]
    assert table.rows == (
        (("er", "none"), (TextCell("0.820 ± 0.020"), TextCell("0.820 ± 0.020"))),
        (("er", "mixup"), (TextCell("0.870 ± 0.020", bold=True), TextCell("–"))),
    )
    assert table.caption.startswith("average accuracy: mean ± standard deviation over 3 seeds")


def test_numbers_of_seeds_that_differ_stand_in_the_cells(results):
    table = layout(group_results(results()[1:]))
    assert table.rows[0][1][0].text == "0.830 ± 0.014 (2)"
    assert "over seeds (their number in brackets)" in table.caption
    single = layout(group_results(results()[:1]))
    assert single.rows[0][1][0].text == "0.800"
    assert "of one seed" in single.caption


def test_any_setting_may_have_the_columns(results):
    table = layout(group_results(results()), across="mix")
    assert (table.heads, table.titles) == (("data", "method"), ["none", "mixup"])
    assert layout(group_results(results()), across="seed").titles == ["average accuracy"]


MARKDOWN = """\
| method | mix | digits average accuracy | digits Δ none | digits p |
|---|---|---:|---:|---:|
| er | none | 0.820 ± 0.020 |  |  |
| er | mixup | **0.870 ± 0.020** | +0.050 ± 0.020 | 0.049 |

Average accuracy: mean ± standard deviation over 3 seeds; best in bold; Δ none: paired \
difference over common seeds; p: paired t-test.
"""


def test_markdown(results):
    assert to_markdown(layout(group_results(results()[:6]), against="none")) == MARKDOWN


LATEX = r"""% forgetting from best: mean ± standard deviation over 3 seeds; best in bold
\begin{tabular}{llrr}
\toprule
method & mix & digits & mnist \\
\midrule
er & none & \textbf{0.082 $\pm$ 0.002} & 0.082 $\pm$ 0.002 \\
er & mixup & 0.087 $\pm$ 0.002 & -- \\
\bottomrule
\end{tabular}
"""

LATEX_HEADS = r"""
 &  & \multicolumn{2}{c}{digits} & \multicolumn{2}{c}{mnist} \\
method & mix & average accuracy & forgetting from best & average accuracy & forgetting from best \\
"""


def test_latex(results):
    metrics = ("average_accuracy", "forgetting_from_best")
    assert to_latex(layout(group_results(results()), metrics[1:])) == LATEX
    assert LATEX_HEADS in to_latex(layout(group_results(results()), metrics))


def test_latex_escapes_what_it_would_take_for_commands(example, results):
    groups = group_results([example(data="folder:a_b%c", seed=s, mix="none") for s in (0, 1)])
    assert "folder:a\\_b\\%c" in to_latex(layout(groups))
    worse = layout(group_results(results()[:6]), against="mixup")
    assert "$-$0.050 $\\pm$ 0.020" in to_latex(worse)


def test_markdown_escapes_bars(example):
    groups = group_results([example(data="folder:a|b", seed=0)])
    assert "folder:a\\|b" in to_markdown(layout(groups))


CSV = """\
data,method,mix,metric,runs,seeds,mean,std,best,against,common_seeds,difference,difference_std,p_value,note
digits,er,none,average_accuracy,1,0,0.75,,False,mixup,1,-0.125,,,one common seed
digits,er,mixup,average_accuracy,1,0,0.875,,True,mixup,0,,,,
"""


def test_csv(example):
    pair = [example(0.75, mix="none"), example(0.875, mix="mixup")]
    assert to_csv(group_records(group_results(pair), against="mixup")) == CSV


def test_csv_of_runs_has_every_setting_metric_and_time(example):
    text = to_csv(run_records([example(0.5, increments=(5, 5), seed=3, method="der")]))
    names, values = (line.split(",") for line in text.splitlines())
    record = dict(zip(names, values, strict=True))
    assert (record["data"], record["seed"], record["increments"]) == ("digits", "3", "5 5")
    assert (record["average_accuracy"], record["seconds_total"]) == ("0.5", "1.0")
    assert (record["memory_total"], record["options"]) == ("", "none")
    assert record["protocol_version"] == "1"


def test_a_table_of_runs_shows_what_differs(example):
    runs = [example(0.5, epochs=1, seed=1), example(0.25, epochs=2)]
    table = runs_table(runs, ["average_accuracy"])
    assert table.heads == ("data", "method", "mix", "epochs", "seed")
    assert table.titles == ["average accuracy", "seconds"]
    assert table.rows[0] == (
        ("digits", "er", "balanced-remix", "1", "1"),
        (TextCell("0.500"), TextCell("1.0")),
    )


def test_column_groups_can_be_split():
    cells = tuple(TextCell(text) for text in "abcd")
    table = TextTable(("row",), ("one", "two"), ("x", "y"), ((("r",), cells),), "caption")
    one, two = table.split()
    assert (one.titles, one.rows) == (["one x", "one y"], ((("r",), cells[:2]),))
    assert (two.titles, two.rows) == (["two x", "two y"], ((("r",), cells[2:]),))
    assert one.split() == [one]


def test_records_are_plain_values(results):
    base, record = group_records(group_results(results()[:6]), against="none")
    assert record["seeds"] == [0, 1, 2]
    assert (record["mix"], record["metric"], record["runs"]) == ("mixup", "average_accuracy", 3)
    assert [record["mean"], record["std"]] == pytest.approx([0.87, 0.02])
    assert (record["best"], base["best"]) == (True, False)
    assert [record["difference"], record["difference_std"]] == pytest.approx([0.05, 0.02])
    assert record["common_seeds"] == 3
    assert (base["difference"], base["p_value"], base["note"]) == (None, None, "")
    (lonely,) = group_records(group_results(results()[:3]), against="remix")
    assert lonely["note"] == "no runs of remix to compare with"


@pytest.fixture(scope="session")
def with_control(example):
    def with_control():
        control = {"mix": "class-balanced:linear:remix", "alpha": 1.0, "tau": 0.75}
        ours = [
            example(value, mix="gradmix+", tau=0.75, seed=seed) for seed, value in MIXUP.items()
        ]
        return group_results([*ours, *(example(v, seed=s, **control) for s, v in NONE.items())])

    return with_control


def test_what_gradients_add_has_a_column_and_a_record(with_control):
    table = layout(with_control())
    assert table.columns == ("average accuracy", "what gradients add")
    assert [cells[1].text for _, cells in table.rows] == ["+0.050 [+0.000, +0.100]", ""]
    assert "that was run (class-balanced:linear:remix)" in table.caption
    ours, control = group_records(with_control())
    assert ours["gradients_add"] == pytest.approx(0.05)
    assert "gradients_add" not in control


def test_different_processors_are_noted_in_the_caption(results):
    runs = [
        replace(result, versions={"cpu_capability": "AB"[place % 2]})
        for place, result in enumerate(results())
    ]
    for table in (layout(group_results(runs)), runs_table(runs, ["average_accuracy"])):
        assert "CPUs with different capabilities (A, B)" in table.caption


def test_a_metric_that_only_some_results_have(results):
    first, *others = results()[:4]
    runs = [replace(first, metrics={}), *others]
    assert layout(group_results(runs)).rows[0][1][0].text == "0.830 ± 0.014 (2)"
    assert runs_table(runs, ["average_accuracy"]).rows[0][1][0].text == "–"
    for make in (layout, group_records):
        with pytest.raises(UnknownNameError, match="did you mean 'final_accuracy'"):
            make(group_results(runs), ("accuracy",))
    nothing = [replace(run, metrics={}) for run in runs[:3]] + others[2:]
    assert layout(group_results(nothing)).rows[0][1][0].text == "–"
