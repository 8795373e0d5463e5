"""gradmix results as a user meets it: filters, comparisons and every format."""

import csv
import io
import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gradmix.cli.commands import app
from gradmix.errors import GradMixError
from gradmix.runs.store import ResultStore

NONE = {0: 0.80, 1: 0.82, 2: 0.84}
MIXUP = {0: 0.85, 1: 0.89, 2: 0.87}  # 0.05 more, give or take 0.02; p is 0.0494


@pytest.fixture(scope="module")
def store(example, tmp_path_factory):
    store = ResultStore(tmp_path_factory.mktemp("store")).create()
    for mix, values in (("none", NONE), ("mixup", MIXUP)):
        for seed, value in values.items():
            store.save(example(value, mix=mix, seed=seed))
            store.save(example(value / 2, mix=mix, seed=seed, data="mnist"))
    store.save(example(0.9, mix="mixup", seed=0, exemplars_per_class=16))
    return store.path


@pytest.fixture
def parsed(gradmix):
    """Return a function that returns the JSON of `gradmix results`."""
    return lambda *args: json.loads(gradmix("results", *args, "--format", "json"))


def test_a_table_on_the_terminal(gradmix, store):
    text = gradmix("results", store, "--where", "exemplars_per_class=4", "--against", "none")
    none, mixup = (line for line in text.splitlines() if "│ er" in line)
    assert [cell.strip() for cell in mixup.split("│")[1:-1]] == [
        "er", "mixup", "0.870 ± 0.020", "+0.050 ± 0.020", "0.049",
    ]  # fmt: skip
    assert "0.820 ± 0.020" in none
    assert "paired t-test" in text


def test_an_online_run_is_not_taken_for_a_class_incremental_one(gradmix, example, tmp_path):
    store = ResultStore(tmp_path).create()
    store.save(example(0.5, mix="none"))
    store.save(example(0.25, mix="none", data="mnist", scenario="online"))
    markdown = gradmix("results", tmp_path, "--format", "markdown").splitlines()
    assert markdown[0] == "| method | mix | scenario | digits | mnist |"
    assert markdown[2:4] == [
        "| er | none | class-incremental | 0.500 | – |",
        "| er | none | online | – | 0.250 |",
    ]


def test_numbers_are_never_cut(gradmix, example, tmp_path):
    """On 80 columns, which is what a pipe has."""
    store = ResultStore(tmp_path).create()
    for data in ("folder:of/photos/with/[a]/rather/long/name", "mnist", "fashion-mnist"):
        for mix in ("none", "gradient-keep-original:linear:remix"):
            for seed in (0, 1):
                store.save(example(0.5 + seed / 8, mix=mix, seed=seed, data=data))
    text = gradmix("results", tmp_path, "--against", "none")
    assert text.count("0.562 ± 0.088") == 2 * 3
    assert "[a]" in gradmix("results", tmp_path, "--across", "mix").replace("│", "")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["nosuch"], "^'nosuch' is not a folder; give a folder with results"),
        (["nosuch", "--failed"], "'nosuch' is not a folder"),
        ([None, "--across", "date"], "did you mean 'data'"),
        ([None, "--against", "mixupp"], "did you mean 'mixup'"),
        ([None, "--seeds", "²"], "give numbers or ranges"),
        ([None, "--runs", "--against", "none"], "against is 'none', which compares means"),
        ([None, "--failed", "--where", "epoch=3"], "did you mean 'epochs'"),
        ([None, "--failed", "--format", "csv"], "format is 'csv'; failed runs are shown as"),
    ],
)
def test_mistakes(gradmix, store, arguments, match):
    with pytest.raises(GradMixError, match=match):
        gradmix("results", *(store if word is None else word for word in arguments))


def test_filters(parsed, store):
    assert len(parsed(store, "--runs")) == 13
    assert len(parsed(store, "--runs", "--data", "digits", "mnist", "--mix", "none")) == 6
    assert len(parsed(store, "--runs", "--seeds", "0-1", "--method", "er")) == 9
    assert len(parsed(store, "--runs", "--where", "exemplars_per_class=16", "mix=mixup")) == 1
    several = ["exemplars_per_class=16", "exemplars_per_class=32"]
    assert len(parsed(store, "--runs", "--where", *several)) == 7
    assert len(parsed(store, "--runs", "--where", "increments=[2]", "memory_total=null")) == 13
    assert len(parsed(store, "--runs", "--where", "class_order=natural")) == 13


def test_json_of_groups(parsed, store):
    none, mixup, larger = parsed(store, "--data", "digits", "--against", "none")
    assert mixup["exemplars_per_class"] == 4
    assert [mixup["mean"], mixup["std"]] == pytest.approx([0.87, 0.02])
    assert mixup["p_value"] == pytest.approx(0.0494, abs=1e-4)
    assert (mixup["seeds"], mixup["best"], none["best"]) == ([0, 1, 2], True, False)
    assert (larger["runs"], larger["std"], larger["p_value"]) == (1, None, None)
    assert larger["note"] == "no runs of none to compare with"


def test_json_of_runs_is_all_there_is(parsed, example, store):
    first = parsed(store, "--runs", "--mix", "none", "--data", "digits")[0]
    assert first == json.loads(json.dumps(vars(example(0.80, mix="none"))))


def test_csv_of_groups_and_runs(gradmix, store):
    args = ["results", store, "--data", "mnist", "--format", "csv"]
    rows = list(csv.DictReader(io.StringIO(gradmix(*args, "--metric", "forgetting_from_best"))))
    assert [(row["mix"], row["seeds"], row["metric"]) for row in rows] == [
        ("none", "0 1 2", "forgetting_from_best"), ("mixup", "0 1 2", "forgetting_from_best"),
    ]  # fmt: skip
    assert float(rows[0]["mean"]) == pytest.approx(0.041)
    assert [row["best"] for row in rows] == ["True", "False"]  # less is better
    runs = list(csv.DictReader(io.StringIO(gradmix(*args, "--runs"))))
    assert [row["average_accuracy"] for row in runs[:3]] == ["0.4", "0.41", "0.42"]
    assert [row["seed"] for row in runs[:3]] == ["0", "1", "2"]


def test_markdown_and_latex_have_columns_for_the_data(gradmix, store):
    args = ["results", store, "--where", "exemplars_per_class=4", "exemplars_per_class=32"]
    markdown = gradmix(*args, "--format", "markdown").splitlines()
    assert markdown[:4] == [
        "| method | mix | digits | mnist |",
        "|---|---|---:|---:|",
        "| er | none | 0.820 ± 0.020 | 0.410 ± 0.010 |",
        "| er | mixup | **0.870 ± 0.020** | **0.435 ± 0.010** |",
    ]
    latex = gradmix(*args, "--format", "latex", "--across", "mix").splitlines()
    assert latex[3] == r"data & method & none & mixup \\"
    assert latex[5] == r"digits & er & 0.820 $\pm$ 0.020 & \textbf{0.870 $\pm$ 0.020} \\"


def test_a_grouping_of_ones_own(parsed, gradmix, store):
    groups = parsed(store, "--data", "digits", "--mix", "none", "--by", "method")
    assert [(g["method"], g["runs"], "mix" in g) for g in groups] == [("er", 3, False)]
    with pytest.raises(GradMixError, match="seed more than once"):
        gradmix("results", store, "--by", "method")


def test_results_of_other_protocols_are_left_out_and_that_is_said(parsed, example, tmp_path):
    store = ResultStore(tmp_path).create()
    store.save(example(0.5))
    store.save(replace(example(0.7), protocol_version=0))
    outcome = CliRunner().invoke(app, ["results", str(tmp_path), "--format", "json"])
    assert [group["mean"] for group in json.loads(outcome.stdout)] == [0.5]
    assert "skipped: 1 result of protocol version 0" in outcome.stderr
    assert [g["mean"] for g in parsed(tmp_path, "--protocol", "0")] == [0.7]
    outcome = CliRunner().invoke(app, ["results", str(tmp_path), "--protocol", "7"])
    assert "skipped: 2 results of protocol version 0, 1" in outcome.stderr
    assert "has no results of this protocol version" in str(outcome.exception)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "cifar-10"], "no such results; it has data digits, mnist; method er"),
        (["--where", "epochs"], "where is 'epochs'; give name=value"),
        (["--where", "epoch=1"], "did you mean 'epochs'"),
        (["--format", "excel"], "unknown format 'excel'"),
        (["--metric", "averag_accuracy"], "did you mean 'average_accuracy'"),
        (["--by", "mixx"], "did you mean 'mix'"),
        (["--seeds", "x"], "seeds has 'x'"),
        (["--mix", "none", "--by", "data", "--against", "none"], "not grouped by mix"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(gradmix, store, args, message):
    with pytest.raises(GradMixError, match=message):
        gradmix("results", store, *args)


def test_an_empty_folder(gradmix, tmp_path):
    with pytest.raises(GradMixError, match=r"^the folder .* has no results; make some with: gradm"):
        gradmix("results", tmp_path)
    assert not list(tmp_path.iterdir())


def test_invalid_files_are_listed_and_skipped(invoke, example, tmp_path):
    store = ResultStore(tmp_path).create()
    store.save(example(0.5))
    (tmp_path / "half.json").write_text("{")
    os.mkfifo(tmp_path / "pipe.json")
    outcome = invoke("results", tmp_path, "--format", "json")
    assert outcome.exit_code == 0
    assert [group["mean"] for group in json.loads(outcome.stdout)] == [0.5]
    assert f"skipped: {tmp_path}/half.json: is not valid JSON" in outcome.stderr
    assert (
        f"skipped: {tmp_path}/pipe.json: cannot be read: it is not a regular file" in outcome.stderr
    )


def test_invalid_failures_are_listed_and_skipped(invoke, tmp_path):
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "x.json").write_text("{}")
    outcome = invoke("results", tmp_path, "--failed")
    assert outcome.exit_code == 0
    assert "failed/x.json: is damaged: config: field required" in outcome.stderr
    assert "0 failed runs" in outcome.stdout


def test_results_of_different_cpus_are_mentioned(invoke, example, tmp_path):
    store = ResultStore(tmp_path).create()
    for seed, capability in enumerate(["AVX2", None, "AVX512"]):
        versions = {} if capability is None else {"cpu_capability": capability}
        store.save(replace(example(0.5, seed=seed), versions=versions))
    note = "CPUs with different capabilities (AVX2, AVX512)"
    assert note in invoke("results", tmp_path).stdout
    assert note in invoke("results", tmp_path, "--format", "csv").stderr
    assert "CPU" not in invoke("results", tmp_path, "--seeds", "0-1").output
