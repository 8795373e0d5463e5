"""Ways to call the command line in tests."""

import subprocess
import sys

from typer.testing import CliRunner

from gradmix.cli import app

PROGRAM = [sys.executable, "-c", "from gradmix.cli import main; main()"]


def gradmix(*args, expect=0):
    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    if expect == 0 and outcome.exception:
        raise outcome.exception
    assert outcome.exit_code == expect
    return outcome.stdout


def shell(*args, **kwargs):
    """The real program, in a process of its own."""
    command = [*PROGRAM, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)
