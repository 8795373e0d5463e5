"""Initial weights come from an explicit generator, with PyTorch's own values."""

import threading

import pytest
import torch

from gradmix.models import MODELS, build_empty_model, build_model

SHAPE = (3, 16, 16)
PYTORCHS_OWN = [
    "linear",
    "mlp",
    "mlp-small",
    "cnn",
    "resnet18-narrow",
    "resnet18-tiny",
    "resnet18-imagenet",
]
SMALL = [*PYTORCHS_OWN, "vit-small"]


def build(name, seed=3):
    return build_model(name, SHAPE, 7, generator=torch.Generator().manual_seed(seed))


def with_global_seed(name, seed=3):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return build_model(name, SHAPE, 7)


@pytest.mark.parametrize("name", PYTORCHS_OWN)
def test_a_generator_gives_the_bits_of_the_global_seed(name, assert_same):
    """A network built layer by layer after `torch.manual_seed` has the same values."""
    assert_same(build(name).state_dict(), with_global_seed(name).state_dict())


def test_a_vit_draws_its_weights_once_from_a_generator():
    """Its layers draw defaults before its own values, so that the two ways differ."""
    one, again, other = build("vit-small"), build("vit-small"), build("vit-small", seed=4)
    assert torch.equal(one.head.weight, again.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.head.weight, with_global_seed("vit-small").head.weight)


@pytest.mark.parametrize("name", SMALL)
def test_building_leaves_the_global_generator_alone(name, global_state):
    before = global_state()
    build(name)
    assert global_state() == before


@pytest.mark.parametrize("name", SMALL)
def test_no_value_is_left_out(name):
    """Memory without values would differ, or not be finite, in one of the two."""
    one, other = build(name).state_dict(), build(name).state_dict()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key
        assert bool(torch.isfinite(value.float()).all()), key
        assert float(value.float().abs().max()) < 10, key


def test_draws_of_another_thread_change_no_weights(assert_same):
    expected, stop = build("resnet18-tiny").state_dict(), threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(10):
            assert_same(build("resnet18-tiny").state_dict(), expected)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_network_takes_no_memory_and_draws_nothing(name, global_state):
    before = global_state()
    network = build_empty_model(name, SHAPE, 7)
    assert all(value.is_meta for value in network.state_dict().values())
    assert global_state() == before
