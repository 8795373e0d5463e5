"""Settings as options: generated for run and sweep alike."""

import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gradmix.cli.settings import (
    OPTIONS,
    GradMixCommand,
    chosen,
    help_of,
    naming_options,
    option,
    with_settings,
)
from gradmix.errors import InputError, UnknownNameError
from gradmix.settings import RunSettings


def test_every_setting_is_an_option():
    assert RunSettings.model_fields.keys() - OPTIONS.keys() == {
        *("data", "data_version", "seed", "weights_version")
    }


def parse(*args):
    """Return what a command with the settings makes of its arguments."""
    app, seen = typer.Typer(), {}

    @app.command(cls=GradMixCommand)
    @with_settings
    def command(own: int = 0, **settings):
        seen.update(chosen(settings), own=own)

    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    assert outcome.exit_code == 0, outcome.output
    return seen


@pytest.mark.parametrize("flag", ["--exemplars", "--exemplars-per-class"])
def test_every_value_is_a_list(flag):
    given = parse("--own", 3, flag, 16, "--alpha", 1, "--lr-steps", 1, 2)
    assert given == {"own": 3, "exemplars_per_class": [16], "alpha": [1.0], "lr_steps": [[1, 2]]}
    assert parse("--option", "b=2", "a=1", "--transforms", "none") == {
        "own": 0, "options": [["b=2", "a=1"]], "transforms": [["none"]],
    }  # fmt: skip
    assert parse() == {"own": 0}


def test_several_values_except_for_settings_that_are_lists():
    given = parse(
        "--mix", "none", "gradmix+", "--alpha", 0.4, 1, "--exemplars", 16, 64, "--own", 1,
        "--class-order", "natural", "3,1,0,2", "--increments", 4, 6, "--option", "alpha=0.3",
    )  # fmt: skip
    assert given == {
        "own": 1,
        "mix": ["none", "gradmix+"],
        "alpha": [0.4, 1.0],
        "exemplars_per_class": [16, 64],
        "class_order": ["natural", "3,1,0,2"],
        "increments": [[4, 6]],
        "options": [["alpha=0.3"]],
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "--data", "digits", "--exemplars", "many"),
         "--exemplars is 'many'; give a whole number"),
        (("run", "--data", "digits", "--lr", 0.1, "high"), "--lr is 'high'; give a number"),
        (("sweep", "--data", "digits", "--epochs=2.5"), "--epochs is '2.5'; give a whole number"),
        (("learn", "photos", "--model", "m", "--exemplars", "many"),
         "--exemplars is 'many'; give a whole number"),
        (("predict", "m", "photo.jpg", "--top", 0), "--top is '0'; give 1 or more"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_named(call_main, args, message):
    outcome = call_main(*args)
    assert outcome.returncode == 2
    assert outcome.stderr == f"error: {message}\n"


def test_errors_name_the_option_beside_the_setting():
    rate = naming_options({"lr": "--rate"})
    with pytest.raises(InputError, match=r"^lr \(--rate\) is 0; the_lr is 1$"), rate:
        raise InputError("lr is 0; the_lr is 1")
    with pytest.raises(UnknownNameError, match="did you mean 'er'"), naming_options({"a": "--b"}):
        raise UnknownNameError("method", "err", ["er"])


def test_every_option_is_explained():
    app = typer.Typer()
    app.command()(with_settings(lambda **settings: None))
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "400"}).output
    for name, setting in OPTIONS.items():
        for flag in setting.flags or [f"--{name.replace('_', '-')}"]:
            assert re.search(rf"{flag}[ ,]", text)
        assert help_of(setting) in text


def test_help_states_the_default():
    helps = {name: help_of(setting) for name, setting in OPTIONS.items()}
    assert helps["momentum"] == "Momentum of SGD. Default: 0.9."
    assert helps["epochs"].endswith("Default: depends on the data set.")
    assert helps["alpha"].endswith("Default: depends on the mix.")
    assert helps["mix_first_task"].endswith("Default: depends on the mix.")
    assert helps["memory_total"].endswith("Default: none.")
    assert helps["analyses"].endswith("Default: none.")


def test_settings_need_no_torch():
    code = "import sys, gradmix.settings, gradmix.cli.settings; "
    check = "assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], check=True)


def test_help_names_the_type_of_a_value_and_the_possible_values():
    def annotation(name, **more):
        about = option(name, OPTIONS[name], help_of(OPTIONS[name]), **more).annotation
        return about.__metadata__[0]

    assert annotation("mix", many=True).metavar == "TEXT ..."
    assert annotation("lr", many=True).metavar == "NUMBER ..."
    assert annotation("epochs").metavar == "INTEGER"
    assert "Values: steps, constant, cosine, one-cycle. Default:" in annotation("schedule").help
    assert "Values" not in annotation("finetune").help  # its text has them
