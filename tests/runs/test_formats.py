"""Tables as text, letter by letter."""

import pytest
from result_cases import example

from gradmix.runs.formats import (
    Cell,
    Table,
    layout,
    one_by_one,
    probability,
    run_records,
    runs_table,
    to_csv,
    to_latex,
    to_markdown,
)
from gradmix.runs.tables import group_results, summaries

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}


def results():
    """Two mixes on two data sets; the second lacks mixup."""
    settings = [("digits", "none", NONE), ("digits", "mixup", MIXUP), ("mnist", "none", NONE)]
    return [
        example(value, data=data, mix=mix, seed=seed)
        for data, mix, values in settings
        for seed, value in values.items()
    ]


def test_the_layout_has_a_column_for_each_data_set():
    table = layout(group_results(results()))
    assert table.heads == ("method", "mix")
    assert table.titles == ["digits", "mnist"]
    assert table.rows == (
        (("er", "none"), (Cell("0.820 ± 0.020"), Cell("0.820 ± 0.020"))),
        (("er", "mixup"), (Cell("0.870 ± 0.020", bold=True), Cell("–"))),
    )
    assert table.caption.startswith("average accuracy: mean ± standard deviation over 3 seeds")


def test_numbers_of_seeds_that_differ_stand_in_the_cells():
    table = layout(group_results(results()[1:]))
    assert table.rows[0][1][0].text == "0.830 ± 0.014 (2)"
    assert "brackets" in table.caption
    single = layout(group_results(results()[:1]))
    assert single.rows[0][1][0].text == "0.800"
    assert "of a single seed" in single.caption


def test_any_setting_may_have_the_columns():
    table = layout(group_results(results()), across="mix")
    assert (table.heads, table.titles) == (("data", "method"), ["none", "mixup"])
    assert layout(group_results(results()), across="seed").titles == ["average accuracy"]


MARKDOWN = """\
| method | mix | digits average accuracy | digits Δ none | digits p |
|---|---|---:|---:|---:|
| er | none | 0.820 ± 0.020 |  |  |
| er | mixup | **0.870 ± 0.020** | +0.050 ± 0.020 | 0.049 |

Average accuracy: mean ± standard deviation over 3 seeds; the best in bold; Δ is the difference to \
none over common seeds, p of a paired t-test.
"""


def test_markdown():
    assert to_markdown(layout(group_results(results()[:6]), against="none")) == MARKDOWN


LATEX = r"""% forgetting from best: mean ± standard deviation over 3 seeds; the best in bold
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


def test_latex():
    metrics = ("average_accuracy", "forgetting_from_best")
    assert to_latex(layout(group_results(results()), metrics[1:])) == LATEX
    assert LATEX_HEADS in to_latex(layout(group_results(results()), metrics))


def test_latex_escapes_what_it_would_take_for_commands():
    groups = group_results([example(data="folder:a_b%c", seed=s, mix="none") for s in (0, 1)])
    assert "folder:a\\_b\\%c" in to_latex(layout(groups))
    worse = layout(group_results(results()[:6]), against="mixup")
    assert "$-$0.050 $\\pm$ 0.020" in to_latex(worse)


def test_markdown_escapes_bars():
    groups = group_results([example(data="folder:a|b", seed=0)])
    assert "folder:a\\|b" in to_markdown(layout(groups))


CSV = """\
data,method,mix,metric,runs,seeds,mean,std,best,against,common_seeds,difference,difference_std,p_value,note
digits,er,none,average_accuracy,1,0,0.75,,False,mixup,1,-0.125,,,one common seed
digits,er,mixup,average_accuracy,1,0,0.875,,True,mixup,0,,,,
"""


def test_csv():
    pair = [example(0.75, mix="none"), example(0.875, mix="mixup")]
    assert to_csv(summaries(group_results(pair), against="mixup")) == CSV


def test_csv_of_runs_has_every_setting_metric_and_time():
    text = to_csv(run_records([example(0.5, increments=(5, 5), seed=3, method="der")]))
    names, values = (line.split(",") for line in text.splitlines())
    record = dict(zip(names, values, strict=True))
    assert (record["data"], record["seed"], record["increments"]) == ("digits", "3", "5 5")
    assert (record["average_accuracy"], record["seconds_total"]) == ("0.5", "1.0")
    assert (record["memory_total"], record["options"]) == ("", "none")
    assert record["protocol_version"] == "1"


def test_a_table_of_runs_shows_what_differs():
    runs = [example(0.5, epochs=1, seed=1), example(0.25, epochs=2)]
    table = runs_table(runs, ["average_accuracy"])
    assert table.heads == ("data", "method", "mix", "epochs", "seed")
    assert table.titles == ["average accuracy", "seconds"]
    assert table.rows[0] == (("digits", "er", "gradmix+", "1", "1"), (Cell("0.500"), Cell("1.0")))


@pytest.mark.parametrize(("p", "text"), [(0.0494, "0.049"), (0.0009, "<0.001"), (0.001, "0.001")])
def test_probabilities(p, text):
    assert probability(p) == text


def test_groups_one_by_one():
    cells = tuple(Cell(text) for text in "abcd")
    table = Table(("row",), ("one", "two"), ("x", "y"), ((("r",), cells),), "caption")
    one, two = one_by_one(table)
    assert (one.titles, one.rows) == (["one x", "one y"], ((("r",), cells[:2]),))
    assert (two.titles, two.rows) == (["two x", "two y"], ((("r",), cells[2:]),))
    assert one_by_one(one) == [one]
