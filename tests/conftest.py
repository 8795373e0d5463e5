"""For all tests: one thread each, no downloads, pairwise sampling, and small trainings."""

import math
import os
import shutil
import signal
import textwrap
from collections import defaultdict
from itertools import combinations
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from lightning_fabric import Fabric
from torch import nn

from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.scores import Exemplars
from gradmix.data import benchmark_from_tasks
from gradmix.mixing import parse_recipe
from gradmix.models import MLP, ResNet18, build_model
from gradmix.randomness import RandomStreams
from gradmix.settings import CriterionSettings, MemorySettings, TrainingSettings
from gradmix.training.build import Design
from gradmix.training.loop import StepDone, TaskDone, Training
from gradmix.training.online import OnlineTraining
from gradmix.types import Samples

collect_ignore = ["smoke.py"]  # make wheel runs it

torch.set_num_threads(1)  # as many tests run at once as there are cores
os.environ["GRADMIX_OFFLINE"] = "1"
anywhere = hypothesis_settings(
    deadline=None,  # machines may be slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
hypothesis_settings.register_profile("explore", anywhere)  # new examples, for make test-all
hypothesis_settings.register_profile("same-examples", anywhere, derandomize=True)
hypothesis_settings.load_profile("same-examples")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in background jobs of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or Ctrl-C could not be tested


@pytest.fixture(autouse=True)
def _keep_interrupts():
    """Restore the handler of Ctrl-C: the command line ignores it once it has ended."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plugins():
    """Forget the plugins that a test registers."""
    from gradmix import plugins
    from gradmix.mixing import ABOUT, recipe
    from gradmix.settings import PRESETS
    from gradmix.training.metrics import LOWER_IS_BETTER

    tables = [*plugins.TABLES.values(), plugins._plugins, plugins._broken, ABOUT, PRESETS]
    tables += [recipe.PARTNERS, recipe.BLENDS, recipe.LABELS, LOWER_IS_BETTER]
    before = [table.copy() for table in tables]
    yield plugins
    for table, content in zip(tables, before, strict=True):
        table.clear()
        (table.extend if isinstance(table, list) else table.update)(content)


@pytest.fixture(scope="session")
def forked():
    """Return a function that starts a process that executes code with given names.

    The process is forked from one that has only imported things, so it starts in milliseconds.
    """
    context = get_context("forkserver")
    imported = ["gradmix.runs.run", "sklearn.datasets", "lightning_fabric", "pytest"]
    context.set_forkserver_preload(imported)

    def start(code, **names):
        process = context.Process(target=exec, args=(textwrap.dedent(code), names), daemon=True)
        process.start()
        return process

    return start


# --- pairwise sampling of large products ---------------------------------------------------------


def pytest_configure(config):
    """Declare the marker of this file."""
    config.addinivalue_line(
        "markers",
        "pairwise: of all combinations of parameters, run only enough to have every pair of values "
        "once; the others are slow",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow what the pairwise samples do not need; repeat a failed test in a browser once.

    A browser on a busy machine can be too slow for a test. A defect fails twice.
    """
    families = defaultdict(list)
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("pairwise"):
            families[item.parent.nodeid, item.originalname].append(item)
    for family in families.values():
        values = [{k: repr(v) for k, v in item.callspec.params.items()} for item in family]
        needed = _sample_pairwise([tuple(case.items()) for case in values])
        for number, item in enumerate(family):
            if number not in needed:
                item.add_marker(pytest.mark.slow)


def _sample_pairwise(cases):
    """Return the numbers of enough cases to have every pair of values once, greedily."""
    pairs = [set(combinations(case, 2)) or {case} for case in cases]
    missing, chosen = set().union(*pairs), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


@pytest.fixture(scope="session")
def sample_pairwise():
    """Return the function that samples combinations."""
    return _sample_pairwise


# --- randomness and comparison -------------------------------------------------------------------


@pytest.fixture(scope="session")
def seeded():
    """Return a function that makes a generator from a seed."""
    return lambda seed=0: torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def global_state():
    """Return a function that returns the state of the global generators, to compare with `==`."""

    def state():
        keys, *rest = np.random.get_state()[1:]
        return [torch.get_rng_state().tolist(), keys.tolist(), *rest]

    return state


def _leaves(state, prefix=""):
    """Every leaf of a state by its path."""
    if isinstance(state, dict | list | tuple):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for name, part in items for k, v in _leaves(part, f"{prefix}/{name}").items()}
    return {prefix: state}


def _assert_same(one, other):
    a, b = _leaves(one), _leaves(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if torch.is_tensor(value) else value == b[name]
        assert same, name


def _assert_same_events(ours, theirs):
    assert [type(event) for event in ours] == [type(event) for event in theirs]
    for one, other in zip(ours, theirs, strict=True):
        _assert_same(one._asdict(), other._asdict())


@pytest.fixture(scope="session")
def assert_same():
    """Return a function that compares two structures of tensors and plain values, bit by bit."""
    return _assert_same


@pytest.fixture(scope="session")
def assert_same_events():
    """Return a function that compares two lists of events of the loop, bit by bit."""
    return _assert_same_events


# --- the criterion -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def batch_norm_model():
    """Return a function that makes a network with BatchNorm and dropout.

    It takes all samples for class 4 or 6, so that some pairs of classes do harm.
    """

    def make(inputs, outputs, bias=True):
        with torch.random.fork_rng([]):
            torch.manual_seed(5)
            model = nn.Sequential(
                nn.Linear(inputs, 6),
                nn.BatchNorm1d(6),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(6, outputs, bias=bias),
            )
            with torch.no_grad():
                model[1].running_mean.uniform_(-1, 1)
                model[1].bias.fill_(1.0)
                model[4].weight[[4, 6]] += 0.5
        return model

    return make


@pytest.fixture(scope="session")
def reference_table():
    """Return a function that computes Algorithm 1 by explicit gradients, on all sample pairs.

    The samples from place `num_new` on are the memory.
    """

    def table(model, x, y, num_new, lam, average="sample", gradient="memory"):
        head = model[-1]
        model.eval()
        with torch.no_grad():
            embeddings = model[:-1](x)
            exemplars = Exemplars(embeddings, head(embeddings), y)
        model.train()
        protected = torch.arange(len(y)) >= (num_new if gradient == "memory" else 0)
        settings = CriterionSettings(pairing="all-pairs", average=average)
        bias = head.bias is not None
        return reference_pair_table(exemplars, protected, lam, settings, bias=bias)

    return table


# --- small trainings -----------------------------------------------------------------------------

SIDE = 8
SIZES = ((13, 12), (9, 8), (8, 9))  # samples of the two classes of each of three tasks


def _blobs(sizes=SIZES, channels=1, noise=20, tests=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (channels, SIDE, SIDE)
    centres = torch.randint(60, 196, (sum(map(len, sizes)), *shape), generator=generator)

    def samples(first, counts):
        y = torch.cat([torch.full((n,), first + k) for k, n in enumerate(counts)])
        offsets = torch.randint(-noise, noise + 1, (len(y), *shape), generator=generator)
        return Samples((centres[y] + offsets).clamp(0, 255).to(torch.uint8), y)

    tasks, first = [], 0
    for counts in sizes:
        tasks.append((samples(first, counts), samples(first, [tests] * len(counts))))
        first += len(counts)
    return benchmark_from_tasks("blobs", tasks)


class Shortcuts:
    """Shortcuts to the places of a training that tests look at."""

    def finish(self):
        """Return all events from here to the end."""
        return list(self.events())

    def run_tasks(self, number):
        """Train until `number` tasks are done; a new `events()` continues from there."""
        for event in self.events():
            if isinstance(event, TaskDone) and event.task == number - 1:
                return

    def stop_in_task(self, task, steps=1, stage=None):
        """Train until `steps` steps of task number `task` (from 0), or of its stage, are done."""
        done = 0
        for event in self.events():
            if isinstance(event, StepDone) and event.task == task:
                done += stage is None or self.method.stage.name == stage
                if done == steps:
                    return
        raise AssertionError("there is no such step")

    def accuracies(self):
        """Return the share of each task's test samples that are classified correctly now."""
        correct, tasks = self.evaluate().correct["main"], self.benchmark.tasks
        return [
            float(right.sum()) / len(task.test.y)
            for right, task in zip(correct, tasks, strict=True)
        ]


class SmallTraining(Shortcuts, Training):
    """A training with shortcuts."""


class SmallOnlineTraining(Shortcuts, OnlineTraining):
    """An online training with shortcuts."""


def _network(name, shape, outputs):
    if name == "mlp":
        return MLP(math.prod(shape), outputs, (16, 12))
    if name == "resnet":
        return ResNet18(outputs, in_channels=shape[0], width=8)
    return build_model(name, shape, outputs)


def _make_training(
    method="er",
    mix="none",
    network="mlp",
    *,
    benchmark=None,
    seed=0,
    options=None,
    memory=None,
    exemplars=3,
    criterion="auto",
    mix_settings=None,
    selection=None,
    transforms=(),
    online=False,
    **settings,
):
    benchmark = _blobs() if benchmark is None else benchmark
    training = {"epochs": 1, "batch_size": 8, "replay_batch_size": 6, "lr": 0.05, **settings}
    budget = {"exemplars_per_class": exemplars, **(memory or {})}
    design = Design(
        method,
        parse_recipe(mix, **(mix_settings or {})),
        TrainingSettings(**training),
        tuple((options or {}).items()),
        MemorySettings(
            exemplars_per_class=budget.get("exemplars_per_class"),
            memory_total=budget.get("total"),
            exemplar_selection=selection,
        ),
        criterion=CriterionSettings(criterion_exemplars=3, criterion=criterion),
        balanced=budget.get("balanced", True),
    )
    outputs = len(benchmark.tasks[0].classes) if design.grows else benchmark.num_classes
    shape = benchmark.tasks[0].train.x.shape[1:]

    def build(generator):
        if callable(network):
            return network(outputs)
        with torch.device("meta"):
            empty = _network(network, shape, outputs)
        made = empty.to_empty(device="cpu")
        made.initialise(generator)
        return made

    learner = design.build(
        build, benchmark.num_classes, shape, benchmark.mean, benchmark.std, RandomStreams(seed)
    )
    fabric = Fabric(accelerator="cpu", devices=1)
    kind = SmallOnlineTraining if online else SmallTraining
    return kind(benchmark, learner, fabric, transforms)


@pytest.fixture(scope="session")
def blobs():
    """Return a function that makes a benchmark of images around one random image per class.

    The classes are well separated unless the noise is great.
    """
    return _blobs


@pytest.fixture(scope="session")
def make_training():
    """Return a function that makes any method × mix × network, ready to train on `blobs`.

    `network` is "mlp" or "resnet", both small, the name of another network, or a function of the
    number of outputs. `online` passes the data once. Other keywords are settings of the training.
    """
    return _make_training


# --- results -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def example():
    """Return a function that makes a result with a given average accuracy."""
    return example_result


def example_result(accuracy=1.0, **settings):
    """A consistent result of two tasks; forgetting is a tenth of the accuracy, or 0 above 0.9."""
    from gradmix.runs.config import config_for
    from gradmix.runs.results import RunResult, protocol_version
    from gradmix.training.metrics import all_metrics

    lost = accuracy / 10 if accuracy <= 0.9 else 0.0
    matrix = [[accuracy, 0.0], [accuracy - lost, accuracy + lost]]
    initial = [0.5, 0.0]
    config = config_for(**{"data": "digits", **settings}).to_json()
    metrics = all_metrics(matrix, initial) | {"average_accuracy": accuracy}
    task = {"train": 2, "test": 2, "memory": 1, "replay_batch": 1}
    return RunResult(
        config=config,
        versions={"gradmix": "0"},
        class_names=["a", "b"],
        class_order=[1, 0],
        tasks=[{"classes": [label], **task} for label in (0, 1)],
        accuracy=matrix,
        initial_accuracy=initial,
        class_accuracy=[[1.0, 0.5], [1.0, 0.5]],
        metrics=metrics,
        variants={},
        epochs=[
            {"task": task, "stage": "train", "loss": [0.5], "negative_rate": [None]}
            for task in (0, 1)
        ],
        pair_counts=[[[1, 2], [3, 4]], [[1, 2], [3, 4]]],
        seconds={"train": 0.5, "criterion": 0.1, "evaluate": 0.2, "total": 1.0},
        protocol_version=protocol_version(config),
    )


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium, driven by Playwright; without it the tests that need it are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser: no playwright")
    found = os.environ.get("GRADMIX_CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("no browser: install chromium, or set GRADMIX_CHROMIUM to a chromium's path")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # containers have a small /dev/shm
        launch = started.chromium.launch
        try:
            chromium = launch(executable_path=found, args=arguments, timeout=180_000)
        except playwright.Error as error:
            pytest.skip(f"no browser: {found} does not start: {error}")
        yield chromium
        chromium.close()
