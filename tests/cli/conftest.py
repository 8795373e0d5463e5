"""Ways to call the command line in tests."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gradmix.cli import main
from gradmix.cli.commands import app

PROGRAM = [sys.executable, "-c", "from gradmix.cli import main; main()"]


@pytest.fixture(scope="session")
def program():
    """The command that starts the real program."""
    return PROGRAM


@pytest.fixture(scope="session")
def invoke():
    """Return a function that runs a command in this process and returns its outcome."""

    def call(*args):
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return call


@pytest.fixture(scope="session")
def gradmix(invoke):
    """Return a function that runs a command in this process and returns its standard output."""

    def call(*args, expect=0):
        outcome = invoke(*args)
        if expect == 0 and outcome.exception:
            raise outcome.exception
        assert outcome.exit_code == expect
        return outcome.stdout

    return call


@pytest.fixture
def call_main(monkeypatch, capsys):
    """Return a function that calls `main` in this process and returns code and output."""

    def call(*args):
        monkeypatch.setattr("sys.argv", ["gradmix", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=left.value.code, stdout=said.out, stderr=said.err)

    return call


@pytest.fixture(scope="session")
def shell():
    """Return a function that runs the real program in a process of its own."""

    def call(*args, **kwargs):
        command = [*PROGRAM, *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=1200, **kwargs)

    return call
