"""The plugins of the cookbook, used from a folder outside the repository."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradmix.cli.commands import app
from gradmix.training import checkpoint

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
KINDS = ("method", "mix", "partners", "blend", "labels", "model", "dataset", "metric", "logger")
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


def gradmix(folder, *args):
    """Run the program in the folder."""
    command = [sys.executable, "-c", USUAL, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1200)
    assert done.returncode == 0, done.stderr


WHAT = ["--import", "my_plugins", "--data", "digits", "--epochs", "1"]
OWN = ["--method", "replay-twice", "--mix", "other-class:linear:remix"]


def accuracies(folder, store):
    return {
        path.name: json.loads(path.read_text())["accuracy"]
        for path in (folder / store).glob("digits*.json")
    }


@pytest.fixture(scope="module")
def whole(folder):
    """The results of a sweep with two workers: two methods and two seeds."""
    seeds = ("--seeds", 0, 1, "--jobs", 2)
    gradmix(folder, "sweep", *WHAT, *OWN, "--method", "er", *seeds, "--out", "whole")
    return accuracies(folder, "whole")


class StoppedError(Exception):
    """In place of a crash."""


def test_a_stopped_run_resumes_and_workers_know_the_plugins(folder, here, whole, monkeypatch):
    run = ["run", *WHAT, *OWN, "--out", "stopped"]
    save = checkpoint.Checkpoint.save

    def save_and_stop(saved):
        save(saved)
        if saved._training.position.task == 2:
            raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "SHARE", 1e9)  # after every task
        patch.setattr(checkpoint.Checkpoint, "save", save_and_stop)
        with pytest.raises(StoppedError):
            here(*run)
    assert list((folder / "stopped").glob("*.checkpoint"))
    here(*run)
    (stopped,) = accuracies(folder, "stopped").items()
    assert stopped in whole.items()
    assert len(whole) == 4


@pytest.mark.usefixtures("whole")
def test_results_and_report_compare_plugins_without_importing_them(folder, here):
    text = here("results", "whole", "--against", "method=er")
    assert "replay-twice" in text
    assert "other-class" in text
    assert "Δ method=er" in text
    here("report", "whole", "--against", "er")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "replay-twice + other-class:linear:remix" in page
    assert "Δ er" in page


@pytest.mark.slow
def test_reproduce_has_rows_of_plugins_and_leaves_them_out_if_they_are_missing(folder):
    what = ["main-er", "--data", "digits", "--seeds", 0, "--scale", "small", "--to", "pages"]
    own = ["--mix", "other-class:linear:remix", "--method", "replay-twice"]
    gradmix(folder, "reproduce", *what, *own, "--import", "my_plugins")
    page = folder / "pages" / "main-er-small.md"
    assert "replay-twice + other-class:linear:remix" in page.read_text(encoding="utf-8")
    command = [sys.executable, "-c", USUAL, "reproduce", *map(str, what), "--mix", "none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "rows of 'replay-twice' are omitted: unknown method 'replay-twice'" in done.stderr
    gradmix(folder, "reproduce", *what, "--mix", "mixup", "--import", "my_plugins")
    text = page.read_text(encoding="utf-8")
    for row in ("ER", "ER + Mixup", "replay-twice + other-class:linear:remix"):
        assert f"| {row} |" in text


TUTORIAL = PAGE.with_name("tutorials") / "own_method.md"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay-twice", "smooth-replay"])
def test_the_methods_of_the_docs_compute_the_same_on_two_devices(tmp_path, method):
    (tutorial,) = re.findall(
        r"^class SmoothReplay.*?(?=^```)", TUTORIAL.read_text("utf-8"), re.M | re.S
    )
    imports = "from torch.nn.functional import cross_entropy, one_hot\n"
    code = example("method").partition("result =")[0] + imports + tutorial
    (tmp_path / "my_plugins.py").write_text(code, encoding="utf-8")
    what = ["run", *WHAT, "--method", method, "--mix", "none", "--increments", 5]
    losses = []
    for devices in (1, 2):
        gradmix(tmp_path, *what, "--devices", devices, "--out", f"on-{devices}")
        (path,) = (tmp_path / f"on-{devices}").glob("digits*.json")
        losses.append([stage["loss"][0] for stage in json.loads(path.read_text())["epochs"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
