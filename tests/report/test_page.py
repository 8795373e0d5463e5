"""The file as a whole: complete in itself, safe to open, small enough to pass on."""

import base64
import hashlib
import json
import re
from importlib import resources

import pytest

from gradmix.errors import InputError, ResultError
from gradmix.report import render, write_report
from gradmix.report.rows import COLOURED, OTHER_COLOURS, mix_colours
from gradmix.runs.groups import current_settings

MEGABYTE = 2**20


def embedded(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))


def test_every_run_is_in_the_page_with_its_configuration_and_versions(some_results):
    runs = embedded(render(some_results))["runs"]
    assert len(runs) == len(some_results)
    for run in some_results:
        (found,) = [found for found in runs if found["config"] == current_settings(run.config)]
        assert found["versions"] == run.versions
        assert found["metrics"] == run.metrics
        assert found["accuracy"] == [line[: t + 1] for t, line in enumerate(run.accuracy)]


def test_the_same_results_give_the_same_page(some_results):
    assert render(some_results) == render(some_results[::-1])


def test_nothing_is_loaded_from_elsewhere(some_results):
    html = render(some_results)
    without_scripts = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r'\b(src|srcset)=|@import|url\(|href="[^#]', without_scripts)
    assert "default-src 'none'" in html


def test_the_policy_allows_exactly_the_scripts_of_the_page(some_results):
    html = render(some_results)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    }
    assert digests == set(re.findall(r"'sha256-([^']*)'", html))
    assert len(scripts) == 3


def test_the_libraries_are_the_published_files():
    vendor = resources.files("gradmix.report") / "vendor"
    noted = re.findall(r"`(\S+\.js)` \|.*`([0-9a-f]{64})`", (vendor / "README.md").read_text())
    assert [name for name, _ in noted] == ["d3.min.js", "plot.umd.min.js"]
    for name, digest in noted:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest


def test_names_cannot_end_the_data_or_begin_a_tag(result):
    evil = ["</script><img src=x>", *"bcdefghij"]
    html = render([result(names=evil)], title="<b>", notes="<i>")
    assert embedded(html)["axes"][0]["names"][0] == evil[0]
    assert "<img" not in html
    assert "<title>&lt;b&gt;</title>" in html
    assert '<p class="notes">&lt;i&gt;</p>' in html


def test_two_hundred_runs_are_at_most_ten_megabytes(two_hundred_results):
    assert len(two_hundred_results) == 200
    assert len(render(two_hundred_results).encode()) <= 10 * MEGABYTE


def test_two_hundred_configurations_of_a_hundred_classes_too(result):
    run = result("cifar-100", classes=100, tasks=10)
    runs = [
        type(run)(**{**vars(run), "config": {**run.config, "lr": lr}})
        for lr in (round(0.001 * step, 3) for step in range(200))
    ]
    assert len(render(runs).encode()) <= 10 * MEGABYTE


def test_the_file_is_the_page(some_results, tmp_path):
    path = write_report(some_results, tmp_path / "report.html", title="T", notes="N")
    assert path.read_text(encoding="utf-8") == render(some_results, title="T", notes="N")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_place_that_cannot_be_written_is_named(some_results, tmp_path):
    with pytest.raises(ResultError, match=r"absent.*report\.html"):
        write_report(some_results, tmp_path / "absent" / "report.html")


FOREIGN = {
    "removed mixes": {"config": {"mix": "gradient-refined:linear:remix"}},
    "a mix without a recipe": {"config": {"mix": "constructor"}},
    "unknown method": {"config": {"method": "unheard-of", "options": {"x": 1.0}}},
    "unknown data set": {"config": {"data": "unheard-of"}},
    "removed settings": {"config": {"level": "sample", "rolling": 4}},
    "new settings": {"config": {"unheard_of": [1, 2]}},
    "no metrics": {"metrics": {}},
    "no forgetting": {"metrics": {"average_accuracy": 0.5}},
    "no times": {"seconds": {}},
    "no time at all": {"seconds": {"total": 0.0, "criterion": 0.0}},
    "no epochs": {"epochs": [{"task": 0, "stage": "train"}]},
    "no versions": {"versions": {}},
    "unknown analyses": {"analysis": {"unheard-of": [1], "class-distance": [{"task": 0}]}},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_result_is_shown_and_changes_no_other_row(result, some_results, case):
    run = result(mix="cutmix", seed=7)
    changes = dict(FOREIGN[case])
    if "config" in changes:
        changes["config"] = {**run.config, **changes["config"]}
    page = embedded(render([*some_results, type(run)(**{**vars(run), **changes})]))
    plain = embedded(render(some_results))
    assert len(page["rows"]) == len(plain["rows"]) + 1
    kept = [row for row in page["rows"] if row["seeds"] != [7]]
    for ours, theirs in zip(kept, plain["rows"], strict=True):
        same = ("metrics", "colour", "paper", "after", "classes", "pairs")
        assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}
    render([type(run)(**{**vars(run), **changes})])


@pytest.mark.parametrize(("classes", "tasks"), [(1, 1), (10, 1), (2, 2)])
def test_one_task_and_one_class(result, classes, tasks):
    runs = [result(mix=mix, classes=classes, tasks=tasks) for mix in ("none", "gradmix+")]
    page = embedded(render(runs))
    assert [len(row["after"]) for row in page["rows"]] == [tasks, tasks]


def test_every_colour_is_defined():
    css = (resources.files("gradmix.report") / "assets" / "report.css").read_text()
    colours = mix_colours([*COLOURED, *(f"other {n}" for n in range(OTHER_COLOURS))])
    assert all(f"{colour[4:-1]}:" in css for colour in colours.values())


def test_no_results_are_refused(tmp_path):
    with pytest.raises(InputError, match="results is empty"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
