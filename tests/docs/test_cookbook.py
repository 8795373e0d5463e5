"""The plugins of the cookbook, used from a folder outside the repository."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradmix.cli.commands import app

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
KINDS = ("method", "mix", "partners", "blend", "labels", "model", "dataset", "metric", "logger")
KILLED = """
import os, signal
from gradmix.training import checkpoint
checkpoint.EVERY_SECONDS, checkpoint.SHARE, checkpoint.FIRST_GUESS = 0.0, 1e9, (0.0, 1e99)
save = checkpoint.Checkpoint.save
def save_and_die(self):
    save(self)
    if self._training.position.task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.Checkpoint.save = save_and_die
from gradmix.cli import main
main()
"""
USUAL = "from gradmix.cli import main; main()"


def example(kind):
    (code,) = [code for code in EXAMPLES if f'register("{kind}"' in code]
    return code


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_plugin_of_each_kind_in_under_30_lines(kind):
    assert len(example(kind).splitlines()) < 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the method and the partner rule of the cookbook in one module."""
    folder = tmp_path_factory.mktemp("outside")
    code = example("method") + example("partners")
    lines = [line for line in code.splitlines() if not line.startswith("result =")]
    (folder / "my_plugins.py").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def here(folder, plugins, monkeypatch):
    """Return a function that runs a command in this process and in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def call(*args):
        outcome = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.stdout

    yield call
    sys.modules.pop("my_plugins", None)


def gradmix(folder, *args, code=USUAL, expect=0):
    """Run the program in the folder, and return its output."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1200)
    assert done.returncode == expect, done.stderr
    return done.stdout


WHAT = ["--import", "my_plugins", "--data", "digits", "--epochs", "2"]
OWN = ["--method", "my-er-ace", "--mix", "other-class:linear:remix"]


def accuracies(folder, store):
    return {
        path.name: json.loads(path.read_text())["accuracy"]
        for path in (folder / store).glob("digits*.json")
    }


def test_a_killed_run_resumes_and_workers_know_the_plugins(folder, here):
    gradmix(folder, "sweep", *WHAT, *OWN, "--seeds", 0, 1, "--jobs", 2, "--out", "whole")
    run = ["run", *WHAT, *OWN, "--out", "killed"]
    gradmix(folder, *run, code=KILLED, expect=-signal.SIGKILL)
    assert list((folder / "killed").glob("*.checkpoint"))
    here(*run)
    (killed,) = accuracies(folder, "killed").items()
    assert killed in accuracies(folder, "whole").items()
    assert len(accuracies(folder, "whole")) == 2


def test_results_and_report_compare_plugins_without_importing_them(folder, here):
    gradmix(folder, "run", *WHAT, *OWN, "--method", "er", "--seeds", 0, 1, "--out", "both")
    text = here("results", "both", "--against", "method=er")
    assert "my-er-ace" in text
    assert "other-class" in text
    assert "Δ method=er" in text
    here("report", "both", "--against", "er")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "my-er-ace + other-class:linear:remix" in page
    assert "Δ er" in page


@pytest.mark.slow
def test_reproduce_has_rows_of_plugins_and_leaves_them_out_if_they_are_missing(folder):
    what = ["main-er", "--data", "digits", "--seeds", 0, "--scale", "small", "--to", "pages"]
    own = ["--mix", "other-class:linear:remix", "--method", "my-er-ace"]
    gradmix(folder, "reproduce", *what, *own, "--import", "my_plugins")
    page = folder / "pages" / "main-er-small.md"
    assert "my-er-ace + other-class:linear:remix" in page.read_text(encoding="utf-8")
    command = [sys.executable, "-c", USUAL, "reproduce", *map(str, what), "--mix", "none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "rows of 'my-er-ace' are left out: unknown method 'my-er-ace'" in done.stderr
    gradmix(folder, "reproduce", *what, "--mix", "mixup", "--import", "my_plugins")
    text = page.read_text(encoding="utf-8")
    for row in ("ER", "ER + Mixup", "my-er-ace + other-class:linear:remix"):
        assert f"| {row} |" in text
