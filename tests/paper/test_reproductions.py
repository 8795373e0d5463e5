"""What the paper's tables and figures need to be run, and what is read from it."""

from dataclasses import asdict

import pytest

from gradmix import config_for, run
from gradmix.errors import UnknownNameError
from gradmix.paper.reproductions import configs_of, find_reproduction, reproductions, select_lines
from gradmix.runs.config import controls_of

TABLES = [
    *("main-er", "main-mir", "main-gss", "main-der", "main-foster", "compatibility", "ablation"),
    *("buffer-size", "alpha", "detrimental-rate", "precision-recall", "runtime", "imagenet"),
    "backbone",
]
FIGURES = [
    *("forgetting", "sequential", "heatmap", "approximation-error", "class-distance"),
    "runtime-per-epoch",
]


def configs(name, data="mnist", seeds=(0,), scale="full"):
    lines = find_reproduction(name).lines
    return {line.label: configs_of(line, data, seeds, scale)[0] for line in lines}


def test_every_table_and_figure_is_there():
    known = reproductions()
    assert {name for name, one in known.items() if one.kind == "table"} == set(TABLES)
    assert {name for name, one in known.items() if one.kind == "figure"} == set(FIGURES)


@pytest.mark.parametrize("name", [*TABLES, *FIGURES])
@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("data", ["mnist", "cifar-100", "imagenet"])
def test_all_of_them_can_be_configured_for_any_data(name, scale, data):
    for config in configs(name, data, scale=scale).values():
        assert config.data == data
        assert config.epochs <= 12 or scale == "full"


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'main-er'"):
        find_reproduction("main-err")


def test_the_main_table_has_a_line_for_every_mix_of_the_paper_and_both_forms_of_gradmix():
    runs = configs("main-er")
    assert len(runs) == 12
    assert runs["ER"] == config_for("mnist", mix="none")
    assert runs["ER + RandAugment"].transforms == ("randaugment",)
    assert runs["ER + RandAugment"].mix == "none"
    assert runs["ER + GradMix (Algorithm 1)"].mix == "gradmix"
    assert runs["ER + gradmix+"] == config_for("mnist", mix="gradmix+")


def test_the_main_table_has_the_gradient_free_controls_of_gradmix():
    runs = configs("main-er")
    controls = controls_of(runs["ER + gradmix+"])
    assert controls == [
        runs[f"ER + {kind} control of gradmix+"] for kind in ("balanced", "shuffled")
    ]
    controls = controls_of(runs["ER + GradMix (Algorithm 1)"])
    assert controls == [runs["ER + balanced control of GradMix"], runs["ER + Mixup"]]


@pytest.mark.parametrize("name", ["main-er", "ablation", "alpha", "compatibility", "forgetting"])
def test_every_gradient_mix_has_its_controls_beside_it(name):
    runs = list(configs(name).values())
    controls = [control for config in runs for control in controls_of(config)]
    assert controls
    assert all(control in runs for control in controls)


def test_a_gradient_mix_of_ones_own_has_its_controls_too():
    chosen = select_lines(find_reproduction("main-er"), ["gradient:cutmix:remix"])
    assert [line.label for line in chosen.lines] == [
        "ER + gradient:cutmix:remix",
        "ER + balanced control of gradient:cutmix:remix",
        "ER + shuffled control of gradient:cutmix:remix",
    ]


def test_labels_name_the_settings_that_a_table_varies():
    assert "ER, exemplars 16" in configs("buffer-size")
    assert "ER + shuffled control of GradMix, α 0.4" in configs("alpha")


def test_the_ablation_differs_in_partners_only():
    original, random, gradmix, balanced = configs("ablation").values()
    assert balanced == controls_of(gradmix)[0]
    assert gradmix == config_for("mnist", mix="gradmix+")
    assert original.mix == "gradient-keep-original:linear:remix"
    assert random.mix == "shuffle:linear:remix"
    for field in ("alpha", "labels", "blend", "tau"):
        values = {getattr(c.recipe, field) for c in (original, random, gradmix)}
        assert len(values) == 1
    assert original.recipe.tables == gradmix.recipe.tables


def test_runs_that_are_the_same_are_run_once():
    alphas = configs("alpha").values()
    assert {c.alpha for c in alphas if c.recipe.uses_gradients} == {
        0.4,
        None,
        2.0,
    }  # 1 is gradmix's own
    assert set(configs("forgetting").values()) <= set(configs("main-er").values())
    assert set(configs("heatmap").values()) <= set(configs("main-er").values())
    assert configs("precision-recall") == configs("class-distance")


def test_a_small_scale_is_another_run():
    full, small = (configs("main-er", "cifar-10", scale=scale)["ER"] for scale in ("full", "small"))
    assert (full.model, full.epochs) == ("resnet18", 50)
    assert (small.model, small.epochs) == ("resnet18-tiny", 12)
    with pytest.raises(UnknownNameError, match="scale"):
        configs("main-er", scale="tiny")


def test_lines_of_some_mixes_and_methods():
    main, heatmap = (find_reproduction(name) for name in ("main-er", "heatmap"))
    chosen = select_lines(main, ["none", "mixup", "shuffle:cutmix:remix"], ["mir"])
    assert [line.label for line in chosen.lines] == [
        *("ER", "ER + Mixup", "ER + shuffle:cutmix:remix"),
        *("MIR", "MIR + Mixup", "MIR + shuffle:cutmix:remix"),
    ]
    assert [line.paper is None for line in chosen.lines] == [False, False, True, True, True, True]
    assert configs_of(chosen.lines[-1], "mnist", [3]) == [
        config_for("mnist", method="mir", mix="shuffle:cutmix:remix", seed=3)
    ]
    assert select_lines(heatmap, ["none"], ["mir"]).lines == ()
    assert select_lines(main, None) == main


@pytest.fixture(scope="module")
def measured():
    """A run with all that anything reads."""
    analyses = ["detrimental-rate", "approximation-error", "class-distance", "precision-recall"]
    return run(config_for("digits", epochs=2, batch_size=64, analyses=analyses))


@pytest.mark.parametrize("name", [*TABLES, *FIGURES])
def test_every_panel_reads_numbers(name, measured):
    for panel in find_reproduction(name).panels:
        values = panel.read(measured)
        assert all(isinstance(value, float) for value in values.values())
        assert (len(values) == 1) == (panel.chart == "table")


def test_what_is_read_by_hand(measured):
    def read(name, panel=0):
        return find_reproduction(name).panels[panel].read(measured)

    content = asdict(measured)
    first, second = content["accuracy"][1][:2]
    assert read("forgetting")["2"] == pytest.approx((first + second) / 2)
    assert read("forgetting", 1)["9"] == content["class_accuracy"][-1][9]
    assert read("heatmap")["8 → 3"] == content["pair_counts"][-1][8][3]
    rates = [e["whole_network"] for e in content["analysis"]["detrimental-rate"]]
    assert len(rates) == 8  # 4 tasks with a memory, 2 epochs each
    assert read("detrimental-rate")["whole_network"] == pytest.approx(sum(rates) / 8)
    seconds = content["seconds"]
    per_task = (seconds["train"] + seconds["criterion"]) / 5
    assert read("runtime")["seconds per task"] == pytest.approx(per_task)
    assert sum(read("runtime-per-epoch").values()) == pytest.approx(500 * seconds["criterion"])
    curve = read("approximation-error")
    assert (curve["0"], curve["1"]) == (pytest.approx(0, abs=1e-5), pytest.approx(0, abs=1e-5))
