"""Checkpoints that were altered and signed again: a FileError, or a run that finishes.

Every number makes one alteration: a case, a place in its state and what happens there.
"""

import copy
import os
import random

import pytest
import torch

from gradmix.data import benchmark_from_tasks
from gradmix.errors import FileError
from gradmix.files import read_state_file, write_state_file
from gradmix.training.checkpoint import KIND, Checkpoint
from gradmix.types import Samples

CASES = {
    "er": {"mix": "gradmix+", "head": "growing"},
    "er, cutmix": {"mix": "gradient:cutmix:remix"},
    "er, manifold": {"mix": "manifold-mixup"},
    "er, many classes": {"mix": "gradmix+", "criterion": "clusters"},
    "rows": {"mix": "gradmix+", "rows": True},
    "mir": {"method": "mir", "mix": "gradmix"},
    "gss": {"method": "gss-stream", "epochs": 1},
    "der": {"method": "der++", "head": "growing"},
    "foster": {"method": "foster", "mix": "mixup"},
    "memo": {"method": "memo", "mix": "balanced-mixup"},
    "der-expandable": {"method": "der-expandable", "mix": "mixup"},
    "drc": {"method": "drc", "mix": "gradmix+"},
    "icarl": {"method": "icarl", "head": "growing"},
    "joint": {"method": "joint", "mix": "mixup", "head": "growing"},
    "bic": {"method": "bic", "mix": "mixup"},
    "ewc": {"method": "ewc", "head": "growing"},
    "gdumb": {"method": "gdumb"},
    "online": {"mix": "gradmix", "online": True, "epochs": 1},
    "online, plain": {
        **{"method": "der", "online": True, "epochs": 1},
        "memory": {"total": 9, "balanced": False},
    },
    "between tasks": {"method": "icarl"},
    "ridge, between tasks": {"method": "ridge", "network": "linear"},
    "slda, between tasks": {"method": "slda", "network": "linear"},
}
STAGES = {
    "foster": "compression",
    "der-expandable": "classifier",
    "drc": "fusion",
}  # else the first
PLAIN = [None, True, -1, 0, 1, 3, 2**31, 10**15, 2**70, 0.5, 1e300, float("nan"), "x", [], {}]
INTEGERS = [-(2**63), -1, 0, 2, 10**12, 2**63 - 1]
FLOATS = [float("nan"), float("inf"), -float("inf")]
DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64]


class Record:
    """Results that are never wrong."""

    def state_dict(self):
        return {"seen": [1, 2]}

    def load_state_dict(self, state):
        pass


def flattened(samples):
    return Samples(samples.x.flatten(1).float() / 100, samples.y)


@pytest.fixture(scope="module")
def prepared(make_training, blobs):
    """Return a function that makes a case, ready to train."""
    images = blobs(((8, 8), (8, 8)))
    tables = benchmark_from_tasks(
        "rows", [[flattened(part) for part in (t.train, t.test)] for t in images.tasks]
    )

    def make(case):
        settings = {"epochs": 2, "exemplars": 2, **CASES[case]}
        benchmark = tables if settings.pop("rows", False) else images
        return make_training(benchmark=benchmark, **settings)

    return make


@pytest.fixture(scope="module")
def state_of(prepared, tmp_path_factory):
    """Return a function that returns a new copy of the state in the middle of a case."""
    folder, states = tmp_path_factory.mktemp("states"), {}

    def read(case):
        if case not in states:
            training = prepared(case)
            if "between tasks" in case:
                training.run_tasks(1)
            else:
                training.stop_in_task(1, stage=STAGES.get(case))
            Checkpoint(folder / "f", training, Record(), {"config": {"case": case}}).save()
            states[case] = read_state_file(folder / "f", KIND)
        return copy.deepcopy(states[case])

    return read


# --- alterations ---------------------------------------------------------------------------------


def alter(state, chance):
    """Walk to some place, change one thing there and return a description."""
    container = state["training"] if chance.random() < 0.8 else state
    key, path = chance.choice([*container]), []
    while True:
        path.append(str(key))
        inside = container[key]
        if not isinstance(inside, dict | list) or not inside or chance.random() < 0.1:
            break
        container = inside
        key = chance.choice([*inside] if isinstance(inside, dict) else range(len(inside)))
    tensor = torch.is_tensor(inside) and chance.random() < 0.8
    how = (alter_tensor if tensor else alter_plain)(container, key, chance)
    return f"{'.'.join(path)}: {how}"


def alter_plain(container, key, chance):
    kind = chance.choice(["delete", "add", "repeat", "replace", "replace", "replace"])
    if kind == "delete":
        del container[key]
    elif kind == "add" and isinstance(container, dict):
        container["extra"] = chance.choice(PLAIN)
    elif kind == "repeat" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    else:
        container[key] = chance.choice([*PLAIN, torch.zeros(2), torch.tensor(1.0)])
        kind = f"replaced by {container[key]}"
    return kind


def alter_tensor(container, key, chance):
    value = container[key]
    kind = chance.choice(["shape", "dtype", "entry", "entry", "values"])
    if kind == "shape":
        shapes = [value[None], value.flatten(), value.flatten()[:1], torch.tensor(1).to(value)]
        if value.ndim:
            shapes += [value[:-1], value[:0], torch.cat([value, value]), value[..., :-1]]
            shapes += [value.transpose(0, -1)]
        value = chance.choice(shapes)
    elif kind == "dtype":
        value = value.to(chance.choice(DTYPES))
    elif kind == "entry" and value.numel():
        value = value.clone()
        value.view(-1)[chance.randrange(value.numel())] = entry(value, chance)
    elif value.dtype == torch.bool:
        value = ~value
    else:
        value = value + 1 if chance.random() < 0.5 else value.flip(0) if value.ndim else value
    container[key] = value.contiguous()
    return f"{kind} {value.dtype} {tuple(value.shape)}"


def entry(value, chance):
    if value.is_floating_point():
        return chance.choice(FLOATS)
    if value.dtype == torch.int64:
        return chance.choice(INTEGERS)
    return chance.choice([0, 1]) if value.dtype == torch.bool else chance.choice([0, 255])


# --- the test ------------------------------------------------------------------------------------


@pytest.fixture
def resume(prepared, tmp_path, monkeypatch):
    """Return a function that resumes a case from a state, written and signed again."""
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def call(case, state):
        write_state_file(tmp_path / "f", KIND, state)
        training = prepared(case)
        Checkpoint(tmp_path / "f", training, Record(), {"config": {"case": case}}).resume()
        return training

    return call


@pytest.mark.parametrize("case", CASES)
def test_an_unaltered_checkpoint_is_resumed(case, state_of, resume):
    assert resume(case, state_of(case)).position.task == 1


@pytest.mark.parametrize(
    "number", [*range(100), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 1000))]
)
def test_an_altered_checkpoint_is_refused_or_the_run_finishes(number, state_of, resume):
    chance = random.Random(number)
    case = chance.choice([*CASES])
    state = state_of(case)
    what = alter(state, chance)
    try:
        training = resume(case, state)
    except FileError:
        return
    try:
        training.finish()
    except Exception as error:
        raise AssertionError(f"{case}: {what}") from error


def nan(value):
    value.view(-1)[0] = torch.nan
    return value


@pytest.mark.parametrize(
    ("case", "path", "change"),
    [
        ("er", "stage.optimizer.0.momentum_buffer", lambda value: value.flatten()[:1]),
        ("er", "stage.optimizer.2.momentum_buffer", lambda value: value.double()),
        ("er", "stage.optimizer.4.momentum_buffer", nan),
        ("er", "stage.optimizer.5", lambda _: {"momentum": torch.ones(4)}),
        ("er", "method.networks.model.head.bias", nan),
        ("er", "losses", nan),
        ("er", "method.memory.x", lambda value: value.long()),
        ("er", "method.memory.x", lambda value: value[..., :-1]),
        ("er", "method.memory.y", lambda value: value + 4),
        ("rows", "method.memory.x", nan),
        ("joint", "method.kept.x", lambda value: value.float()),
        ("joint", "method.initial.head.weight", nan),
        ("er", "method.structure.seen", lambda _: 3),
        ("er, cutmix", "method.structure.seen", lambda _: 3),
        ("memo", "method.structure.seen", lambda _: 3),
        ("memo", "method.structure.specials", lambda _: 1),
        ("foster", "method.structure.student", lambda _: False),
        ("foster", "method.structure.two", lambda _: False),
        ("foster", "stage.plan", lambda _: None),
        ("drc", "method.structure.adapted", lambda _: False),
        ("drc", "method.structure.old", lambda _: 0),
        ("drc", "method.structure.two", lambda _: False),
        ("der-expandable", "method.balanced", lambda value: value + 16),
        ("der-expandable", "method.balanced", lambda _: None),
        ("der-expandable", "method.structure.specials", lambda _: 1),
        ("icarl", "method.structure.old_classes", lambda _: 0),
        ("der", "method.memory.extras.logits", lambda value: torch.cat([value] * 3, 1)),
        ("der", "method.memory.extras.known", lambda value: value.float()),
        ("er", "stage.pairs.tables.classes", lambda value: value + 1),
        ("er", "stage.pairs.tables.scores", lambda value: value[:, :, 1:]),
        ("er", "stage.plan.draws.table", lambda value: [8] * len(value)),
        ("er", "stage.new", lambda value: value + 16),
        ("er", "position.step", lambda _: 3),
        ("gss", "method.buffers.2.index", lambda value: value + 16),
    ],
)
def test_what_does_not_fit_is_refused(case, path, change, state_of, resume):
    """Each of these used to crash, to raise another error later, or to be accepted."""
    state = state_of(case)
    *outer, last = split(path, state["training"])
    container = state["training"]
    for key in outer:
        container = container[key]
    container[last] = change(container[last])
    with pytest.raises(FileError, match=r"does not fit this run|is damaged"):
        resume(case, state)


def split(path, state):
    """The keys of a path; the names of weights have dots themselves."""
    keys = []
    while path:
        names = [path, *(path[:place] for place, sign in enumerate(path) if sign == ".")]
        key = next(name for name in names if name in state or isinstance(state, list))
        key = path.split(".")[0] if isinstance(state, list) else key
        path = path[len(key) + 1 :]
        keys.append(int(key) if isinstance(state, list) else key)
        state = state[keys[-1]]
    return keys
