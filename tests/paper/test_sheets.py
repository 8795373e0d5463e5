"""Tables filled in: ours, the paper's, the difference."""

import sys
from dataclasses import replace

import pytest
from result_cases import example

from gradmix.paper.figures import draw
from gradmix.paper.pages import write_page
from gradmix.paper.reproductions import find_reproduction
from gradmix.paper.sheets import Cell, Sheet, fill, printed

ACCURACIES = {("none", 0): 0.9, ("none", 1): 0.92, ("gradmix+", 0): 0.95, ("mixup", 0): 0.8}


def find(config):
    """A result for some of the runs."""
    value = ACCURACIES.get((config.mix, config.seed))
    if value is None or config.transforms or config.exemplars_per_class == 64:
        return None
    return replace(example(value), config=config.to_json())


def main_er(scale="full"):
    (sheet,) = fill(find_reproduction("main-er"), ["mnist", "digits"], [0, 1], find, scale)
    return sheet


def test_ours_theirs_and_the_difference():
    sheet = main_er()
    assert sheet.rows == ("ER", "ER + Mixup", "ER + gradmix+")
    plain, unknown = sheet.cells[0]
    assert (plain.values, plain.paper.mean, plain.paper.std) == ((0.9, 0.92), 0.896, 0.002)
    assert plain.mean == pytest.approx(0.91)
    assert plain.difference == pytest.approx(0.014)
    assert (unknown.paper, unknown.difference) == (None, None)  # the paper has no digits
    table = printed(sheet)
    assert table.columns == ("ours", "paper", "difference")
    assert [cell.text for cell in table.rows[0][1]] == [
        "0.910 ± 0.014 (2)", "0.896 ± 0.002", "+0.014", "0.910 ± 0.014 (2)", "–", "",
    ]  # fmt: skip
    assert [row[1][0].bold for row in table.rows] == [False, False, True]
    assert "seeds whose number stands in brackets" in table.caption


def test_data_sets_are_called_as_people_write_them():
    assert main_er().columns == ("MNIST", "Digits")
    sheets = fill(find_reproduction("forgetting"), ["mnist"], [0, 1], find)
    assert {sheet.title.partition(": ")[0] for sheet in sheets} == {"MNIST"}


def test_gradmix_plus_stands_beside_the_papers_gradmix():
    assert main_er().cells[2][0].paper.mean == 0.918


def test_the_paper_may_have_a_number_in_another_table():
    def find_mir(config):
        return replace(example(0.5), config=config.to_json()) if config.mix == "none" else None

    (sheet,) = fill(find_reproduction("compatibility"), ["mnist"], [0], find_mir)
    cells = dict(zip(sheet.rows, sheet.cells, strict=True))
    assert cells["MIR"][0].paper.table == "main-mir"
    assert cells["MEMO"][0].paper is None


def test_the_best_is_that_of_rows_with_the_same_setting():
    (sheet,) = fill(find_reproduction("buffer-size"), ["mnist"], [0], find)
    assert set(sheet.rows) == {"ER, N=16", "ER + Mixup, N=16", "ER + gradmix+, N=16"}
    cell = Cell((0.99,))
    more = replace(sheet, rows=(*sheet.rows, "ER, N=64"), cells=(*sheet.cells, (cell,)))
    bold = {labels[0] for labels, cells in printed(more).rows if cells[0].bold}
    assert bold == {"ER + gradmix+, N=16", "ER, N=64"}


def test_nothing_there_is_no_sheet():
    assert fill(find_reproduction("main-er"), ["mnist"], [7], find) == []


def series(rows=2, columns=6, form="lines"):
    return Sheet(
        "mnist: accuracy",
        form,
        "task",
        tuple(f"row {i}" for i in range(rows)),
        tuple(str(i + 1) for i in range(columns)),
        tuple(
            tuple(
                Cell((i + j / 10, i + j / 10)) if (i, j) != (1, 0) else None for j in range(columns)
            )
            for i in range(rows)
        ),
    )


def test_long_series_run_downwards():
    table = printed(series())
    assert (table.groups, len(table.rows)) == (("row 0", "row 1"), 6)
    assert [cell.text for cell in table.rows[1][1]] == ["0.100 ± 0.000", "1.100 ± 0.000"]
    assert table.rows[0][1][1].text == "–"
    across = printed(series(rows=7))
    assert (len(across.groups), len(across.rows)) == (6, 7)
    assert across.rows[0][1][1].text == "0.100"  # no room for the deviation
    assert across.caption.startswith("mnist: accuracy: mean over 2 seeds")


@pytest.mark.parametrize("form", ["lines", "bars", "heatmap"])
def test_pictures_are_the_same_every_time_and_have_their_texts(form):
    sheet = series(6, 6, form) if form == "heatmap" else series(form=form)
    picture = draw(sheet)
    assert picture == draw(sheet)
    assert picture.startswith("<?xml")
    assert sheet.title in picture
    assert all(f">{name}<" in picture for name in (*sheet.columns, *sheet.rows))


def test_a_page_has_tables_and_pictures(tmp_path):
    one = find_reproduction("forgetting")
    page, problem = write_page(one, [series()], tmp_path / "pages")
    assert (page.name, problem) == ("forgetting.md", "")
    text = page.read_text(encoding="utf-8")
    assert "| task | row 0 | row 1 |" in text
    assert "![mnist: accuracy](forgetting-mnist-accuracy.svg)" in text
    assert (tmp_path / "pages" / "forgetting-mnist-accuracy.svg").exists()
    assert "small" not in text


def test_a_small_scale_is_said_everywhere(tmp_path):
    page, _ = write_page(find_reproduction("main-er"), [main_er("small")], tmp_path, "small")
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
