"""Runs that never happened, quickly made."""

import random
from dataclasses import fields

import pytest

from gradmix.runs.config import config_for
from gradmix.runs.results import RunResult
from gradmix.training.metrics import all_metrics

LATER_FIELDS = {"protocol_version": 1, "analysis": {}}


def make_result(
    data="mnist", mix="gradmix+", seed=0, *, level=0.9, classes=10, tasks=5, names=None, **settings
):
    """A run whose accuracies scatter around `level`."""
    draw = random.Random(f"{data} {mix} {seed} {level}")
    size = classes // tasks
    class_accuracy = [
        [level + draw.uniform(-0.05, 0.05) if c < size * (t + 1) else 0.0 for c in range(classes)]
        for t in range(tasks)
    ]
    accuracy = [
        [sum(line[t * size : (t + 1) * size]) / size for t in range(tasks)]
        for line in class_accuracy
    ]
    content = {
        "config": config_for(data, mix=mix, seed=seed, **settings).to_json(),
        "versions": {"python": "3.11.7", "gradmix": "0.1.0", "torch": "2.13.0"},
        "class_names": list(names or [f"class {c}" for c in range(classes)]),
        "class_order": list(range(classes)),
        "tasks": [
            {
                "classes": list(range(t * size, (t + 1) * size)),
                "train": 100,
                "test": 20,
                "memory": 32,
                "replay_batch": 64,
            }
            for t in range(tasks)
        ],
        "accuracy": accuracy,
        "initial_accuracy": [0.1] * tasks,
        "class_accuracy": class_accuracy,
        "metrics": all_metrics(accuracy, [0.1] * tasks),
        "variants": {},
        "epochs": [
            {
                "task": t,
                "stage": "train",
                "loss": [0.5],
                "negative_rate": [0.25 if t and mix.startswith("grad") else None],
            }
            for t in range(tasks)
        ],
        "pair_counts": [
            _pairs(classes, size * (t + 1), draw, mixed=mix != "none") for t in range(tasks)
        ],
        "seconds": {"train": 8.0, "criterion": 1.0, "evaluate": 0.5, "total": 10.0},
    }
    known = {f.name for f in fields(RunResult)}
    later = {name: value for name, value in LATER_FIELDS.items() if name in known}
    return RunResult(**content, **later)


def _pairs(classes, seen, draw, *, mixed):
    """Counts of about the size that real runs have."""
    return [
        [
            draw.randrange(100, 3000) if mixed and a < seen and b < seen else 0
            for b in range(classes)
        ]
        for a in range(classes)
    ]


@pytest.fixture(scope="session")
def result():
    """The maker of runs."""
    return make_result


@pytest.fixture(scope="session")
def some_results():
    """Two data sets, two methods, three mixes, two seeds."""
    return [
        make_result(data, mix, seed, level=level, method=method)
        for data in ("mnist", "fashion-mnist")
        for method in ("er", "mir")
        for mix, level in (("none", 0.7), ("remix", 0.8), ("gradmix+", 0.9))
        for seed in (0, 1)
    ]


@pytest.fixture(scope="session")
def two_hundred_results():
    """Eight mixes, five methods, five seeds."""
    mixes = ("none", "mixup", "manifold-mixup", "cutmix", "remix", "balanced-mixup")
    return [
        make_result("mnist", mix, seed, level=0.7 + 0.02 * place, method=method)
        for method in ("er", "mir", "gss", "der", "der++")
        for place, mix in enumerate((*mixes, "gradmix", "gradmix+"))
        for seed in range(5)
    ]
