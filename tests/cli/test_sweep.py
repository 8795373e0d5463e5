"""gradmix sweep as a user meets it; sudden ends are in tests/runs/test_sweep.py."""

import json

import pytest
from typer.testing import CliRunner

from gradmix.cli.commands import app
from gradmix.errors import GradMixError
from gradmix.runs.results import load_result
from gradmix.runs.store import ResultStore

QUICK = ["sweep", "--data", "digits", "--epochs", "1"]


def test_a_grid_from_flags(invoke, tmp_path):
    outcome = invoke(*QUICK, "--mix", "none", "mixup", "--seeds", "0-1", "--out", tmp_path)
    assert outcome.exit_code == 0
    found = [(r.config["mix"], r.config["seed"]) for r in ResultStore(tmp_path).results()]
    assert sorted(found) == [("mixup", 0), ("mixup", 1), ("none", 0), ("none", 1)]
    assert "±" in outcome.stdout
    assert f"results in {tmp_path}" in outcome.stdout
    assert "4 runs; 4 to do" in outcome.stderr
    assert "4 of 4 done" in outcome.stderr
    assert outcome.stderr.count("average accuracy") == 4


def test_a_file_and_flags_that_replace_what_it_says(gradmix, tmp_path):
    (tmp_path / "sweep.toml").write_text(
        'data = "digits"\nseeds = "0-4"\n[[grid]]\nmix = ["none", "mixup"]\nepochs = 1\n'
    )
    gradmix("sweep", tmp_path / "sweep.toml", "--seeds", "3", "--out", tmp_path / "out")
    results = ResultStore(tmp_path / "out").results()
    assert [(r.config["mix"], r.config["seed"], r.config["epochs"]) for r in results] == [
        ("mixup", 3, 1), ("none", 3, 1),
    ]  # fmt: skip


def test_run_and_sweep_share_results(gradmix, tmp_path):
    gradmix("run", *QUICK[1:], "--seeds", "0", "1", "--out", tmp_path)
    outcome = CliRunner().invoke(app, [*QUICK, "--seeds", "0-1", "--out", str(tmp_path)])
    assert "2 runs, 2 of them finished earlier; 0 to do" in outcome.stderr


def test_json_is_a_line_for_each_run_as_it_ends(gradmix, tmp_path):
    args = [*QUICK, "--lr", "0.01", "1e30", "--out", tmp_path, "--json"]
    lines = [json.loads(line) for line in gradmix(*args, expect=1).splitlines()]
    good, bad = lines
    assert (good["status"], good["config"]["lr"]) == ("done", 0.01)
    assert good["metrics"].keys() >= {"average_accuracy", "final_accuracy"}
    assert load_result(good["file"]).metrics == good["metrics"]
    assert good["progress"].pop("seconds_left") > 0
    assert good["progress"] == {"total": 2, "done": 1, "failed": 0, "running": 0}
    assert (bad["status"], bad["error"]) == ("failed", "DivergedError")
    assert (bad["progress"]["done"], bad["progress"]["failed"]) == (1, 1)
    again = [json.loads(line)["status"] for line in gradmix(*args, expect=1).splitlines()]
    assert again == ["kept", "failed"]


def test_failures_have_exit_code_1_and_say_what_to_do(gradmix, tmp_path):
    outcome = CliRunner().invoke(app, [*QUICK, "--lr", "1e30", "--out", str(tmp_path)])
    assert outcome.exit_code == 1
    assert "failed: DivergedError: training diverged" in outcome.stderr
    assert "1 of 1 runs failed" in outcome.stderr
    assert "--retry-failed" in outcome.stderr
    listed = gradmix("results", tmp_path, "--failed")
    assert "digits er balanced-remix seed 0" in listed
    assert "gradmix.errors.DivergedError: training diverged" in listed
    assert listed.endswith("1 failed run\n")
    assert gradmix("results", tmp_path, "--failed", "--mix", "none") == "0 failed runs\n"
    [failure] = json.loads(gradmix("results", tmp_path, "--failed", "--format", "json"))
    assert (failure["error"], failure["config"]["lr"]) == ("DivergedError", 1e30)


def test_combinations_without_meaning(gradmix, tmp_path):
    args = [
        *QUICK,
        "--method",
        "er",
        "finetune",
        "--mix",
        "none",
        "gradmix",
        "--out",
        tmp_path / "o",
    ]
    with pytest.raises(GradMixError, match="data digits, method finetune, mix gradmix: "):
        gradmix(*args)
    assert not (tmp_path / "o").exists()
    outcome = CliRunner().invoke(app, [*map(str, args), "--skip-impossible"])
    assert outcome.exit_code == 0
    assert "skipped: data digits, method finetune, mix gradmix: mix has" in outcome.stderr
    assert len(ResultStore(tmp_path / "o").results()) == 3
    outcome = CliRunner().invoke(app, [*map(str, args), "--skip-impossible", "--json"])
    first, *others = map(json.loads, outcome.stdout.splitlines())
    assert first["status"] == "impossible"
    assert first["combination"] == "data digits, method finetune, mix gradmix"
    assert first["reason"].startswith("mix has")
    assert [line["status"] for line in others] == ["kept"] * 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nothing to run; give --data or a file"),
        (["--data", "digits", "mnits"], "did you mean 'mnist'"),
        (["--data", "digits", "--mix", "none", "mixpu"], "did you mean 'mixup'"),
        (["--data", "digits", "--seeds", "x"], "seeds has 'x'"),
        (["--data", "digits", "--epochs", "1", "0"], "data digits, epochs 0: epochs is 0"),
        (["--data", "digits", "--increments", "3"], "data digits, .*: increments is 3"),
        (["--data", "digits", "--jobs", "0"], "jobs is 0"),
        (["absent.toml"], "absent.toml cannot be read"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(gradmix, tmp_path, args, message):
    with pytest.raises(GradMixError, match=message):
        gradmix("sweep", *args, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
