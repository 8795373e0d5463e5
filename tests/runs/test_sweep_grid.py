"""Grids: from TOML and from Python, every combination once."""

import pytest

from gradmix.errors import InputError, UnknownNameError
from gradmix.runs.config import config_for, expand
from gradmix.runs.sweep import read_grids


def grids(tmp_path, text, **overrides):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return read_grids(path, **overrides)


def configs(tmp_path, text, **overrides):
    return expand(grids(tmp_path, text, **overrides))[0]


def test_a_list_is_an_axis_and_the_seed_changes_fastest(tmp_path):
    found = configs(tmp_path, 'seed = [0, 1]\nmix = ["none", "mixup"]\ndata = "digits"\nepochs = 3')
    assert found == [
        config_for("digits", mix=mix, seed=seed, epochs=3)
        for mix in ("none", "mixup")
        for seed in (0, 1)
    ]


def test_common_settings_and_several_grids_with_each_run_once(tmp_path):
    text = """
        data = "digits"
        seeds = ["0-1", 5]
        epochs = 2
        [[grid]]
        mix = ["none", "mixup"]
        [[grid]]
        mix = "mixup"
        alpha = [0.4, 1]
        epochs = 7
        [[grid]]
        mix = "none"
    """
    found = configs(tmp_path, text)
    assert len(found) == 2 * 3 + 2 * 3
    assert {c.seed for c in found} == {0, 1, 5}
    assert sorted({(c.mix, c.alpha, c.epochs) for c in found}, key=str) == [
        ("mixup", 0.4, 7), ("mixup", 1.0, 7), ("mixup", None, 2), ("none", None, 2),
    ]  # fmt: skip


def test_settings_that_are_lists_themselves(tmp_path):
    text = """
        data = "digits"
        method = "der"
        increments = [[5, 5], 2, [4, 6]]
        lr_steps = [1, 2]
        class_order = ["natural", "seed:1993", [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]
        options = [{alpha = 1}, {alpha = 0.5}]
    """
    found = configs(tmp_path, text)
    assert len(found) == 3 * 3 * 2
    assert {c.increments for c in found} == {(5, 5), (2,), (4, 6)}
    assert {c.lr_steps for c in found} == {(1, 2)}
    assert {c.class_order for c in found} == {"natural", "seed:1993", tuple(range(9, -1, -1))}
    assert {c.options for c in found} == {(("alpha", 1.0),), (("alpha", 0.5),)}


def test_what_the_caller_gives_replaces_what_the_file_says(tmp_path):
    text = 'data = "digits"\nepochs = 3\n[[grid]]\nepochs = [4, 5]\n'
    assert [c.epochs for c in configs(tmp_path, text, epochs=[9])] == [9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = "digits"\nepoch = 3', r"sweep.toml 'epoch': did you mean 'epochs'"),
        ('data = "digits"\n[[grid]]\nmixx = 3', "did you mean 'mix'"),
        ('data = "digits"\n[[gird]]\nmix = 3', "did you mean 'grid'"),
        ("data = [", "cannot be read as TOML"),
        ('data = "digts"', "did you mean 'digits'"),
        ('data = "digits"\nmethod = ["er", "mri"]', "did you mean 'mir'"),
        ("epochs = 3", "a grid has no data"),
        ('data = "digits"\nepochs = []', "epochs is an empty list"),
        ('data = "digits"\nseeds = []', "seeds is an empty list"),
        ('data = "digits"\nseeds = 1\nseed = 2', "both seed and seeds"),
        ('data = "digits"\nseeds = "4-2"', "seeds has '4-2'"),
        ('data = "digits"\nepochs = "20"', "epochs is '20'; give a whole number"),
        ('data = "digits"\nepochs = [[1]]', r"epochs is \[1\]; give a whole number"),
        ('data = "digits"\ngrid = 3', r"grid must be tables, each begun by \[\[grid\]\]"),
        ("data = 3", "data is 3; give text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        configs(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"absent.toml cannot be read as TOML: .*No such file"):
        read_grids(tmp_path / "absent.toml")


HALF = {"data": ["digits"], "method": ["er", "finetune"], "mix": ["mixup", "gradmix"]}


def test_a_combination_without_meaning_is_named():
    match = "data digits, method finetune, mix gradmix: mix has 'gradient' partners"
    with pytest.raises(InputError, match=match):
        expand([HALF])


def test_combinations_without_meaning_may_be_left_out():
    found, skipped = expand([{**HALF, "seed": [0, 1]}], skip_impossible=True)
    assert [(c.method, c.mix) for c in found if c.seed == 0] == [
        ("er", "mixup"), ("er", "gradmix"), ("finetune", "mixup"),
    ]  # fmt: skip
    assert len(found) == 6
    ((name, reason),) = skipped.items()
    assert name == "data digits, method finetune, mix gradmix"
    assert "replays none" in reason


def test_leaving_out_everything_or_an_unknown_name_is_an_error():
    with pytest.raises(InputError, match=r"no combination is possible; .*method finetune"):
        expand([{**HALF, "method": ["finetune"], "mix": ["gradmix"]}], skip_impossible=True)
    with pytest.raises(UnknownNameError, match="did you mean 'finetune'"):
        expand([{**HALF, "method": ["er", "fintune"]}])


def test_a_missing_plugin_is_skipped_by_name_and_the_other_runs_stay():
    grid = {**HALF, "method": ["er", "my-own"]}
    configs, skipped = expand([grid], skip_impossible=True)
    assert {config.method for config in configs} == {"er"}
    ((name, reason),) = {name.split(",")[1]: why for name, why in skipped.items()}.items()
    assert name == " method my-own"
    assert reason.startswith("unknown method 'my-own'")
    assert reason.endswith("a plugin needs --import MODULE")
    with pytest.raises(UnknownNameError, match="setting"):
        expand([{**HALF, "epoch": [1]}], skip_impossible=True)
