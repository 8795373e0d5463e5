"""Streams: one seed the same bits, no stream hears another, and nobody hears the global one."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmix.errors import InputError
from gradmix.randomness import RandomStreams


@contextmanager
def global_state_untouched():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    yield
    assert torch.equal(torch.get_rng_state(), torch_state)
    for before, after in zip(numpy_state, np.random.get_state(), strict=True):
        assert np.array_equal(before, after)


def tensor_draws(streams, name, count=4):
    return torch.rand(count, generator=streams.device(name)).tolist()


def scalar_draws(streams, name, count=4):
    return streams.host(name).random(count).tolist()


def weights(streams, name):
    with streams.as_global(name):
        return nn.Linear(3, 2).weight.flatten().tolist()


DRAWS = [tensor_draws, scalar_draws, weights]


@pytest.mark.parametrize("draw", DRAWS)
def test_same_seed_same_bits_and_the_stream_moves_on(draw):
    one, other = RandomStreams(7), RandomStreams(7)
    first = draw(one, "batches")
    assert draw(other, "batches") == first
    second = draw(one, "batches")
    assert second == draw(other, "batches") != first


@pytest.mark.parametrize("draw", DRAWS)
def test_seeds_and_names_differ(draw):
    of = {(seed, name): draw(RandomStreams(seed), name) for seed in (0, 1) for name in "ab"}
    assert len({tuple(values) for values in of.values()}) == 4


def test_a_large_seed_is_not_cut():
    assert scalar_draws(RandomStreams(2**70), "a") != scalar_draws(RandomStreams(2**71), "a")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(DRAWS), st.sampled_from(["a", "b", "mixing"]))))
def test_no_stream_hears_the_others(uses):
    streams = RandomStreams(3)
    for draw, name in uses:
        draw(streams, name)
    fresh = RandomStreams(3)
    assert tensor_draws(streams, "quiet") == tensor_draws(fresh, "quiet")
    assert scalar_draws(streams, "quiet") == scalar_draws(fresh, "quiet")
    assert weights(streams, "silent") == weights(fresh, "silent")


def test_scalars_and_tensors_of_one_name_are_two_streams():
    streams, fresh = RandomStreams(3), RandomStreams(3)
    scalar_draws(streams, "mixing", 100)
    assert tensor_draws(streams, "mixing") == tensor_draws(fresh, "mixing")
    tensor_draws(streams, "mixing", 100)
    scalar_draws(fresh, "mixing", 100)
    assert scalar_draws(streams, "mixing") == scalar_draws(fresh, "mixing")


def test_a_name_is_always_the_same_generator():
    streams = RandomStreams(0)
    assert streams.device("a") is streams.device("a")
    assert streams.host("a") is streams.host("a")


def test_the_global_generators_are_neither_heard_nor_moved():
    torch.manual_seed(1)
    streams = RandomStreams(5)
    with global_state_untouched():
        heard = [draw(streams, "a") for draw in DRAWS]
        streams.load_state_dict(streams.state_dict())
    torch.manual_seed(2)
    other = RandomStreams(5)
    assert [draw(other, "a") for draw in DRAWS] == heard


def test_construction_puts_the_global_state_back_after_an_error():
    def construct():
        with RandomStreams(0).as_global("a"):
            nn.Linear(int(torch.rand(1)), "none")

    with global_state_untouched(), pytest.raises(TypeError):
        construct()


def test_state_goes_on_in_the_middle():
    streams = RandomStreams(11)
    for draw in DRAWS:
        draw(streams, "used")
    state = streams.state_dict()
    expected = [draw(streams, "used") for draw in DRAWS]
    again = RandomStreams(11)
    tensor_draws(again, "used", 50)
    again.load_state_dict(state)
    assert [draw(again, "used") for draw in DRAWS] == expected


def test_loading_refills_the_generators_that_consumers_hold():
    streams = RandomStreams(11)
    held_tensor, held_scalar = streams.device("held"), streams.host("held")
    state = streams.state_dict()
    expected = torch.rand(3, generator=held_tensor).tolist(), held_scalar.random(3).tolist()
    streams.load_state_dict(state)
    assert torch.rand(3, generator=held_tensor).tolist() == expected[0]
    assert held_scalar.random(3).tolist() == expected[1]


def test_streams_the_state_does_not_know_start_anew():
    state = RandomStreams(11).state_dict()
    streams, fresh = RandomStreams(11), RandomStreams(11)
    for draw in DRAWS:
        draw(streams, "late")
    streams.load_state_dict(state)
    assert [draw(streams, "late") for draw in DRAWS] == [draw(fresh, "late") for draw in DRAWS]


def test_state_is_plain():
    streams = RandomStreams(11)
    tensor_draws(streams, "a")
    scalar_draws(streams, "b")
    state = streams.state_dict()
    assert state["seed"] == 11
    assert state["device"].keys() == {"a"}
    assert state["host"].keys() == {"b"}
    assert isinstance(state["device"]["a"], torch.Tensor)
    assert isinstance(state["host"]["b"], str)


def test_the_state_of_another_seed_is_refused_and_nothing_changes():
    streams, fresh = RandomStreams(1), RandomStreams(1)
    other = RandomStreams(2)
    tensor_draws(other, "a")
    with pytest.raises(InputError, match="seed 2"):
        streams.load_state_dict(other.state_dict())
    assert tensor_draws(streams, "a") == tensor_draws(fresh, "a")


@pytest.mark.parametrize("seed", [-1, True, 1.0, "1", None])
def test_a_seed_is_an_integer_from_zero_on(seed):
    with pytest.raises(InputError, match="seed is"):
        RandomStreams(seed)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["host"].update(a="{}"),
        lambda state: state["host"].update(a="[" * 100_000),
        lambda state: state["host"].update(a=None),
        lambda state: state["device"].update(a=torch.zeros(3, dtype=torch.uint8)),
        lambda state: state["device"].update(a=state["device"]["a"].int()),
        lambda state: state["device"].update(a=None),
        lambda state: state["device"]["a"][8:12].fill_(255),  # more numbers left than there are
        lambda state: state["device"]["a"][16:24].fill_(7),  # reads beyond the 624 numbers
    ],
)
def test_an_invalid_state_is_refused_and_nothing_changes(change):
    streams, fresh = RandomStreams(1), RandomStreams(1)
    tensor_draws(streams, "a"), scalar_draws(streams, "a")
    state = streams.state_dict()
    change(state)
    with pytest.raises(InputError, match="stream 'a': the saved state"):
        fresh.load_state_dict(state)
    assert tensor_draws(fresh, "a") == tensor_draws(RandomStreams(1), "a")


def test_generators_for_networks_are_new_each_time_and_the_same_for_a_seed(global_state):
    before = global_state()
    one, other = RandomStreams(3), RandomStreams(3)
    drawn = [torch.rand(2, generator=one.generator("weights")).tolist() for _ in range(2)]
    assert drawn == [torch.rand(2, generator=other.generator("weights")).tolist() for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert global_state() == before
