"""gradmix run as a user meets it."""

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gradmix.cli.commands import app
from gradmix.errors import DivergedError, GradMixError
from gradmix.runs import run as complete
from gradmix.runs import run as runs
from gradmix.runs.config import config_for
from gradmix.runs.results import load_result
from gradmix.runs.store import ResultStore

QUICK = ["run", "--data", "digits", "--epochs", "1"]


def test_run_writes_a_result_for_every_seed_and_prints_a_table(gradmix, tmp_path):
    table = gradmix(*QUICK, "--mix", "mixup", "--seeds", "0", "1", "--out", str(tmp_path / "o"))
    files = sorted((tmp_path / "o").glob("digits-er-mixup-seed*.json"))
    assert [load_result(file).config["seed"] for file in files] == [0, 1]
    assert "average accuracy" in table
    assert "±" in table


def test_options_reach_the_configuration(gradmix, tmp_path):
    gradmix(
        *QUICK, "--lr", "0.1", "--momentum", "0.5", "--batch-size", "32", "--replay-batch-size",
        "8", "--exemplars", "3", "--alpha", "0.4", "--increments", "4", "6", "--class-order",
        "seed:1993", "--threads", "1", "--device", "cpu", "--precision", "32-true", "--mix",
        "gradient:cutmix:remix", "--lr-steps", "1", "2", "--out", str(tmp_path),
    )  # fmt: skip
    (file,) = tmp_path.glob("digits-*.json")
    config = load_result(file).config
    assert config["increments"] == [4, 6]
    assert config["lr_steps"] == [1, 2]
    assert config["class_order"] == "seed:1993"
    names = ("lr", "momentum", "batch_size", "replay_batch_size", "exemplars_per_class", "alpha")
    assert [config[name] for name in names] == [0.1, 0.5, 32, 8, 3, 0.4]
    assert (config["mix"], config["device"]) == ("gradient:cutmix:remix", "cpu")


def test_json_output_is_json_and_nothing_else(invoke, tmp_path):
    outcome = invoke(*QUICK, "--json", "--out", str(tmp_path))
    (summary,) = json.loads(outcome.stdout)
    assert summary["config"]["data"] == "digits"
    assert summary["metrics"] == load_result(summary["file"]).metrics
    assert "task 5/5" in outcome.stderr


def test_the_accuracies_shown_during_a_run_are_those_of_the_metrics(invoke, tmp_path):
    outcome = invoke(*QUICK, "--increments", 1, 9, "--json", "--out", tmp_path)
    shown = [float(text) for text in re.findall(r"accuracy (\d\.\d+) ", outcome.stderr)]
    (summary,) = json.loads(outcome.stdout)
    assert shown[-1] == round(summary["metrics"]["final_accuracy"], 3)
    assert statistics.fmean(shown) == pytest.approx(
        summary["metrics"]["average_accuracy"], abs=5e-4
    )


def test_finished_runs_are_kept_unless_asked_to_repeat(gradmix, tmp_path):
    gradmix(*QUICK, "--out", str(tmp_path))
    (file,) = tmp_path.glob("digits-*.json")
    before = file.stat().st_mtime_ns
    gradmix(*QUICK, "--out", str(tmp_path))
    assert file.stat().st_mtime_ns == before
    first = load_result(file)
    gradmix(*QUICK, "--again", "--out", str(tmp_path))
    assert file.stat().st_mtime_ns > before
    assert load_result(file).accuracy == first.accuracy


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "digts"], "did you mean 'digits'"),
        (["--data", "digits", "--mix", "gradmix-"], "did you mean 'gradmix'"),
        (["--data", "digits", "--method", "ER"], "unknown method 'ER'"),
        (["--data", "digits", "--alpha", "0"], "alpha is 0.0"),
        (["--data", "digits", "--alpha", "-1"], "alpha is -1.0"),
        (["--data", "digits", "--increments", "11"], "increments is 11"),
        (["--data", "digits", "--increments", "5", "6"], "increments"),
        (["--data", "digits", "--seeds", "one"], "seeds has 'one'"),
        (["--data", "digits", "--class-order", "0,x"], "class_order is '0,x'"),
        (["--data", "digits", "--class-order", "0,1"], "class_order"),
        (["--data", "digits", "--class-order", "random"], "unknown class order"),
        (["--data", "digits", "--exemplars", "0"], "exemplars_per_class (--exemplars) is 0"),
        (["--data", "digits", "--exemplars", "-3"], "(--exemplars) is -3; give 0 or more"),
        (["--data", "digits", "--memory-total", "3"], "memory_total is 3"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(tmp_path, args, message):
    outcome = CliRunner().invoke(app, ["run", *args, "--out", str(tmp_path / "out")])
    assert isinstance(outcome.exception, GradMixError)
    assert message in str(outcome.exception)
    assert not (tmp_path / "out").exists()


def test_an_error_is_one_line_and_exit_code_2(call_main, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    outcome = call_main(*QUICK, "--out", blocked)
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: out is ")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_only_a_sweep_is_told_to_skip_the_impossible(call_main, tmp_path, command):
    outcome = call_main(command, "--data", "digits", "--epochs", "-3", "--out", tmp_path)
    assert "epochs is -3; give 1 or more" in outcome.stderr
    assert ("--skip-impossible" in outcome.stderr) == (command == "sweep")


def test_a_result_folder_of_another_version_is_refused(gradmix, tmp_path):
    (tmp_path / "gradmix.json").write_text('{"format": "gradmix-result", "schema_version": 7}')
    with pytest.raises(GradMixError, match="version 7"):
        gradmix(*QUICK, "--out", str(tmp_path))


def test_a_missing_data_set_says_where_it_looked_and_what_would_bring_it(
    call_main, monkeypatch, tmp_path
):
    for name in ("GRADMIX_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    outcome = call_main("run", "--data", "mnist", "--out", tmp_path / "out")
    assert outcome.returncode == 2
    assert str(tmp_path) in outcome.stderr
    assert "GRADMIX_DATA" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_keeps_what_is_finished(program, tmp_path):
    args = ["--data", "digits", "--epochs", "3", "--seeds", "0-40", "--out", str(tmp_path)]
    command = [*program, "run", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("digits-*.json"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)
    process.send_signal(signal.SIGINT)  # from an impatient user; it has no effect
    stdout, stderr = process.communicate(timeout=300)
    files = list(tmp_path.glob("digits-*.json"))
    assert process.returncode == 130
    assert 2 <= len(files) < 41
    assert all(load_result(file) for file in files)
    assert f"stopped: {len(files)} of 41 runs" in stderr
    assert "Traceback" not in stderr
    assert "average accuracy" in stdout
    assert not list(tmp_path.glob(".*"))
    assert not list(tmp_path.glob("running/*"))


def test_a_failure_is_shown_and_recorded_until_the_run_succeeds(gradmix, tmp_path, monkeypatch):
    bad = [*QUICK, "--lr", "1e30", "--out", str(tmp_path)]
    with pytest.raises(DivergedError):
        gradmix(*bad)
    store, config = ResultStore(tmp_path), config_for("digits", epochs=1, lr=1e30)
    assert store.find_failure(config).error == "DivergedError"
    good = gradmix_run_of(gradmix(*QUICK, "--json", "--out", str(tmp_path / "other")))
    monkeypatch.setattr("gradmix.runs.run.train", lambda c, *_: good(c))
    gradmix(*bad)
    assert store.find_failure(config) is None
    assert store.find(config) is not None


def gradmix_run_of(text):
    """A run that gives the printed result, whatever the configuration."""
    (summary,) = json.loads(text)
    result = load_result(summary["file"])
    return lambda config: replace(result, config=config.to_json())


def test_a_run_that_another_process_is_at_is_waited_for(tmp_path, monkeypatch):
    store, config = ResultStore(tmp_path).create(), config_for("digits", epochs=1)
    lock = store.lock(config)
    monkeypatch.setattr("time.sleep", lambda _: lock.close() if lock.path.exists() else None)
    outcome = CliRunner().invoke(app, [*QUICK, "--out", str(tmp_path)])
    assert outcome.exit_code == 0
    assert "waiting for another process" in outcome.stderr
    assert store.find(config) is not None


def test_data_and_network_are_built_once_and_without_sweeps(invoke, tmp_path, monkeypatch):
    calls = []

    def counted(name, function):
        return lambda *args, **kwargs: (calls.append(name), function(*args, **kwargs))[1]

    for name in ("load_benchmark", "build_method"):
        monkeypatch.setattr(runs, name, counted(name, getattr(runs, name)))
    monkeypatch.setattr(complete, "load_benchmark", runs.load_benchmark)
    monkeypatch.setitem(sys.modules, "gradmix.runs.sweep", None)  # importing it is an error
    assert invoke(*QUICK, "--out", tmp_path).exit_code == 0
    assert sorted(calls) == ["build_method", "load_benchmark"]


def test_a_log_is_written_and_an_unknown_one_refused(gradmix, invoke, tmp_path):
    out = ["--mix", "none", "--out", str(tmp_path / "runs")]
    refused = invoke(*QUICK, *out, "--log", "xlsx:logs")
    assert "unknown logger 'xlsx'" in str(refused.exception)
    assert not (tmp_path / "runs").exists()
    gradmix(*QUICK, *out, "--log", f"csv:{tmp_path / 'logs'}", "--log-every", "20")
    [log] = (tmp_path / "logs").iterdir()
    [result] = (tmp_path / "runs").glob("digits*.json")
    assert log.stem == result.stem
    assert "\n20,loss," in log.read_text()
