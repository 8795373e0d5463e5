"""Filled tables: our numbers, the paper's and the difference."""

import sys
from dataclasses import replace

import pytest

from gradmix.paper.pages import draw, write_page
from gradmix.paper.reproductions import find_reproduction
from gradmix.paper.tables import fill_tables, printable
from gradmix.runs.comparisons import Cell
from gradmix.runs.measures import summarize
from gradmix.runs.tables import Table

ACCURACIES = {("none", 0): 0.9, ("none", 1): 0.92, ("gradmix+", 0): 0.95, ("mixup", 0): 0.8}


@pytest.fixture(scope="session")
def find(example):
    def find(config):
        """A result for some of the runs."""
        value = ACCURACIES.get((config.mix, config.seed))
        if value is None or config.transforms or config.exemplars_per_class == 64:
            return None
        return replace(example(value), config=config.to_json())

    return find


@pytest.fixture(scope="session")
def main_er(find):
    def main_er(scale="full"):
        return fill_one("main-er", ["mnist", "digits"], [0, 1], find, scale)

    return main_er


def fill_one(name, data, seeds, find, scale="full"):
    (filled,) = fill_tables(find_reproduction(name, scale), data, seeds, find)
    return filled


def labels(filled):
    return tuple(label for (label,), _ in filled.rows)


MEASURED = ("approximation-error", "class-distance", "detrimental-rate", "precision-recall")


@pytest.mark.parametrize("name", [*MEASURED, "runtime-per-epoch"])
def test_runs_that_lack_the_numbers_make_no_table(example, name):
    """A run of one task has no memory to measure with; older files lack times by task."""

    def find(config):
        return replace(example(), analysis={name: [] for name in config.analyses})

    assert fill_tables(find_reproduction(name), ["digits"], [0], find) == []


def test_ours_theirs_and_the_difference(main_er):
    filled = main_er()
    assert labels(filled) == ("ER", "ER + Mixup", "ER + gradmix+")
    plain, unknown = filled.rows[0][1]
    assert plain.value == summarize([0.9, 0.92])
    assert (plain.reference.mean, plain.reference.std) == (0.896, 0.002)
    assert unknown.reference is None  # the paper has no digits
    table = printable(filled).text()
    assert table.columns == ("ours", "paper", "difference", "what gradients add")
    assert [cell.text for cell in table.rows[0][1]] == [
        "0.910 ± 0.014 (2)", "0.896 ± 0.002", "+0.014", "", "0.910 ± 0.014 (2)", "–", "", "",
    ]  # fmt: skip
    assert [row[1][0].bold for row in table.rows] == [False, False, True]
    assert "over seeds (their number in brackets)" in table.caption


def test_data_sets_have_their_display_names(find, main_er):
    assert main_er().groups == ("MNIST", "Digits")
    tables = fill_tables(find_reproduction("forgetting"), ["mnist"], [0, 1], find)
    assert {filled.title.partition(": ")[0] for filled in tables} == {"MNIST"}


def test_gradmix_plus_is_compared_with_the_papers_gradmix(main_er):
    assert main_er().rows[2][1][0].reference.mean == 0.918


def test_the_paper_may_have_a_number_in_another_table(example):
    def find_mir(config):
        return replace(example(0.5), config=config.to_json()) if config.mix == "none" else None

    filled = fill_one("compatibility", ["mnist"], [0], find_mir)
    cells = {label: cells for (label,), cells in filled.rows}
    assert cells["MIR"][0].reference.mean == 0.9  # of main-mir
    assert cells["MEMO"][0].reference is None


def test_the_best_row_is_chosen_among_rows_with_the_same_setting(example, find):
    def find_sizes(config):
        more = config.exemplars_per_class == 64 and config.mix == "none" and not config.transforms
        return find(config) or (replace(example(0.99), config=config.to_json()) if more else None)

    filled = fill_one("buffer-size", ["mnist"], [0], find_sizes)
    assert labels(filled) == (
        *("ER, exemplars 16", "ER + Mixup, exemplars 16", "ER + gradmix+, exemplars 16"),
        "ER, exemplars 64",
    )
    bold = {label for (label,), cells in filled.rows if cells[0].best}
    assert bold == {"ER + gradmix+, exemplars 16"}  # nothing competes with ER, exemplars 64


def test_without_results_there_is_no_table(find):
    for name in ("main-er", "forgetting", "heatmap"):
        assert fill_tables(find_reproduction(name), ["mnist"], [7], find) == []


def test_controls_of_gradient_mixes_are_found_and_compared(example, find):
    def find_control(config):
        balanced = config.mix == "balanced-remix"
        return replace(example(0.9), config=config.to_json()) if balanced else find(config)

    filled = fill_one("main-er", ["mnist"], [0], find_control)
    added = {label: cells[0].gradients for (label,), cells in filled.rows}
    assert added["ER + gradmix+"].mean == pytest.approx(0.05)
    assert added["ER + gradmix+"].base == "balanced-remix"
    assert added["ER + balanced control of gradmix+"] is None
    assert [label for label, add in added.items() if add] == ["ER + gradmix+"]
    assert printable(filled).text().columns[-1] == "what gradients add"


def series(rows=2, columns=6, chart="lines"):
    cells = {(i, j): Cell(summarize([i + j / 10] * 2)) for i in range(rows) for j in range(columns)}
    cells[1, 0] = Cell()
    return Table(
        ("task",),
        tuple(str(i + 1) for i in range(columns)),
        ("",),
        tuple(((f"row {i}",), tuple(cells[i, j] for j in range(columns))) for i in range(rows)),
        "mnist: accuracy",
        chart=chart,
    )


def test_long_series_run_downwards():
    table = printable(series()).text()
    assert (table.groups, len(table.rows)) == (("row 0", "row 1"), 6)
    assert [cell.text for cell in table.rows[1][1]] == ["0.100 ± 0.000", "1.100 ± 0.000"]
    assert table.rows[0][1][1].text == "–"
    across = printable(series(rows=7)).text()
    assert (len(across.groups), len(across.rows)) == (6, 7)
    assert across.rows[0][1][1].text == "0.100"  # no room for the deviation
    assert across.caption.startswith("mnist: accuracy: mean over 2 seeds")


@pytest.mark.parametrize("chart", ["lines", "bars", "heatmap"])
def test_pictures_are_the_same_every_time_and_have_their_texts(chart):
    filled = series(6, 6, chart) if chart == "heatmap" else series(chart=chart)
    picture = draw(filled)
    assert picture == draw(filled)
    assert picture.startswith("<?xml")
    assert filled.title in picture
    assert all(f">{name}<" in picture for name in (*filled.groups, *labels(filled)))


def test_a_page_has_tables_and_pictures(tmp_path):
    one = find_reproduction("forgetting")
    page, problem = write_page(one, [series()], tmp_path / "pages")
    assert (page.name, problem) == ("forgetting.md", "")
    text = page.read_text(encoding="utf-8")
    assert "| task | row 0 | row 1 |" in text
    assert "![mnist: accuracy](forgetting-mnist-accuracy.svg)" in text
    assert (tmp_path / "pages" / "forgetting-mnist-accuracy.svg").exists()
    assert "small" not in text


def test_a_small_scale_is_said_everywhere(tmp_path, main_er):
    page, _ = write_page(find_reproduction("main-er", "small"), [main_er("small")], tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.name == "main-er-small.md"
    assert text.startswith("# main-er (small scale)")
    assert "not the paper's setting" in text


def test_without_matplotlib_there_are_tables_and_a_word(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page, problem = write_page(find_reproduction("forgetting"), [series()], tmp_path)
    assert "pip install 'gradmix[figures]'" in problem
    assert "| task | row 0 | row 1 |" in page.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["forgetting.md"]
