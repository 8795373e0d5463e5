"""Small data, quick classifiers, and calls with the settings of a run."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier, config_for
from gradmix.data import digits, load_dataset
from gradmix.methods import METHODS
from gradmix.runs.run import load_benchmark, prepare

QUICK = {"epochs": 2, "random_state": 0, "device": "cpu", "model": "mlp-small"}


def quick(**params):
    return IncrementalClassifier(**{**QUICK, **params})


def rows(*classes, each=20, seed=0):
    """Blobs of four columns, far apart; class k lies at k."""
    rng = np.random.default_rng(seed)
    y = np.repeat(classes, each)
    X = rng.normal(scale=0.3, size=(len(y), 4)) + 3 * np.array(
        [[hash_of(label) % 7, hash_of(label) % 5, hash_of(label) % 3, 1] for label in y.tolist()]
    )
    return X, y


def hash_of(label):
    return sum(map(ord, str(label)))


def images(*classes, each=12, shape=(3, 16, 16), seed=0):
    rng = np.random.default_rng([seed, *map(hash_of, classes)])
    y = np.repeat(classes, each)
    return rng.integers(0, 256, size=(len(y), *shape)).astype(np.uint8), y


def digit_samples(low, high, part="train"):
    """Digits from `low` to below `high`."""
    x, y = getattr(digits(), part)
    chosen = (y >= low) & (y < high)
    return x[chosen].numpy(), y[chosen].numpy()


def equal(a, b):
    """Whether two states are the same to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def digest(classifier):
    return classifier._learned.digest()


# --- calls with the settings of a run -------------------------------------------------------

SHARED = (
    *("method", "mix", "model", "epochs", "lr", "momentum", "weight_decay", "lr_steps", "alpha"),
    *("tau", "tables", "batch_size", "replay_batch_size", "exemplars_per_class", "memory_total"),
    *("criterion_exemplars", "pairing", "average", "transforms", "threads", "precision"),
)


def configuration(data, method, mix, **changes):
    config = config_for(data, method=method, mix=mix, **changes)
    return (
        config
        if METHODS[method].build.grows
        else config_for(data, method=method, mix=mix, head="fixed", **changes)
    )


def classifier_for(config, data):
    """A classifier with the settings of a run."""
    settings = {name: getattr(config, name) for name in SHARED}
    tau = None if config.recipe is None else config.recipe.tau
    grows = METHODS[config.method].build.grows
    return IncrementalClassifier(
        **{**settings, "tau": tau},
        options=dict(config.options),
        head_size=None if grows else len(data.class_names),
        mean=data.mean,
        std=data.std,
        random_state=config.seed,
        device="cpu",
    )


def one_run(config):
    """How a run in one go ends."""
    training = prepare(config, load_benchmark(config))
    for _ in training.events():
        pass
    state = training.state_dict()
    return {name: state[name] for name in ("method", "streams")}


def one_call(config, task, path):
    """Learn one task from a file, or from nothing, and leave a file."""
    data = load_dataset(config.data)
    samples = load_benchmark(config).tasks[task].train
    classifier = classifier_for(config, data)
    if task:
        classifier = IncrementalClassifier.load(path)
    classifier.partial_fit(samples.x, samples.y)
    classifier.save(path)


def one_call_of(settings, task, path):
    """`one_call` with settings as `configuration` takes them."""
    one_call(configuration(**settings), task, path)


def in_processes(settings, path, tasks, first=0):
    """Learn each task, from the first one on, in a process of its own."""
    for task in range(first, tasks):
        given = json.dumps([settings, task, str(path)])
        code = "import runpy, sys, json; run = runpy.run_path(sys.argv[1])"
        code += "; run['one_call_of'](*json.loads(sys.argv[2]))"
        subprocess.run([sys.executable, "-c", code, __file__, given], check=True)
    state = IncrementalClassifier.load(path)._learned.training_state()
    return {name: state[name] for name in ("method", "streams")}


@pytest.fixture
def without_backbone(monkeypatch):
    """As without the extra gradmix[photos]: networks are trained from scratch."""
    monkeypatch.setattr("gradmix.classifier.setup.default_backbone", lambda: None)


# --- photos for a backbone ------------------------------------------------------------------

SIZE = 32  # pixels: small, so that the backbone is fast
HUES = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 210)}


def photos(*names, each=8, side=40, seed=0):
    """Noisy photos of one hue per class, and their labels; independent of the other classes."""
    x = [
        np.random.default_rng([seed, *HUES[name]]).normal(HUES[name], 40, (each, side, side, 3))
        for name in names
    ]
    return np.concatenate(x).clip(0, 255).astype("uint8"), np.repeat(names, each)


def learned_photos(*calls, **params):
    params = {"image_size": SIZE, "random_state": 0, "threads": 1, **params}
    classifier = IncrementalClassifier(**params)
    for names in calls:
        classifier.partial_fit(*photos(*names))
    return classifier


# --- the functions above as fixtures --------------------------------------------------------


@pytest.fixture(scope="session", name="digest")
def _digest():
    return digest


@pytest.fixture(scope="session", name="images")
def _images():
    return images


@pytest.fixture(scope="session", name="quick")
def _quick():
    return quick


@pytest.fixture(scope="session", name="rows")
def _rows():
    return rows


@pytest.fixture(scope="session", name="digit_samples")
def _digit_samples():
    return digit_samples


@pytest.fixture(scope="session", name="equal")
def _equal():
    return equal


@pytest.fixture(scope="session", name="configuration")
def _configuration():
    return configuration


@pytest.fixture(scope="session", name="in_processes")
def _in_processes():
    return in_processes


@pytest.fixture(scope="session", name="one_call")
def _one_call():
    return one_call


@pytest.fixture(scope="session", name="one_run")
def _one_run():
    return one_run


@pytest.fixture(scope="session", name="photos")
def _photos():
    return photos


@pytest.fixture(scope="session", name="learned_photos")
def _learned_photos():
    return learned_photos
