"""Every method × every mix × two networks: it runs, or says why not, as the docs do."""

import re
from pathlib import Path

import pytest
import torch

from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.methods.er import ExtendsNetwork
from gradmix.mixing import parse_recipe
from gradmix.training.loop import EpochDone, StepDone, TaskDone

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"
REFUSED = "InputError: the method replays no memory that gradient partners could protect"
MIXES = [
    "none",
    "mixup",
    "manifold-mixup",
    "cutmix",
    "remix",
    "balanced-mixup",
    "gradmix",
    "gradmix+",
    "gradient:cutmix:remix",
    "gradient-keep-original:manifold:proportional",
]
NETWORKS = ["mlp", "resnet"]
TRAINED = [name for name, info in METHODS.items() if info.build.trains]
EXCEPTIONS = {name: REFUSED for name in TRAINED if not METHODS[name].build.replays}
ROWS = {"a-gem": 8, "bic": 12}  # mixed in a step of the second task, where not all of B1 ∪ B2
UNMIXED_STAGES = ("compression", "classifier", "adaptation")  # foster, der-expandable, drc
GROWING = [name for name in TRAINED if not issubclass(METHODS[name].build, ExtendsNetwork)]


@pytest.fixture(scope="module")
def small(blobs):
    """Two tasks of two steps each."""
    return blobs(((8, 8), (9, 9)), channels=3)


def mixed_steps(events, task):
    """The number of steps of a task in stages that are mixed."""
    steps = mixed = 0
    for event in events:
        steps += isinstance(event, StepDone) and event.task == task
        if isinstance(event, EpochDone) and event.task == task:
            mixed, steps = mixed + steps * (event.stage not in UNMIXED_STAGES), 0
    return mixed


def exception(method, mix):
    recipe = parse_recipe(mix)
    return EXCEPTIONS.get(method) if recipe is not None and recipe.uses_gradients else None


@pytest.mark.pairwise
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("method", TRAINED)
def test_two_tasks_or_the_documented_error(method, mix, network, make_training, small):
    if exception(method, mix):
        with pytest.raises(InputError, match=r"gradient.* partners, which protect a memory"):
            make_training(method, mix, network, benchmark=small)
        return
    run = make_training(method, mix, network, benchmark=small)
    events = run.finish()
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert len(losses) >= 4
    assert all(bool(torch.isfinite(loss)) for loss in losses)
    done = [event for event in events if isinstance(event, TaskDone)]
    assert [event.task for event in done] == [0, 1]
    replays = METHODS[method].build.replays
    stores = replays or method == "gdumb"
    assert [event.memory_size for event in done] == ([6, 12] if stores else [0, 0])
    # Every row of every step is mixed and counted, except in some stages.
    mixed_rows = int(done[1].pair_counts.sum())
    rows = ROWS.get(method, 14 if replays else 8)
    assert mixed_rows == (0 if mix == "none" else mixed_steps(events, task=1) * rows)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", TRAINED)
def test_the_same_seed_gives_the_same_bits(method, network, assert_same, make_training, small):
    mix = "mixup" if exception(method, "gradmix+") else "gradmix+"
    one, other = (make_training(method, mix, network, benchmark=small) for _ in range(2))
    third = make_training(method, mix, network, benchmark=small, seed=1)
    assert not torch.equal(one.method.head.weight, third.method.head.weight)
    one.finish()
    torch.rand(3)  # draws of others from the global generator do not matter
    other.finish()
    assert_same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("method", TRAINED)
def test_the_global_generators_are_left_alone(method, global_state, make_training, small):
    before = global_state()
    run = make_training(method, benchmark=small, head="growing")
    run.finish()
    make_training(method, benchmark=small, head="growing").load_state_dict(run.state_dict())
    assert global_state() == before


@pytest.mark.parametrize("mix", ["none", "manifold-mixup", "gradmix+"])
@pytest.mark.parametrize("method", GROWING)
def test_with_a_head_that_grows(method, mix, blobs, make_training):
    if exception(method, mix):
        return
    run = make_training(method, mix, benchmark=blobs(), head="growing")
    sizes = []
    for event in run.events():
        if isinstance(event, TaskDone):
            sizes.append(run.method.head.out_features)
            assert run.method.predict(torch.zeros(2, 1, 8, 8)).shape == (2, sizes[-1])
    assert sizes == [2, 4, 6]


@pytest.mark.parametrize("mix", ["mixup", "gradmix+"])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in TRAINED])
def test_methods_without_steps_refuse_every_mix(method, mix, make_training, small):
    with pytest.raises(InputError, match="no training steps and cannot mix; give mix='none'"):
        make_training(method, mix, "linear", benchmark=small)


def test_the_exceptions_are_those_of_the_docs():
    text = DOCS.read_text(encoding="utf-8")
    table = text.split("| method | mix | what happens |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    documented = {method.strip("`"): what for method, mix, what in rows}
    assert documented == EXCEPTIONS
    assert {mix.strip("`") for _, mix, _ in rows} == {"gradient*:*:*"}


def test_the_docs_have_a_section_for_every_method():
    text = DOCS.read_text(encoding="utf-8")
    assert re.findall(r"^### `(.+?)`", text, re.MULTILINE) == list(METHODS)


def test_the_table_of_methods_has_a_row_for_every_method_except_the_bounds():
    text = DOCS.read_text(encoding="utf-8").split("## Table of methods")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)`", text, re.MULTILINE)
    assert sorted(rows) == sorted(set(METHODS) - {"finetune", "joint"})
