"""The command line as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gradmix import __version__
from gradmix.cli import app
from gradmix.errors import GradMixError
from gradmix.experiments.results import load_result

QUICK = ["run", "--data", "digits", "--epochs", "1"]


def gradmix(*args, expect=0):
    outcome = CliRunner().invoke(app, list(args))
    if expect == 0 and outcome.exception:
        raise outcome.exception
    assert outcome.exit_code == expect
    return outcome.stdout


def shell(*args, **kwargs):
    """The real program, in a process of its own."""
    command = [sys.executable, "-c", "from gradmix.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)


def test_run_writes_a_result_for_every_seed_and_prints_a_table(tmp_path):
    table = gradmix(*QUICK, "--mix", "mixup", "--seeds", "0", "1", "--out", str(tmp_path / "o"))
    files = sorted((tmp_path / "o").glob("digits-er-mixup-seed*.json"))
    assert [load_result(file).config["seed"] for file in files] == [0, 1]
    assert "average accuracy" in table
    assert "±" in table


def test_options_reach_the_configuration(tmp_path):
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


def test_json_output_is_json_and_nothing_else(tmp_path):
    outcome = shell(*QUICK, "--json", "--out", str(tmp_path))
    (summary,) = json.loads(outcome.stdout)
    assert summary["config"]["data"] == "digits"
    assert summary["metrics"] == load_result(summary["file"]).metrics
    assert "task 5/5" in outcome.stderr


def test_finished_runs_are_kept_unless_asked_to_repeat(tmp_path):
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
        (["--data", "digits", "--seeds", "3", "3"], "only once"),
        (["--data", "digits", "--class-order", "0,x"], "class_order is '0,x'"),
        (["--data", "digits", "--class-order", "0,1"], "class_order"),
        (["--data", "digits", "--class-order", "random"], "unknown class order"),
        (["--data", "digits", "--exemplars", "0"], "exemplars_per_class is 0"),
        (["--data", "digits", "--memory-total", "3"], "memory_total is 3"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(tmp_path, args, message):
    outcome = CliRunner().invoke(app, ["run", *args, "--out", str(tmp_path / "out")])
    assert isinstance(outcome.exception, GradMixError)
    assert message in str(outcome.exception)
    assert not (tmp_path / "out").exists()


def test_an_error_is_one_line_and_exit_code_2(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    outcome = shell(*QUICK, "--out", str(blocked))
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: out is ")
    assert outcome.stderr.count("\n") == 1


def test_a_result_folder_of_another_version_is_refused(tmp_path):
    (tmp_path / "gradmix.json").write_text('{"format": "gradmix-result", "schema_version": 7}')
    with pytest.raises(GradMixError, match="version 7"):
        gradmix(*QUICK, "--out", str(tmp_path))


def test_a_missing_data_set_says_where_it_looked_and_what_would_bring_it(tmp_path):
    env = {**os.environ, "GRADMIX_DATA": str(tmp_path), "GRADMIX_OFFLINE": "1",
           "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}  # fmt: skip
    outcome = shell("run", "--data", "mnist", "--out", str(tmp_path / "out"), env=env)
    assert outcome.returncode == 2
    assert str(tmp_path) in outcome.stderr
    assert "GRADMIX_DATA" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    args = ["--data", "digits", "--epochs", "3", "--seeds", "0-40", "--out", str(tmp_path)]
    command = [sys.executable, "-c", "from gradmix.cli import main; main()", "run", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("digits-*.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    files = list(tmp_path.glob("digits-*.json"))
    assert process.returncode == 130
    assert 2 <= len(files) < 41
    assert all(load_result(file) for file in files)
    assert f"stopped: {len(files)} of 41 runs" in stderr
    assert "Traceback" not in stderr
    assert "average accuracy" in stdout
    assert not list(tmp_path.glob(".*"))


def test_list_names_everything():
    text = gradmix("list")
    for name in ("digits", "fashion-mnist", "er", "balanced-mixup", "gradmix+", "mlp"):
        assert name in text


def test_version():
    assert gradmix("--version").strip() == f"gradmix {__version__}"


def test_help_needs_no_torch():
    code = "import sys; from gradmix.cli import app; app(['run', '--help'], standalone_mode=False)"
    check = "; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code + check], check=True, capture_output=True)


def test_importing_gradmix_is_lazy():
    code = "import sys, gradmix; assert 'torch' not in sys.modules; gradmix.GradMix; "
    check = "assert 'lightning_fabric' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], check=True)
