"""Two and three gloo ranks against one process: the same run, apart from the order of sums."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradmix.methods import METHODS
from gradmix.training.checks import SHARDABLE

JOB = Path(__file__).with_name("rank_job.py")

ACCEPTANCE = {
    f"{method}-{mix}": {"method": method, "mix": mix}
    for method in ("er", "der", "foster", "memo")
    for mix in ("mixup", "gradmix+")
}
ACCEPTANCE["er-gradmix+"]["epochs"] = 3
FLOAT32 = {
    f"{name}-float32": {**case, "dtype": "float32"}
    for name, case in ACCEPTANCE.items()
    if case["mix"] == "gradmix+"
}
AUGMENTED = {"transforms": True}
OTHERS = {
    "der-none": {"method": "der", "mix": "none"},
    "der++-none": {"method": "der++", "mix": "none"},
    "der++-augmented": {"method": "der++", "mix": "gradmix+", **AUGMENTED},
    "er-augmented": {"method": "er", "mix": "gradmix+", **AUGMENTED},
    "er-balanced": {"method": "er", "mix": "class-balanced:cutmix:remix", **AUGMENTED},
    "er-cutmix": {"method": "er", "mix": "gradient:cutmix:remix"},
    "er-manifold": {"method": "er", "mix": "manifold-mixup", **AUGMENTED},
    "er-manifold-gradient": {"method": "er", "mix": "gradient:manifold:remix"},
    "er-herding": {"method": "er", "mix": "none", "selection": "herding"},
    "er-settings": {
        "method": "er",
        "mix": "mixup",
        "settings": {"clip_norm": 0.5, "label_smoothing": 0.1, "optimizer": "adam"},
    },
    "foster-mixed": {"method": "foster", "mix": "gradmix+", "options": {"mix_compression": 1.0}},
    "mir": {"method": "mir", "mix": "gradmix+", **AUGMENTED},
    "aser": {"method": "aser", "mix": "none"},
    "icarl": {"method": "icarl", "mix": "gradmix+"},
    "der-expandable": {"method": "der-expandable", "mix": "gradmix+"},
    "gss": {"method": "gss", "mix": "mixup"},
    "gss-stream": {"method": "gss-stream", "mix": "mixup"},
    "er-adjusted": {"method": "er", "mix": "gradmix+", "settings": {"logit_adjustment": 1.0}},
    "er-ace": {"method": "er-ace", "mix": "gradmix+"},
    "a-gem": {"method": "a-gem", "mix": "none", "epochs": 2},
    "bic": {"method": "bic", "mix": "mixup"},
    "gdumb": {"method": "gdumb", "mix": "mixup", "options": {"passes": 1.0}},
    "ewc": {"method": "ewc", "mix": "none"},
    "er-batch-norm": {"method": "er", "mix": "gradmix+", "batch_norm": True},
    "der++-batch-norm": {"method": "der++", "mix": "mixup", "batch_norm": True},
    "mir-batch-norm": {"method": "mir", "mix": "none", "batch_norm": True},
    "dytox": {"method": "dytox", "mix": "none"},
    "online": {"method": "er", "mix": "gradmix+", "online": True},
    "online-der++": {"method": "der++", "mix": "mixup", "online": True, **AUGMENTED},
    "finetune": {"method": "finetune", "mix": "mixup"},
    "joint": {"method": "joint", "mix": "none"},
}
OTHERS |= {
    f"every-{name}": {"method": name, "mix": "none", **AUGMENTED}
    for name, info in METHODS.items()
    if info.build.trains and name not in {case["method"] for case in OTHERS.values()}
}
SHARDED = {
    "er-none": {"method": "er", "mix": "none"},
    "er-default": {"method": "er", "mix": "balanced-remix"},
    "er-gradmix+": {"method": "er", "mix": "gradmix+"},
    "er-clipped": {"method": "er", "mix": "gradmix+", "settings": {"clip_norm": 0.5}},
    "er-adam": {"method": "er", "mix": "manifold-mixup", "settings": {"optimizer": "adam"}},
    "er-batch-norm": {"method": "er", "mix": "mixup", "batch_norm": True, **AUGMENTED},
    "er-cnn": {"method": "er", "mix": "none", "network": "cnn", "batch_norm": True},
    "er-clusters": {"method": "er", "mix": "gradmix+", "criterion": {"criterion": "clusters"}},
    "online": {"method": "er", "mix": "gradmix+", "online": True},
    "der-mixed": {"method": "der", "mix": "mixup"},
}
SHARDED |= {name: {"method": name, "mix": "none"} for name in SHARDABLE if name != "er"}
SHARDED = {f"sharded-{name}": {**case, "sharded": True} for name, case in SHARDED.items()}
ON_TWO_RANKS = {name for name, case in ACCEPTANCE.items() if case["mix"] == "gradmix+"}
CASES = {
    name: {**case, "sizes": [1, 2, 3] if name in {*ON_TWO_RANKS, *FLOAT32} else [1, 3]}
    for name, case in {**ACCEPTANCE, **FLOAT32, **OTHERS}.items()
}
CASES |= {name: {**case, "sizes": [1, 2]} for name, case in SHARDED.items()}
CASES["sharded-er-gradmix+"]["sizes"] = [1, 2, 3]
CASES["sharded-fine-tuned"] = {
    "method": "er",
    "mix": "none",
    "fine_tuned": True,
    "dtype": "float32",
    "sharded": True,
    "sizes": [1, 2],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Train all cases on 1, 2 and 3 ranks; return a function that loads the results of one."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps(CASES))
    subprocess.run(
        [sys.executable, str(JOB), str(folder)],
        check=True,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def load(name):
        if name == "moved":
            return [torch.load(folder / f"moved-{rank}.pt", weights_only=True) for rank in (0, 1)]
        if name == "sharded":
            return [torch.load(folder / "sharded-0.pt", weights_only=True)]
        sizes = CASES[name]["sizes"]
        places = [(size, rank) for size in sizes for rank in sorted({0, size - 1})]
        paths = [folder / f"{name}-{size}-{rank}.pt" for size, rank in places]
        return [torch.load(path, weights_only=True) for path in paths]

    return load


@pytest.mark.parametrize("name", [*ACCEPTANCE, *OTHERS, *SHARDED])
def test_a_run_does_not_depend_on_the_number_of_ranks(name, results):
    one, *others = results(name)
    assert torch.isfinite(one["weights"]).all()
    for other in others:
        torch.testing.assert_close(other["weights"], one["weights"], rtol=0, atol=1e-12)
        torch.testing.assert_close(other["losses"], one["losses"], rtol=0, atol=1e-12)
        for part in ("exemplars", "labels", "counts", "correct"):
            assert torch.equal(other[part], one[part]), part
        assert len(other["tables"]) == len(one["tables"])
        assert all(map(torch.equal, other["tables"], one["tables"]))


@pytest.mark.parametrize("name", ["moved", "sharded"])
def test_a_job_moves_between_numbers_of_ranks_and_between_whole_and_split_weights(name, results):
    one = results("er-gradmix+")[0]
    for moved in results(name):
        torch.testing.assert_close(moved["weights"], one["weights"], rtol=0, atol=1e-12)
        for part in ("exemplars", "labels", "counts"):
            assert torch.equal(moved[part], one[part]), part


def test_each_rank_holds_its_part_of_split_weights(results):
    one, first, second = results("sharded-er-none")
    for part, whole in one["held"].items():
        assert first["held"][part] == pytest.approx(whole / 2, rel=0.1)
        assert first["held"][part] + second["held"][part] == whole > 0


def test_a_fine_tuned_network_starts_from_a_closed_form_head_with_split_weights(results):
    one, *others = results("sharded-fine-tuned")
    for other in others:
        torch.testing.assert_close(other["weights"], one["weights"], rtol=0, atol=1e-5)
        torch.testing.assert_close(other["losses"], one["losses"], rtol=0, atol=1e-5)


def test_the_default_mix_has_pair_tables(results):
    tables = results("er-gradmix+")[0]["tables"]
    assert any(table.any() for table in tables if table.dtype == torch.bool)


@pytest.mark.parametrize("name", FLOAT32)
def test_in_float32_the_ranks_agree_and_metrics_differ_by_at_most_one_sample(name, results):
    one, two, also_two, three, also_three = results(name)
    assert torch.equal(two["weights"], also_two["weights"])
    assert torch.equal(three["weights"], also_three["weights"])
    for other in (two, three):
        assert torch.equal(other["exemplars"], one["exemplars"])
        torch.testing.assert_close(other["losses"], one["losses"], rtol=0, atol=1e-4)
        assert int((other["correct"] - one["correct"]).abs().sum(dim=(1, 2)).max()) <= 1
