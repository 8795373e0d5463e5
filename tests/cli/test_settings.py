"""The settings as options: every one of them, for run and sweep alike."""

from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from gradmix.cli.arguments import ManyValues
from gradmix.cli.settings import SETTINGS, chosen, chosen_lists, with_settings
from gradmix.runs.config import RunConfig


def test_every_setting_is_an_option():
    covered = {setting.field for setting in SETTINGS}
    assert {f.name for f in fields(RunConfig)} - covered == {"data", "seed"}
    assert len(covered) == len(SETTINGS)


def parse(lists, *args):
    """What a command with the settings makes of its arguments."""
    app, seen = typer.Typer(), {}

    @app.command(cls=ManyValues)
    @with_settings(lists=lists)
    def command(own: int = 0, **settings):
        seen.update((chosen_lists if lists else chosen)(settings), own=own)

    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    assert outcome.exit_code == 0, outcome.output
    return seen


def test_one_value_each():
    given = parse(False, "--own", 3, "--exemplars", 16, "--alpha", 1, "--lr-steps", 1, 2)
    assert given == {"own": 3, "exemplars_per_class": 16, "alpha": 1.0, "lr_steps": [1, 2]}
    assert parse(False, "--option", "b=2", "a=1", "--transforms", "none") == {
        "own": 0, "options": (("a", 1.0), ("b", 2.0)), "transforms": (),
    }  # fmt: skip
    assert parse(False) == {"own": 0}


def test_lists_of_values_but_for_settings_that_are_lists():
    given = parse(
        True, "--mix", "none", "gradmix+", "--alpha", 0.4, 1, "--exemplars", 16, 64, "--own", 1,
        "--class-order", "natural", "3,1,0,2", "--increments", 4, 6, "--option", "alpha=0.3",
    )  # fmt: skip
    assert given == {
        "own": 1,
        "mix": ["none", "gradmix+"],
        "alpha": [0.4, 1.0],
        "exemplars_per_class": [16, 64],
        "class_order": ["natural", (3, 1, 0, 2)],
        "increments": [[4, 6]],
        "options": [(("alpha", 0.3),)],
    }


@pytest.mark.parametrize("lists", [False, True])
def test_every_option_is_explained(lists):
    app = typer.Typer()
    app.command()(with_settings(lists=lists)(lambda **settings: None))
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"}).output
    for setting in SETTINGS:
        assert f"--{setting.name.replace('_', '-')} " in text
        assert setting.help in text
