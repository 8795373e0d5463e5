"""The page in a real browser: it draws, it answers, it is quiet, and it asks nobody anything."""

import csv
import io
import time
from contextlib import contextmanager

import pytest

from gradmix.report import write_report

CHARTS = ("accuracy", "classes", "forgetting", "task", "pairs", "cost")


@contextmanager
def opened(browser, path, **options):
    """A page, ready; afterwards it must have reported no error and asked for nothing else."""
    trouble, requests = [], []
    with browser.new_context(**options) as context:
        context.set_default_timeout(120_000)  # ms; a busy machine takes its time
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda line: trouble.append(line.text) if line.type != "log" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        yield page
    assert trouble == []
    assert [url for url in requests if not url.startswith("blob:")] == [path.as_uri()]


@pytest.fixture(scope="module")
def report(some_results, tmp_path_factory):
    return write_report(some_results, tmp_path_factory.mktemp("report") / "report.html")


def count(page, selector):
    return page.locator(selector).count()


def text(page, selector):
    return page.locator(selector).inner_text()


def point_at(page, place):
    """Move the pointer to the middle of something, whatever lies above it."""
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def download(page, name):
    with page.expect_download() as found:
        page.locator(f"[data-download={name}]").click()
    with open(found.value.path(), encoding="utf-8", newline="") as file:
        return found.value.suggested_filename, list(csv.DictReader(io.StringIO(file.read())))


def test_every_chart_is_drawn_with_a_mark_for_every_value(browser, report):
    with opened(browser, report) as page:
        for chart in CHARTS:
            box = page.locator(f"#chart-{chart} > svg").bounding_box()
            assert min(box["width"], box["height"]) > 100
        # six rows of MNIST: lines, bands, and a dot for each of five tasks
        assert count(page, "#chart-accuracy [data-mark=line] path") == 6
        assert count(page, "#chart-accuracy [data-mark=area] path") == 6
        assert count(page, "#chart-accuracy [data-mark=dot] > *") == 6 * 5
        assert count(page, "#chart-classes [data-mark=dot] > *") == 6 * 10
        assert count(page, "#chart-forgetting [data-mark=bar] rect") == 6
        assert count(page, "#chart-cost [data-mark=bar] rect") == 6
        assert count(page, "#chart-pairs [data-mark=cell] rect") == 100
        assert "class 9" in text(page, "#chart-pairs")


def test_the_slider_of_the_heatmap_moves_by_keyboard(browser, report):
    with opened(browser, report) as page:
        slider = page.locator("#pair-task")
        slider.focus()
        assert "task 5 of 5 (class 8, class 9)" in text(page, "#chart-pairs figcaption")
        before = page.locator("#chart-pairs [data-mark=text]").inner_html()
        slider.press("ArrowLeft")
        assert "task 4 of 5 (class 6, class 7)" in text(page, "#chart-pairs figcaption")
        assert slider.get_attribute("aria-valuetext") == "4 of 5 (class 6, class 7)"
        assert count(page, "#chart-pairs [data-mark=cell] rect") == 64
        assert page.locator("#chart-pairs [data-mark=text]").inner_html() != before
        slider.press("Home")
        assert count(page, "#chart-pairs [data-mark=cell] rect") == 4


def test_values_appear_under_the_pointer_and_by_arrow_keys(browser, report, some_results):
    run = [
        r
        for r in some_results
        if (r.config["data"], r.config["method"], r.config["mix"]) == ("mnist", "er", "gradmix+")
    ]
    counts = [[sum(r.pair_counts[-1][a][b] for r in run) for b in range(10)] for a in range(10)]
    with opened(browser, report) as page:
        page.select_option("#pair-row", label="ER + gradmix+")
        point_at(page, page.locator("#chart-pairs [data-mark=cell] rect").nth(2 * 10 + 3))
        share = 100 * counts[2][3] / sum(counts[2])
        expected = f"class 2 mixed with class 3 · {share:.1f} % of class 2"
        assert text(page, "#pair-value").startswith(expected)
        tip = page.locator("#chart-pairs [aria-label=tip]").text_content()
        assert f"{counts[2][3]:,} times" in tip
        chart = page.locator("#chart-pairs > svg")
        chart.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            chart.press(key)
        assert text(page, "#pair-value").startswith("class 1 mixed with class 2")
        page.select_option("#pair-measure", "chance")
        assert count(page, "#chart-pairs [data-mark=cell] rect") == 100


def test_lines_tell_their_values_under_the_pointer(browser, report):
    with opened(browser, report) as page:
        point_at(page, page.locator("#chart-accuracy [data-mark=dot] > *").nth(2))
        tip = page.locator("#chart-accuracy [aria-label=tip]").text_content()
        assert "After task 3 (class 4, class 5)" in tip
        assert "ER + gradmix+" in tip


def test_classes_after_an_earlier_task_are_fewer(browser, report):
    with opened(browser, report) as page:
        page.locator("#class-task").focus()
        page.keyboard.press("Home")
        assert count(page, "#chart-classes [data-mark=dot] > *") == 6 * 2
        assert "after task 1 of 5" in text(page, "#chart-classes figcaption")


def test_rows_methods_and_data_sets_are_chosen_by_keyboard(browser, report):
    with opened(browser, report) as page:
        page.get_by_role("checkbox", name="ER + remix", exact=True).press("Space")
        assert count(page, "#chart-accuracy [data-mark=line] path") == 5
        page.get_by_role("checkbox", name="MIR", exact=True).first.press("Space")
        assert count(page, "#chart-accuracy [data-mark=line] path") == 2
        assert page.locator("#accuracy [data-of=fashion-mnist]").get_attribute("hidden") == ""
        page.get_by_role("radio", name="MNIST", exact=True).press("ArrowRight")
        assert text(page, "#chart-accuracy figcaption").startswith("Fashion-MNIST")
        assert count(page, "#chart-accuracy [data-mark=line] path") == 6
        assert page.locator("#accuracy [data-of=fashion-mnist]").get_attribute("hidden") is None


def test_the_heatmap_as_a_table_follows_the_slider(browser, report):
    with opened(browser, report) as page:
        page.locator("#pair-details summary").press("Enter")
        page.wait_for_selector("#pair-table td")
        assert count(page, "#pair-table td") == 100
        page.locator("#pair-task").press("ArrowLeft")
        assert count(page, "#pair-table td") == 64


def test_downloads_have_every_number(browser, report, some_results):
    with opened(browser, report) as page:
        name, runs = download(page, "runs")
        assert name == "gradmix-runs.csv"
        assert len(runs) == len(some_results)
        for run in some_results:
            key = {k: str(run.config[k]) for k in ("data", "method", "mix", "seed")}
            (found,) = [line for line in runs if key.items() <= line.items()]
            assert float(found["metrics.final_accuracy"]) == run.metrics["final_accuracy"]
            assert found["increments"] == "[2]"
            assert found["versions.torch"] == "2.13.0"
        assert len(download(page, "results")[1]) == 12
        assert len(download(page, "accuracy")[1]) == len(some_results) * 15
        assert len(download(page, "classes")[1]) == 12 * (2 + 4 + 6 + 8 + 10)
        assert len(download(page, "pairs")[1]) == 8 * (4 + 16 + 36 + 64 + 100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling(browser, report, scheme):
    size = {"width": 360, "height": 740}
    with opened(browser, report, viewport=size, color_scheme=scheme, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        box = page.locator("#results .scroll")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        for chart in CHARTS:
            assert page.locator(f"#chart-{chart} > svg").bounding_box()["width"] <= 360
        point_at(page, page.locator("#chart-accuracy [data-mark=dot] > *").nth(4))
        assert page.locator("#chart-accuracy [aria-label=tip]").text_content()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_dark_mode_changes_page_and_charts(browser, report):
    script = """() => [document.body, document.querySelector("#chart-accuracy [data-mark=line]")]
        .map(item => getComputedStyle(item)).map(style => [style.backgroundColor, style.stroke])"""
    colours = []
    for scheme in ("light", "dark"):
        with opened(browser, report, color_scheme=scheme) as page:
            colours.append(page.evaluate(script))
    (light_page, light_line), (dark_page, dark_line) = colours
    assert light_page[0] == "rgb(255, 255, 255)" != dark_page[0]
    assert light_line[1] != dark_line[1]


def test_print_has_light_colours_and_no_controls(browser, report):
    with opened(browser, report, color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        assert not page.locator(".controls").is_visible()
        assert page.locator("#chart-accuracy .legend").is_visible()
        assert page.pdf(format="A4")[:5] == b"%PDF-"


def test_without_scripts_the_tables_are_there(browser, report):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(report.as_uri())
        assert count(page, "#results tbody tr") == 12 + 4
        assert page.locator("#cost [data-of=fashion-mnist]").is_visible()


def test_a_store_without_any_mixing_says_so(browser, result, tmp_path):
    path = write_report([result(mix="none")], tmp_path / "report.html")
    with opened(browser, path) as page:
        assert page.get_by_text("No run of this data set mixed samples.").is_visible()
        assert not page.locator("#pair-task").is_visible()


@pytest.mark.slow
def test_two_hundred_runs_open_within_three_seconds(browser, two_hundred_results, tmp_path):
    path = write_report(two_hundred_results, tmp_path / "report.html")
    seconds = []
    for _ in range(4):  # the browser warms up, and the machine may be busy
        started = time.perf_counter()
        with opened(browser, path) as page:
            seconds.append(time.perf_counter() - started)
            assert count(page, "#chart-accuracy [data-mark=line] path") == 8
    assert min(seconds) <= 3
