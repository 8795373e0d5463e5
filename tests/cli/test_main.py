"""The command line as a whole."""

import errno
import subprocess
import sys

import pytest
from cli_cases import gradmix, shell

from gradmix import __version__
from gradmix.cli import main


def test_list_names_everything():
    text = gradmix("list")
    for name in ("digits", "fashion-mnist", "er", "balanced-mixup", "gradmix+", "mlp"):
        assert name in text


def test_version():
    assert gradmix("--version").strip() == f"gradmix {__version__}"


@pytest.mark.parametrize(
    "command", ["run", "sweep", "results", "report", "demo", "learn", "predict", "inspect"]
)
def test_help_needs_no_torch(command):
    call = f"app(['{command}', '--help'], standalone_mode=False)"
    code = f"import sys; from gradmix.cli import app; {call}"
    check = "; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code + check], check=True, capture_output=True)


def test_importing_gradmix_is_lazy():
    code = "import sys, gradmix; assert 'torch' not in sys.modules; gradmix.GradMix; "
    check = "assert 'lightning_fabric' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], check=True)


def test_what_the_system_refuses_is_one_line(monkeypatch, capsys):
    def refuse(**_):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/a.json")

    monkeypatch.setattr("gradmix.cli.app", refuse)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said == "error: [Errno 28] No space left on device: 'runs/a.json'\n"


def test_brackets_in_an_error_are_shown(tmp_path):
    (tmp_path / "sweep.toml").write_text("grid = 3\n")
    outcome = shell("sweep", tmp_path / "sweep.toml")
    assert outcome.returncode == 2
    assert "[[grid]]" in outcome.stderr
