"""Calls in processes of their own, through files, end as one run does, to the last bit."""

import pytest

from gradmix import IncrementalClassifier
from gradmix.data import DATASETS
from gradmix.errors import DataNotFoundError
from gradmix.files import read_state_file, write_state_file
from gradmix.methods import METHODS

WITHOUT_GRADIENTS = [name for name, info in METHODS.items() if not info.build.replays]
TRAINED = [name for name, info in METHODS.items() if info.build.trains]


def in_order(value):
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return value


@pytest.fixture(scope="session")
def same(equal):
    def same(left, right):
        return equal(in_order(left), in_order(right))

    return same


@pytest.mark.slow  # tests/cli/test_learn.py continues in another process, too
def test_two_calls_in_two_processes(tmp_path, configuration, in_processes, one_call, one_run, same):
    settings = {"data": "digits", "method": "er", "mix": "gradmix+", "device": "cpu", "epochs": 1}
    settings["increments"] = [5, 5]
    write_state_file(tmp_path / "run", "ending", one_run(configuration(**settings)))
    ending = read_state_file(tmp_path / "run", "ending")
    one_call(configuration(**settings), 0, tmp_path / "f")
    assert same(in_processes(settings, tmp_path / "f", 2, first=1), ending)


@pytest.mark.slow
def test_five_calls_in_five_processes_on_mnist(
    tmp_path, configuration, in_processes, one_run, same
):
    """The paper's settings, except the number of epochs."""
    try:
        DATASETS["mnist"].load()
    except DataNotFoundError:
        pytest.skip("MNIST is not on this machine")
    settings = {"data": "mnist", "method": "er", "mix": "gradmix+", "device": "cpu", "epochs": 2}
    write_state_file(tmp_path / "run", "ending", one_run(configuration(**settings)))
    ending = read_state_file(tmp_path / "run", "ending")
    assert same(in_processes(settings, tmp_path / "f", 5), ending)


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_on_digits(tmp_path, method, configuration, one_call, one_run, same):
    mix = "mixup" if method in WITHOUT_GRADIENTS else "gradmix+"
    settings = {"epochs": 1, "increments": (4, 3, 3), "device": "cpu", "batch_size": 64}
    config = configuration("digits", method, mix, **settings)
    ending = one_run(config)
    for task in range(3):
        one_call(config, task, tmp_path / "f")
    state = IncrementalClassifier.load(tmp_path / "f")._learned.training_state()
    assert same({name: state[name] for name in ending}, ending)
