"""The command line as a whole."""

import errno
import signal
import subprocess
import sys
import time

import pytest

from gradmix import __version__
from gradmix.cli import main


def test_list_names_everything(gradmix):
    text = gradmix("list")
    for name in ("digits", "fashion-mnist", "er", "balanced-remix", "gradmix+", "mlp"):
        assert name in text


def test_version(gradmix):
    assert gradmix("--version").strip() == f"gradmix {__version__}"


@pytest.mark.parametrize("extra", ["export", "serve"])
def test_help_names_the_extra_of_a_command(gradmix, extra):
    assert f"needs the extra `{extra}`" in " ".join(gradmix(extra, "--help").split())


def test_help_needs_no_torch():
    code = """
import sys
from gradmix.cli.commands import app
for command in sys.argv[1:]:
    app([command, "--help"], standalone_mode=False)
    assert not {"torch", "numpy", "sklearn"} & set(sys.modules), (command, sys.modules.keys())
"""
    commands = [
        "run",
        "sweep",
        "results",
        "report",
        "demo",
        "learn",
        "predict",
        "inspect",
        "export",
        "serve",
    ]
    subprocess.run([sys.executable, "-c", code, *commands], check=True, capture_output=True)


def test_importing_gradmix_is_lazy():
    code = "import sys, gradmix; assert 'torch' not in sys.modules; gradmix.GradMix; "
    check = "assert 'lightning_fabric' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], check=True)


@pytest.fixture
def signals():
    """Restore the handler of Ctrl-C, which `main` changes for the rest of the process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("signals")
def test_what_the_system_refuses_is_one_line(monkeypatch, capsys):
    def refuse(**_):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/a.json")

    monkeypatch.setattr("gradmix.cli.commands.app", refuse)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said == "error: [Errno 28] No space left on device: 'runs/a.json'\n"


def test_brackets_in_an_error_are_shown(call_main, tmp_path):
    (tmp_path / "sweep.toml").write_text("grid = 3\n")
    outcome = call_main("sweep", tmp_path / "sweep.toml")
    assert outcome.returncode == 2
    assert "[[grid]]" in outcome.stderr


def interrupt_twice(command, ready, between):
    """Start a program, send two interrupts once it is ready, return its exit code and errors."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    ready(process)
    process.send_signal(signal.SIGINT)
    time.sleep(between)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@pytest.mark.slow  # `test_ctrl_c_keeps_what_is_finished` presses it twice, too
@pytest.mark.parametrize("between", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_second_ctrl_c_prints_no_traceback(program, tmp_path, command, between):
    def ready(process):
        while not list(tmp_path.glob("running/*")):
            time.sleep(0.01)
            assert process.poll() is None

    arguments = [command, "--data", "digits", "--epochs", "2000", "--out", str(tmp_path)]
    code, errors = interrupt_twice([*program, *arguments], ready, between)
    assert code == 130
    assert "Traceback" not in errors
    assert "stopped: 0 of 1 runs are finished" in errors


@pytest.mark.parametrize(
    "module", ["torch", *(pytest.param(m, marks=pytest.mark.slow) for m in ("typer", "torch.nn"))]
)  # torch swallows an interrupt while it imports numpy
def test_ctrl_c_during_the_imports_prints_no_traceback(module, tmp_path):
    code = """
import os, signal, sys
from gradmix.cli import main

class InterruptedTwice:
    def find_spec(name, *_):
        if name == module:
            sys.meta_path.remove(InterruptedTwice)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, InterruptedTwice)
main()
"""
    command = [sys.executable, "-c", code, module, "run", "--data", "digits", "--epochs", "2000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
