"""gradmix reproduce as a user meets it."""

from pathlib import Path

import pytest

from gradmix.errors import GradMixError
from gradmix.runs.store import ResultStore


def test_the_list_has_tables_and_figures(gradmix):
    text = gradmix("reproduce", "--list")
    assert text == gradmix("reproduce")
    assert "main-er" in text
    assert "approximation-error" in text


def test_runs_what_is_needed_once_and_shows_it(gradmix, tmp_path):
    args = ["main-er", "forgetting", "--data", "digits", "--seeds", 0, "--mix", "none", "mixup"]
    args += ["--scale", "small", "--out", tmp_path / "runs", "--to", tmp_path / "pages"]
    text = gradmix("reproduce", *args)
    assert "main-er (small scale)" in text
    assert "ER + Mixup" in text
    assert len(ResultStore(tmp_path / "runs").results()) == 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    gradmix("reproduce", *args)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    names = {path.name for path in (tmp_path / "pages").iterdir()}
    assert {"main-er-small.md", "forgetting-small.md"} < names
    assert sum(name.endswith(".svg") for name in names) == 2


def test_shows_what_there_is_beside_the_paper_without_running(call_main, example, tmp_path):
    store = ResultStore(tmp_path / "runs").create()
    store.save(example(0.906, data="mnist", mix="none", seed=0))
    args = ["--seeds", 0, "--out", store.path, "--to", tmp_path / "pages", "--no-run"]
    outcome = call_main("reproduce", "main-er", "heatmap", *args)
    assert outcome.returncode == 0
    assert "23 of 24 runs are missing" in outcome.stderr
    assert "heatmap: " in outcome.stderr  # has none of its runs
    assert "0.896 ± 0.002" in outcome.stdout
    assert "+0.010" in outcome.stdout
    page = (tmp_path / "pages" / "main-er.md").read_text(encoding="utf-8")
    assert "| ER | 0.906 | 0.896 ± 0.002 | +0.010 | – | – |  |" in page


def test_a_subset_adds_to_the_page(gradmix, example, tmp_path):
    store = ResultStore(tmp_path / "runs").create()
    for data, mix, seed in (("mnist", "none", 0), ("mnist", "mixup", 7), ("digits", "remix", 0)):
        store.save(example(data=data, mix=mix, seed=seed))
    page = tmp_path / "pages" / "main-er.md"

    def rows(*args):
        out = ["--out", store.path, "--to", page.parent, "--no-run"]
        gradmix("reproduce", "main-er", *out, *args)
        lines = page.read_text(encoding="utf-8").splitlines()
        return [line.split("|")[1].strip() for line in lines if line.startswith("| ER")]

    assert rows("--data", "mnist", "--mix", "none", "--seeds", 0) == ["ER"]
    assert rows("--data", "mnist", "--mix", "mixup", "--seeds", 7) == ["ER", "ER + Mixup"]
    every = ["ER", "ER + Mixup", "ER + Remix"]
    assert rows("--data", "digits", "--mix", "remix", "--seeds", 0) == every
    unmarked = page.read_text(encoding="utf-8").partition("<!--")[0]
    page.write_text(unmarked, encoding="utf-8")
    default = rows("--data", "digits", "--mix", "remix", "--seeds", 0)  # all mixes, seeds 0-4
    assert set(default) == {"ER", "ER + Remix", "ER + shuffled control of gradmix+"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["main-err"], "unknown reproduction 'main-err'"),
        (["main-er", "--data", "mnits"], "did you mean 'mnist'"),
        (["main-er", "--scale", "tiny"], "unknown scale 'tiny'"),
        (["main-er", "--mix", "cutmixx"], "unknown mix 'cutmixx': did you mean 'cutmix'"),
        (["heatmap", "--mix", "mixup"], "mix is .* which heatmap does not have"),
        (["main-er", "--import", "no_such_module"], "import is 'no_such_module', which cannot"),
        (["main-er", "--seeds", "x"], "seeds"),
        (["main-er", "--data", "digits", "--jobs", "0"], "jobs is 0"),
        (["main-er", "--no-run", "--out", "typo"], "out is 'typo', which is not a folder"),
        (["main-er", "--data", "digits", "--to", __file__], "to is .* is not a writable folder"),
        (["main-er", "--data", "digits", "--to", f"{__file__}/a/b"], "is not a writable folder"),
        pytest.param(
            ["main-er", "--data", "digits", "--to", "/proc/x"],
            "/proc is not a writable folder",
            marks=pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc"),
        ),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(
    gradmix, args, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradMixError, match=message):
        gradmix("reproduce", *args)
    assert not list(tmp_path.iterdir())
