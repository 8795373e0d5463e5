"""Plugins: one call registers one, which every part of gradmix then knows."""

import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from gradmix import Recipe, config_for, register, run
from gradmix.data import load_dataset
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import ER
from gradmix.models import MLP
from gradmix.settings import PRESETS
from gradmix.training.metrics import LOWER_IS_BETTER
from gradmix.types import Partners

pytestmark = pytest.mark.usefixtures("plugins")


def neighbours(request):
    """Mix each sample with the next one of its batch."""
    rows = torch.arange(request.y.shape[1], device=request.y.device).roll(-1)
    return Partners(rows.expand_as(request.y))


def own_input(x, partners, lam):
    """Return the inputs unmixed."""
    return x


def own_label(y, partner_y, lam, counts, tau):
    """Return the whole own label."""
    return torch.ones_like(y, dtype=torch.float32)


def test_one_of_each_axis_leaves_batches_unmixed_if_it_says_so():
    register("partners", "neighbours", neighbours)
    register("blend", "own-input", own_input)
    register("labels", "own-label", own_label)
    register("mix", "nothing", Recipe("neighbours", "own-input", "own-label"))
    plain = run(config_for("digits", mix="none", epochs=1))
    for mix in ("nothing", "neighbours:own-input:own-label"):
        result = run(config_for("digits", mix=mix, epochs=1))
        assert result.accuracy == plain.accuracy
        assert sum(map(sum, result.pair_counts[1])) > 0


def test_a_partner_rule_named_after_gradients_gets_pair_tables():
    seen = []

    def veto(request):
        """Keep harmful samples unmixed."""
        own = torch.arange(request.y.shape[1]).expand_as(request.y)
        rows = request.permutations()
        harmful = request.harmful(request.y.gather(1, rows))
        seen.append(bool(harmful.any()))
        return Partners(torch.where(harmful, own, rows))

    register("partners", "gradient-veto", veto)
    result = run(config_for("digits", mix="gradient-veto:linear:remix", tables=8, epochs=2))
    kept = run(config_for("digits", mix="gradient-keep-original:linear:remix", epochs=2))
    assert any(seen)
    assert result.accuracy == kept.accuracy


def test_a_method_network_data_set_and_metric():
    class Own(ER):
        """ER under another name."""

    register("method", "own", Own)
    register("model", "tiny", lambda shape, outputs: MLP(64, outputs, (8,)))
    settings = {**PRESETS["digits"], "model": "tiny", "epochs": 2, "increments": (5,)}
    register("dataset", "half", lambda: load_dataset("digits"), defaults=settings)
    register("metric", "worst_task", lambda matrix, _: matrix[-1].min(), lower_is_better=True)
    config = config_for("half", method="own", mix="none")
    assert (config.model, config.epochs, config.increments) == ("tiny", 2, (5,))
    result = run(config)
    assert result.metrics["worst_task"] == min(result.accuracy[-1])
    assert "worst_task" in LOWER_IS_BETTER
    same = run(config_for("digits", model="tiny", epochs=2, increments=5, mix="none"))
    assert result.accuracy == same.accuracy


@pytest.mark.parametrize(
    ("kind", "name", "thing", "message"),
    [
        ("methods", "x", ER, "did you mean 'method'"),
        ("method", "er", ER, "is a method of gradmix"),
        ("blend", "cutmix", own_input, "is a blend of gradmix"),
        ("mix", "none", "shuffle:linear:remix", "is a mix of gradmix"),
        ("mix", "a:b", "shuffle:linear:remix", "use letters, digits"),
        ("mix", "x", "none", "does not mix"),
        ("mix", "x", "a:b:c", "unknown partners 'a'"),
        ("method", "x", MLP, "a class derived from Method"),
        ("metric", "x", 3, "a metric is a function"),
    ],
)
def test_what_cannot_be_registered_is_refused(kind, name, thing, message):
    with pytest.raises(InputError, match=message):
        register(kind, name, thing)


def test_a_second_plugin_replaces_the_first():
    register("mix", "own", "shuffle:linear:remix")
    register("mix", "own", "shuffle:cutmix:remix", summary="cut")
    assert config_for("digits", mix="own").recipe.blend == "cutmix"


def test_a_missing_plugin_is_named_with_the_remedy():
    for setting in ({"method": "own-method"}, {"mix": "own-mix"}, {"mix": "own:linear:remix"}):
        with pytest.raises(UnknownNameError, match=r"unknown .*own.*; a plugin needs --import"):
            config_for("digits", **setting)
    with pytest.raises(UnknownNameError, match=r"unknown data set 'own'.*a plugin needs --import"):
        config_for("own")


def test_entry_points_are_loaded_and_a_broken_one_is_an_error_of_its_own_name(
    plugins, monkeypatch, tmp_path
):
    (tmp_path / "plugin_package.py").write_text("from gradmix.methods import ER as Own")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("own", "plugin_package:Own", "gradmix.methods"),
        EntryPoint("broken", "plugin_package:Missing", "gradmix.methods"),
    ]
    wanted = lambda group: [point for point in points if point.group == group]  # noqa: E731
    monkeypatch.setattr(plugins, "entry_points", wanted)
    plugins.load_entry_points.cache_clear()
    assert config_for("digits", method="own").method == "own"
    with pytest.raises(UnknownNameError, match="cannot be loaded: plugin_package:Missing"):
        config_for("digits", method="broken")
    plugins.load_entry_points.cache_clear()


def test_modules_are_imported_from_the_current_folder(plugins, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_mixes.py").write_text(
        "import gradmix\ngradmix.register('mix', 'mine', 'shuffle:linear:remix')"
    )
    plugins.import_plugins(["my_mixes"])
    assert config_for("digits", mix="mine").recipe.labels == "remix"
    (tmp_path / "my_errors.py").write_text("1 / 0")
    with pytest.raises(InputError, match=r"import is 'my_errors'.*ZeroDivisionError"):
        plugins.import_plugins(["my_errors"])


def test_a_changed_image_folder_is_another_configuration(tmp_path):
    (tmp_path / "a").mkdir()
    photo = tmp_path / "a" / "1.png"
    photo.write_bytes(b"1")
    name = f"folder:{tmp_path}@8"
    before = config_for(name)
    assert before == config_for(name)
    assert len(before.data_version) == 12
    photo.write_bytes(b"22")
    changed = config_for(name)
    assert changed.data_version != before.data_version
    (tmp_path / "a" / "2.png").write_bytes(b"1")
    assert config_for(name).data_version not in (before.data_version, changed.data_version)
    assert config_for("folder:nowhere").data_version == config_for("mnist").data_version == ""
