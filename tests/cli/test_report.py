"""`gradmix report`, and the report at the end of the demo."""

import os
import sys
import webbrowser
from dataclasses import replace

import pytest

from gradmix.cli.demo import REPORT, demo_configs
from gradmix.errors import GradMixError
from gradmix.runs.config import config_for
from gradmix.runs.run import run
from gradmix.runs.store import ResultStore


@pytest.fixture(scope="module")
def some_run():
    return run(config_for("digits", mix="gradmix+", epochs=1))


@pytest.fixture
def store(some_run, tmp_path):
    store = ResultStore(tmp_path / "runs").create()
    for seed in (0, 1):
        store.save(replace(some_run, config={**some_run.config, "seed": seed}))
    return store


def test_it_writes_one_page_of_all_results(gradmix, store, tmp_path):
    page = tmp_path / "page.html"
    printed = gradmix("report", store.path, "-o", page, "--title", "Two seeds")
    assert str(page) in printed.replace("\n", "")
    html = page.read_text(encoding="utf-8")
    assert "<title>Two seeds</title>" in html
    assert "over 2 seeds" in html


def test_an_unknown_mix_to_compare_with_is_refused(gradmix, store, tmp_path):
    with pytest.raises(GradMixError, match="unknown mix 'nope': known are gradmix"):
        gradmix("report", store.path, "-o", tmp_path / "page.html", "--against", "nope")
    assert not (tmp_path / "page.html").exists()


def test_it_opens_the_page_if_asked(gradmix, store, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    page = tmp_path / "page.html"
    gradmix("report", store.path, "-o", page)
    assert opened == []
    gradmix("report", store.path, "-o", page, "--open")
    assert opened == [page.resolve().as_uri()]


def test_a_store_that_is_not_there_or_empty_is_named(gradmix, tmp_path):
    page = tmp_path / "page.html"
    for store, message in ((tmp_path / "absent", "not a folder"), (tmp_path, "no results")):
        with pytest.raises(GradMixError, match=message) as caught:
            gradmix("report", store, "-o", page)
        assert repr(str(store)) in str(caught.value)
    assert not page.exists()


def test_results_of_another_protocol_are_left_out(gradmix, store, some_run, tmp_path):
    store.save(replace(some_run, protocol_version=99))
    page = tmp_path / "page.html"
    gradmix("report", store.path, "-o", page)
    assert "over 2 seeds" in page.read_text(encoding="utf-8")
    gradmix("report", store.path, "-o", page, "--protocol", "99")
    assert "over 1 seed;" in page.read_text(encoding="utf-8")


def test_invalid_files_are_listed_and_skipped(invoke, store, tmp_path):
    (store.path / "half.json").write_text("{")
    outcome = invoke("report", store.path, "-o", tmp_path / "page.html")
    assert outcome.exit_code == 0
    assert f"skipped: {store.path}/half.json: is not valid JSON" in outcome.stderr
    assert "over 2 seeds" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def quick_demo(some_run, monkeypatch):
    """The demo with runs that were done before."""
    configs = demo_configs()
    results = [replace(some_run, config=config.to_json()) for config in configs]
    module = sys.modules["gradmix.cli.demo"]  # the package has a function of this name
    monkeypatch.setattr(module, "demo_photos", lambda: None)
    monkeypatch.setattr(module, "run_all", lambda configs, store: (results, True))


def test_the_demo_ends_with_a_report_where_the_user_is(gradmix, quick_demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = gradmix("demo")
    assert printed.endswith(f"All results, with charts: {REPORT}\n")
    assert "ER + balanced-remix" in printed
    assert (
        "What gradients add: +0.000 ± 0.000, gradmix+ minus its best gradient-free control"
        in printed
    )
    assert "<title>gradmix demo</title>" in (tmp_path / REPORT).read_text(encoding="utf-8")


def test_the_demo_succeeds_where_nothing_can_be_written(gradmix, quick_demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir(REPORT)  # a folder in its place; a test may run as one who may write anywhere
    gradmix("demo")
    assert os.listdir(tmp_path) == [REPORT]
