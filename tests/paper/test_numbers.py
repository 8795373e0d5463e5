"""The paper's numbers: as its LaTeX source prints them, and found for the runs they belong to."""

import json
import re
from pathlib import Path

import pytest

from gradmix.data import DATASETS
from gradmix.methods import METHODS
from gradmix.mixing import RECIPES
from gradmix.mixing.recipe import PARTNERS
from gradmix.models import MODELS
from gradmix.paper.numbers import paper_accuracy, paper_tables
from gradmix.runs.config import config_for
from gradmix.runs.measures import Summary

FIVE = {"mnist", "fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet"}
MIXES = {"none", "randaugment", *RECIPES} - {"balanced-remix", "gradmix+"}

KEYS = {
    "main-er": "tbl:main_er",
    "main-mir": "tbl:main_mir",
    "main-gss": "tbl:main_gss",
    "main-der": "tbl:main_der",
    "main-foster": "tbl:main_foster",
    "compatibility": "tbl:compatibility_main",
    "ablation": "tbl:ablation_study",
    "buffer-size": "tbl:buffer_size_main",
    "alpha": "tbl:sensitivity_alpha",
    "imagenet": "tbl:main_large",
    "backbone": "tbl:main_backbone",
    "detrimental-rate": "tbl:neg_pair_rate",
    "precision-recall": "tbl:precision_recall",
    "runtime": "tbl:total_runtime_exp",
}


# --- against the source ---------------------------------------------------------------------

DATA = {
    "MNIST": "mnist",
    "FMNIST": "fashion-mnist",
    "CIFAR-10": "cifar-10",
    "CIFAR-100": "cifar-100",
    "Tiny ImageNet": "tiny-imagenet",
    "ImageNet-1K": "imagenet",
}
ROWS = {
    **{name: {"method": name.lower(), "mix": "none"} for name in ("ER", "MIR", "GSS", "DER")},
    **{name: {"method": name.lower(), "mix": "none"} for name in ("FOSTER", "MEMO")},
    "+ Mixup": {"mix": "mixup"},
    "+ Manifold Mixup": {"mix": "manifold-mixup"},
    "+ CutMix": {"mix": "cutmix"},
    "+ Remix": {"mix": "remix"},
    "+ Balanced-MixUp": {"mix": "balanced-mixup"},
    "+ RandAugment": {"mix": "randaugment"},
    "+ GradMix": {"mix": "gradmix"},
    "+ GradMix (ours)": {"mix": "gradmix"},
    "Original": {"method": "er", "mix": "gradmix", "partners": "gradient-keep-original"},
    "Random": {"method": "er", "mix": "gradmix", "partners": "shuffle"},
    "GradMix (ours)": {"method": "er", "mix": "gradmix", "partners": "gradient"},
    "GradMix (α = 0.4)": {"method": "er", "mix": "gradmix", "alpha": 0.4},
    "GradMix (α = 1.0)": {"method": "er", "mix": "gradmix", "alpha": 1.0},
    "GradMix (α = 2.0)": {"method": "er", "mix": "gradmix", "alpha": 2.0},
    "Average Rate": {"method": "er", "mix": "mixup"},
    "Precision": {"mix": "gradmix", "measure": "precision"},
    "Recall": {"mix": "gradmix", "measure": "recall"},
    "W/o GradMix": {"method": "er", "mix": "none"},
    "W/ GradMix": {"method": "er", "mix": "gradmix"},
}
COLUMNS = {
    "N=16": {"exemplars_per_class": 16},
    "N=64": {"exemplars_per_class": 64},
    "ResNet-18": {"model": "resnet18"},
    "ViT": {"model": "vit"},
}
NUMBER = re.compile(r"(\d+\.?\d*)(?:±(\d\.\d+)| s)?")


@pytest.fixture(scope="module")
def source():
    path = Path(__file__).parents[2].parent / "shared" / "paper" / "gradmix-paper.tex"
    if not path.is_file():
        pytest.skip("no ../shared/paper/gradmix-paper.tex: numbers not held against the source")
    return path.read_text(encoding="utf-8")


def plain(cell):
    """The words of a cell, and how many columns it spans."""
    span = re.search(r"\\multicolumn\{(\d)\}\{[^}]*\}", cell)
    text = re.sub(r"\\multi(column|row)\{\d\}(\{[^}]*\})", "", cell)
    text = text.replace(r"\pm", "±").replace(r"\alpha", "α")
    text = re.sub(r"\\(c?midrule(\{[^}]*\})?|(top|bottom)rule|[a-z]+)|[{}$]", "", text)
    return " ".join(text.split()), int(span[1]) if span else 1


def printed(source, label):
    """The numbers of a table by setting and data set, from nothing but its LaTeX."""
    body = source[: source.index(rf"\label{{{label}}}")]
    body = body[body.rindex(r"\begin{tabular}") :]
    body = re.sub(r"\\begin\{tabular\}\{[^}]*\}", "", body[: body.index(r"\end{tabular}")])
    data, varied, setting, numbers = [], [], {}, {}
    for line in body.split(r"\\"):
        cells = [text for text, span in map(plain, line.split("&")) for _ in range(span)]
        values = [match for match in map(NUMBER.fullmatch, cells) if match]
        if not values:
            data = [DATA[cell] for cell in cells if cell in DATA] or data
            varied = [COLUMNS[cell] for cell in cells if cell in COLUMNS] or varied
            continue
        setting = {**setting, **ROWS[cells[len(cells) - len(values) - 1]]}
        for name, also, value in zip(data, varied or [{}] * len(data), values, strict=True):
            key = frozenset({**setting, **also}.items()), name
            assert key not in numbers
            numbers[key] = (float(value[1]), float(value[2]) if value[2] else None)
    return numbers


def stored(table):
    return {
        (frozenset(row.setting.items()), data): (value.mean, value.std)
        for row in table.rows
        for data, value in row.values.items()
    }


@pytest.mark.parametrize("key", KEYS)
def test_tables_are_as_printed(source, key):
    table = paper_tables()[key]
    assert table.label == KEYS[key]
    assert stored(table) == printed(source, table.label)


def test_no_table_and_no_number_of_the_paper_is_missing(source):
    labels = set(re.findall(r"\\label\{(tbl:\w+)\}", source)) - {"tbl:datasets"}
    assert labels == set(KEYS.values())
    values = [v for t in paper_tables().values() for row in t.rows for v in row.values.values()]
    assert sum(v.std is not None for v in values) == source.count(r"\tiny{$\pm$") == 380


def test_numbers_of_the_text(source):
    errors = re.search(r"average approximation errors are ([\d., and]+) for the", source)[1]
    (row,) = paper_tables()["approximation-error"].rows
    assert list(row.values) == [data for data in DATA.values() if data in FIVE]
    means = [value.mean for value in row.values.values()]
    assert means == [float(number) for number in re.findall(r"\d\.\d+", errors)]
    assert r"\label{fig:error_exp}" in source
    assert r"an average of 47.3\% of randomly mixed samples" in source
    assert "repeated with five random seeds" in source


# --- on their own ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "data", "setting", "mean", "std"),
    [
        ("main-er", "mnist", {"method": "er", "mix": "none"}, 0.896, 0.002),
        ("main-er", "fashion-mnist", {"method": "er", "mix": "gradmix"}, 0.802, 0.009),
        ("main-mir", "cifar-10", {"method": "mir", "mix": "balanced-mixup"}, 0.627, 0.018),
        ("main-gss", "mnist", {"method": "gss", "mix": "remix"}, 0.904, 0.007),
        ("main-der", "cifar-100", {"method": "der", "mix": "cutmix"}, 0.445, 0.009),
        ("main-foster", "mnist", {"method": "foster", "mix": "gradmix"}, 0.973, 0.003),
        ("compatibility", "tiny-imagenet", {"method": "memo", "mix": "gradmix"}, 0.552, 0.006),
        ("imagenet", "imagenet", {"method": "er", "mix": "randaugment"}, 0.305, 0.013),
        ("detrimental-rate", "cifar-100", {"method": "er", "mix": "mixup"}, 0.402, None),
        ("approximation-error", "cifar-10", {"mix": "gradmix"}, 0.074, None),
        ("precision-recall", "mnist", {"mix": "gradmix", "measure": "recall"}, 0.847, None),
        ("runtime", "tiny-imagenet", {"method": "er", "mix": "gradmix"}, 4850, None),
    ],
)
def test_single_numbers(key, data, setting, mean, std):
    assert paper_tables()[key].find(data, setting) == Summary(mean, std, 1 if std is None else 5)


def test_what_a_table_does_not_have():
    table = paper_tables()["main-er"]
    assert table.find("imagenet", {"method": "er", "mix": "none"}) is None
    assert table.find("mnist", {"method": "er"}) is None


def test_every_row_has_every_data_set_of_its_table():
    some = {
        "compatibility": {"cifar-10", "cifar-100", "tiny-imagenet"},
        "imagenet": {"imagenet"},
        "backbone": {"cifar-100", "tiny-imagenet"},
    }
    assert paper_tables().keys() == {*KEYS, "approximation-error"}
    for key, table in paper_tables().items():
        assert (table.key, bool(table.caption)) == (key, True)
        for row in table.rows:
            assert row.values.keys() == some.get(key, FIVE)


def test_settings_have_the_names_that_runs_use():
    known = {"method": METHODS, "mix": MIXES, "model": MODELS, "partners": PARTNERS}
    rows = [row for table in paper_tables().values() for row in table.rows]
    for row in rows:
        assert row.values.keys() <= DATASETS.keys()
        for name, names in known.items():
            assert name not in row.setting or row.setting[name] in names
    assert len(rows) == 5 * 8 + 10 + 3 + 16 + 3 + 8 + 16 + 1 + 1 + 2 + 2


def test_tables_that_repeat_a_setting_agree():
    tables = paper_tables()
    for row in tables["compatibility"].rows:
        if row.setting["method"] != "memo":
            main = tables[f"main-{row.setting['method']}"]
            for data, value in row.values.items():
                assert value.mean == main.find(data, row.setting).mean
    for data in FIVE:
        gradmix = {"method": "er", "mix": "gradmix"}
        main = tables["main-er"].find(data, gradmix)
        alpha = 0.4 if data == "tiny-imagenet" else 1.0
        for key, also in (("ablation", {"partners": "gradient"}), ("alpha", {"alpha": alpha})):
            value = tables[key].find(data, {**gradmix, **also})
            assert (value.mean, value.std) == (main.mean, main.std)


# --- for runs -------------------------------------------------------------------------------


def accuracy(data="mnist", **overrides):
    config = config_for(data, **overrides).to_json()
    return paper_accuracy(json.loads(json.dumps(config)))


@pytest.mark.parametrize("data", sorted(FIVE))
@pytest.mark.parametrize("method", ["er", "mir", "gss", "der", "foster"])
@pytest.mark.parametrize("mix", sorted(MIXES - {"randaugment"}))
def test_the_protocol_of_every_data_set_is_the_main_tables_(data, method, mix):
    key = f"main-{method}"
    expected = paper_tables()[key].find(data, {"method": method, "mix": mix})
    assert expected is not None
    assert accuracy(data, method=method, mix=mix, seed=7, threads=2, device="cpu") == expected


@pytest.mark.parametrize(
    ("data", "overrides", "mean", "table"),
    [
        ("mnist", {"mix": "gradmix+"}, 0.918, "main-er"),
        ("mnist", {"mix": "gradmix+", "tau": 0.5, "tables": 1}, 0.918, "main-er"),
        ("mnist", {"mix": "shuffle:linear:remix"}, 0.905, "main-er"),
        ("mnist", {"mix": "remix", "tau": 0.5}, 0.905, "main-er"),
        ("mnist", {"mix": "mixup", "alpha": 1.0, "tau": 0.75}, 0.866, "main-er"),
        ("mnist", {"mix": "gradient-keep-original:linear:remix"}, 0.904, "ablation"),
        ("mnist", {"mix": "none", "transforms": ("randaugment",)}, 0.765, "main-er"),
        ("cifar-10", {"mix": "none", "transforms": ("randaugment",)}, 0.636, "main-er"),
        (
            "cifar-10",
            {"mix": "none", "method": "der", "transforms": ("crop", "flip", "randaugment")},
            0.692,
            "main-der",
        ),
        ("mnist", {"mix": "mixup", "exemplars_per_class": 16}, 0.807, "buffer-size"),
        ("tiny-imagenet", {"mix": "gradmix+", "exemplars_per_class": 64}, 0.470, "buffer-size"),
        (
            "mnist",
            {"mix": "none", "transforms": ("randaugment",), "exemplars_per_class": 64},
            0.833,
            "buffer-size",
        ),
        ("fashion-mnist", {"mix": "gradmix+", "alpha": 2.0}, 0.809, "alpha"),
        ("tiny-imagenet", {"mix": "gradmix", "alpha": 1.0}, 0.386, "alpha"),
        ("tiny-imagenet", {"mix": "gradient:linear:remix", "alpha": 0.4}, 0.405, "main-er"),
        ("cifar-100", {"mix": "remix", "model": "vit"}, 0.426, "backbone"),
        ("cifar-100", {"mix": "none", "method": "memo"}, 0.634, "compatibility"),
        ("cifar-10", {"mix": "gradmix+", "method": "memo"}, 0.782, "compatibility"),
        ("imagenet", {"mix": "gradmix+"}, 0.356, "imagenet"),
        (
            "mnist",
            {"mix": "none", "method": "der", "options": (("alpha", 0.5),)},
            0.927,
            "main-der",
        ),
    ],
)
def test_settings_that_the_paper_has(data, overrides, mean, table):
    value = accuracy(data, **overrides)
    assert value.mean == mean
    assert value in [row.values.get(data) for row in paper_tables()[table].rows]


@pytest.mark.parametrize(
    ("data", "overrides"),
    [
        ("mnist", {"epochs": 10}),
        ("mnist", {"lr": 0.1}),
        ("mnist", {"momentum": 0.0}),
        ("mnist", {"batch_size": 32}),
        ("mnist", {"replay_batch_size": 32}),
        ("mnist", {"increments": (5,)}),
        ("mnist", {"class_order": "seed:1993"}),
        ("mnist", {"memory_total": 320}),
        ("mnist", {"exemplars_per_class": 20}),
        ("mnist", {"exemplars_per_class": 16, "method": "mir"}),
        ("mnist", {"exemplars_per_class": 16, "alpha": 0.4}),
        ("mnist", {"validation": 0}),
        ("mnist", {"evaluate_on": "validation"}),
        ("mnist", {"head": "growing"}),
        ("mnist", {"model": "resnet18"}),
        ("mnist", {"transforms": ("flip",)}),
        ("mnist", {"transforms": ("randaugment",)}),
        ("mnist", {"mix": "none", "transforms": ("crop", "randaugment")}),
        ("cifar-10", {"mix": "none", "transforms": ("flip", "randaugment")}),
        ("mnist", {"mix": "remix", "tau": 0.75}),
        ("mnist", {"mix": "mixup", "alpha": 0.4}),
        ("mnist", {"mix": "gradmix", "alpha": 0.7}),
        ("mnist", {"mix": "gradmix", "alpha": 0.4, "method": "der"}),
        ("mnist", {"mix": "gradient:cutmix:remix"}),
        ("mnist", {"mix": "class-balanced:linear:remix"}),
        ("mnist", {"mix": "gradient-keep-original:linear:remix", "method": "der"}),
        ("mnist", {"method": "der", "options": (("alpha", 0.3),)}),
        ("mnist", {"method": "memo"}),
        ("mnist", {"method": "icarl"}),
        ("cifar-10", {"model": "vit"}),
        ("cifar-100", {"model": "vit", "method": "der"}),
        ("cifar-100", {"model": "vit-small"}),
        ("cifar-100", {"method": "memo", "mix": "mixup"}),
        ("imagenet", {"method": "der"}),
        ("digits", {}),
        ("folder:photos@32", {}),
    ],
)
def test_settings_that_the_paper_does_not_have(data, overrides):
    assert accuracy(data, **overrides) is None


def test_fields_that_a_file_lacks_are_taken_as_usual_and_others_are_not():
    short = {"data": "mnist", "method": "er", "mix": "mixup", "alpha": None, "seed": 3}
    assert paper_accuracy(short) == Summary(0.866, 0.005, 5)
    assert paper_accuracy({**short, "epochs": 1}) is None
    assert paper_accuracy({**short, "invented": 1}) is None


# --- old and foreign results ------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    [
        {"mix": "gradient-refined-no-more:linear:remix"},
        {"mix": "whatever"},
        {"method": "unheard-of"},
        {"options": {"unheard_of": 1.0}},
    ],
)
def test_unknown_names_have_no_number(foreign):
    assert paper_accuracy(config_for("mnist").to_json() | foreign) is None


def test_removed_settings_do_not_matter_at_their_default():
    config = config_for("mnist", mix="none").to_json()
    assert paper_accuracy(config | {"level": "class", "rolling": 1}).mean == 0.896
    assert paper_accuracy(config | {"level": "sample", "rolling": 1}) is None


def test_folders_are_not_read_for_a_comparison(monkeypatch):
    config = config_for("folder:photos").to_json()
    monkeypatch.setattr("gradmix.runs.config.dataset_version", lambda name: 1 / 0)
    assert paper_accuracy(config) is None
