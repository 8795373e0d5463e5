"""Configurations: the protocol of each data set, and what is refused before any work."""

import pytest

from gradmix.data import DATASETS
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing.recipe import RECIPES, parse_recipe
from gradmix.runs import config as configs
from gradmix.runs.comparisons import is_control
from gradmix.runs.config import RunConfig, config_for, controls_of, expand
from gradmix.runs.results import result_name
from gradmix.settings import PRESETS, TrainingSettings


def test_every_data_set_has_a_protocol():
    assert PRESETS.keys() == DATASETS.keys()
    assert config_for("folder:photos@32").model == "resnet18"


@pytest.mark.parametrize(
    ("data", "epochs", "steps", "per_task"),
    [
        ("cifar-10", 50, (), 2),
        ("cifar-100", 250, (100, 150, 200), 10),
        ("tiny-imagenet", 100, (30, 60, 90), 20),
    ],
)
def test_the_paper_s_protocol_for_photos(data, epochs, steps, per_task):
    c = config_for(data)
    assert (c.model, c.lr, c.epochs, c.lr_steps) == ("resnet18", 0.1, epochs, steps)
    assert c.increments == (per_task,)


@pytest.mark.parametrize(
    ("data", "mix", "alpha"),
    [
        ("cifar-100", "mixup", 1.0),
        ("cifar-100", "manifold-mixup", 2.0),
        ("tiny-imagenet", "mixup", 0.4),
        ("tiny-imagenet", "gradmix+", 0.4),
        ("tiny-imagenet", "manifold-mixup", 0.2),
        ("tiny-imagenet", "cutmix", 1.0),
        ("tiny-imagenet", "balanced-mixup", 0.2),
    ],
)
def test_the_paper_s_alpha_of_each_mix_and_data_set(data, mix, alpha):
    assert config_for(data, mix=mix).recipe.alpha == alpha
    assert config_for(data, mix=mix, alpha=0.7).recipe.alpha == 0.7


@pytest.mark.parametrize(("data", "validation"), [("mnist", 10_000), ("fashion-mnist", 0)])
def test_the_paper_s_protocol(data, validation):
    c = config_for(data, mix="mixup")
    assert (c.model, c.epochs, c.lr, c.momentum, c.weight_decay) == ("mlp", 20, 0.01, 0.9, 0.0)
    assert (c.batch_size, c.replay_batch_size, c.exemplars_per_class) == (64, 64, 32)
    assert (c.increments, c.class_order, c.validation) == ((2,), "natural", validation)
    assert (c.criterion_exemplars, c.pairing, c.average) == (32, "one-to-one", "sample")
    assert c.recipe.alpha == 1.0


def test_none_leaves_a_field_and_a_value_changes_it():
    c = config_for("mnist", epochs=None, lr=0.5)
    assert (c.epochs, c.lr) == (20, 0.5)
    assert c.part(TrainingSettings).lr == 0.5


def test_a_total_replaces_the_number_per_class():
    c = config_for("mnist", memory_total=100)
    assert (c.exemplars_per_class, c.memory_total) == (None, 100)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("method", "err", "did you mean 'er'"),
        ("model", "mpl", "did you mean 'mlp'"),
        ("mix", "mixpu", "did you mean 'mixup'"),
        ("mix", "gradients:linear:remix", "did you mean 'gradient'"),
        ("mix", "gradient:lin:remix", "unknown blend 'lin'"),
        ("precision", "fp32", "unknown precision 'fp32'"),
        ("evaluate_on", "train", "unknown evaluate_on 'train'"),
        ("alpha", 0.0, "alpha is 0.0"),
        ("alpha", -1.0, "alpha is -1.0"),
        ("alpha", float("nan"), "alpha is nan"),
        ("epochs", 0, "epochs is 0"),
        ("lr", -0.1, "lr is -0.1"),
        ("momentum", 1.5, "momentum is 1.5"),
        ("batch_size", 0, "batch_size is 0"),
        ("threads", 0, "threads is 0"),
        ("seed", -1, "seed is -1"),
        ("evaluate_on", "validation", "hold out samples"),
        ("colour", "red", "unknown setting 'colour'"),
        ("exemplars_per_class", 0, "exemplars_per_class is 0"),
        ("memory_total", 0, "memory_total is 0"),
        ("criterion_exemplars", 0, "criterion_exemplars is 0"),
        ("pairing", "one", "unknown pairing 'one'"),
        ("average", "mean", "unknown average 'mean'"),
        ("validation", -1, "validation is -1"),
        ("head", "grown", "unknown head 'grown'"),
        ("transforms", ("crop", "flop"), "did you mean 'flip'"),
        (
            "options",
            (("alpha", 1.0),),
            "option (--option) is 'alpha', but this method has no options",
        ),
        ("tables", 0, "tables is 0"),
        ("threads", 10**6, "threads is 1000000; give 1024 or less"),
        ("analyses", ("heatmap", "heatmap"), "name each only once"),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        config_for("fashion-mnist", **{setting: value})


def test_two_budgets_are_refused():
    with pytest.raises(InputError, match="exemplars_per_class is 7 and memory_total 50"):
        config_for("digits", exemplars_per_class=7, memory_total=50)
    assert config_for("digits", memory_total=50).exemplars_per_class is None


def test_an_unknown_data_set():
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        config_for("mnits")


def test_no_mix_has_no_alpha():
    with pytest.raises(InputError, match="'none' has no mixing ratio"):
        config_for("mnist", mix="none", alpha=1.0)


def test_json_form_names_every_field():
    config = RunConfig(data="digits", increments=(5, 5))
    assert config.to_json()["increments"] == [5, 5]
    assert config.to_json()["options"] == {}
    with_options = config_for("digits", method="der", options=(("alpha", 0.2),))
    assert with_options.to_json()["options"] == {"alpha": 0.2}


@pytest.mark.parametrize("method", ["finetune", "joint", "lwf", "ewc", "gdumb"])
def test_methods_without_a_memory_refuse_gradient_partners(method):
    with pytest.raises(InputError, match="replays none; give a mix without gradients"):
        config_for("digits", method=method, mix="gradmix+")
    assert config_for("digits", method=method, mix="mixup").method == method
    assert config_for("digits", method=method).mix == "balanced-remix"  # the default


def spelled_out(mix):
    """Return a named mix as partners:blend:labels."""
    recipe = parse_recipe(mix)
    return f"{recipe.partners}:{recipe.blend}:{recipe.labels}"


@pytest.mark.parametrize("data", [*PRESETS, "folder:photos"])
@pytest.mark.parametrize("mix", list(RECIPES))
def test_a_named_mix_and_its_spelled_out_form_are_one_recipe_on_every_data_set(data, mix):
    named, spelled = (config_for(data, mix=text).recipe for text in (mix, spelled_out(mix)))
    assert named == spelled


def test_alpha_follows_the_axes_of_a_mix_without_a_name():
    alpha = {
        mix: config_for("tiny-imagenet", mix=mix).recipe.alpha
        for mix in (
            "gradient:manifold:remix", "gradient:cutmix:remix", "class-balanced:linear:remix",
            "class-balanced:cutmix:remix", "gradient-keep-original:linear:proportional",
        )
    }  # fmt: skip
    assert list(alpha.values()) == [0.2, 1.0, 1.0, 0.2, 0.4]


@pytest.mark.parametrize(
    ("data", "mix", "expected"),
    [
        (
            "mnist",
            "gradmix+",
            [("balanced-remix", None, None), ("shuffle:linear:remix", None, 0.75)],
        ),
        ("mnist", "gradmix", [("balanced-mixup", 1.0, None), ("mixup", None, None)]),
        ("digits", "gradmix+", [("balanced-remix", None, 0.5), ("remix", None, 0.5)]),
        ("tiny-imagenet", "gradmix", [("balanced-mixup", 0.4, None), ("mixup", 0.4, None)]),
        ("mnist", "remix", []),
        ("mnist", "none", []),
    ],
)
def test_controls_have_the_same_labels_and_ratio_and_no_gradients(data, mix, expected):
    config = config_for(data, mix=mix, analyses=["class-distance"] if mix == "gradmix+" else None)
    controls = controls_of(config)
    assert [(c.mix, c.alpha, c.tau) for c in controls] == expected
    for control in controls:
        assert not control.recipe.uses_gradients
        assert is_control(control.to_json(), config.to_json())


def test_a_control_that_is_a_named_mix_is_the_same_run():
    config = config_for("tiny-imagenet", mix="gradmix")
    assert controls_of(config)[1] == config_for("tiny-imagenet", mix="mixup")
    for data in ("mnist", "digits"):
        plus = config_for(data, mix="gradmix+")
        assert controls_of(plus)[0] == config_for(data) == config_for(data, mix="balanced-remix")


def test_a_changed_file_of_weights_is_another_configuration(tmp_path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"1")
    before = config_for("digits", weights=str(file))
    assert before == config_for("digits", weights=str(file))
    assert len(before.weights_version) == 12
    file.write_bytes(b"2")
    after = config_for("digits", weights=str(file))
    assert result_name(after.to_json()) != result_name(before.to_json())
    missing = config_for("digits", weights=str(tmp_path / "nothing"))
    assert missing.weights_version == config_for("digits").weights_version == ""


def test_a_configuration_without_weights_keeps_the_name_of_its_result():
    older = config_for("digits").to_json()
    name = result_name(older)
    del older["weights_version"]  # files of earlier versions lack it
    assert result_name(older) == name


def test_a_grid_reads_a_file_of_weights_once(tmp_path, monkeypatch):
    file, read = tmp_path / "a.safetensors", []
    file.write_bytes(b"1")
    monkeypatch.setattr(configs, "weights_version", lambda path: read.append(path) or "digest")
    found, _ = expand([{"data": ["digits"], "weights": [str(file)], "seed": [0, 1, 2]}])
    assert read == [str(file)]
    assert {config.weights_version for config in found} == {"digest"}
