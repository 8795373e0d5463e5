"""The pool: the new data first, the memory after, stored samples turned into inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError
from gradmix.types import Samples

SAME = Normalise([0.0], [1.0])
NEW = Samples(torch.tensor([[10.0], [11.0], [12.0]]), torch.tensor([5, 4, 5]))
OLD = Samples(torch.tensor([[20.0], [21.0]]), torch.tensor([0, 1]))


def test_images_are_normalised_per_channel():
    x = torch.tensor([[[[0, 4]], [[10, 30]]]], dtype=torch.uint8)  # (1, 2, 1, 2)
    inputs = Normalise([2.0, 20.0], [4.0, 10.0])(x)
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == [[[[-0.5, 0.5]], [[-1.0, 1.0]]]]


def test_rows_are_normalised_per_column_or_all_alike():
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert Normalise([1.0, 2.0], [2.0, 4.0])(x).tolist() == [[0, 0], [1, 1]]
    assert Normalise([1.0], [0.5])(x).tolist() == [[0, 2], [4, 10]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_what_is_stored_stays_as_it_is(dtype):
    x = torch.tensor([[1, 2], [3, 6]]).to(dtype)
    before = x.clone()
    first = Normalise([1.0], [2.0])(x)
    assert torch.equal(x, before)
    assert torch.equal(Normalise([1.0], [2.0])(x), first)


@pytest.mark.parametrize(
    ("mean", "std"), [([0.0], [0.0]), ([0.0], [-1.0]), ([0.0, 0.0], [1.0]), ([], [])]
)
def test_bad_statistics_are_refused(mean, std):
    with pytest.raises(InputError, match="std"):
        Normalise(mean, std)


def test_new_then_memory_in_one_range():
    pool = Pool(NEW, OLD, SAME)
    assert (len(pool), pool.num_new) == (5, 3)
    assert pool.y.tolist() == [5, 4, 5, 0, 1]
    assert pool.images(torch.arange(5)).flatten().tolist() == [10, 11, 12, 20, 21]


@pytest.mark.parametrize("memory", [None, Samples(torch.empty(0), torch.empty(0).long())])
def test_without_memory(memory):
    pool = Pool(NEW, memory, SAME)
    assert len(pool) == pool.num_new == 3
    assert pool.y.tolist() == [5, 4, 5]


def test_an_empty_memory_does_not_turn_stored_images_into_floats():
    images = Samples(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 1]))
    pool = Pool(images, Samples(torch.empty(0), torch.empty(0).long()), SAME)
    assert pool._x.dtype == torch.uint8


def test_asking_for_images_leaves_the_stored_ones():
    pool = Pool(NEW, OLD, Normalise([1.0], [2.0]))
    index = torch.tensor([4, 0, 4])
    expected = [(21 - 1) / 2, (10 - 1) / 2, (21 - 1) / 2]
    assert pool.images(index).flatten().tolist() == expected
    assert pool.images(index).flatten().tolist() == expected
    assert NEW.x.flatten().tolist() == [10, 11, 12]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), max_size=10))
def test_a_batch_knows_where_it_comes_from(index):
    pool = Pool(NEW, OLD, SAME)
    batch = pool.batch(torch.tensor(index, dtype=torch.int64))
    assert batch.index.tolist() == index
    assert batch.y.tolist() == [[5, 4, 5, 0, 1][k] for k in index]
    assert batch.x.flatten().tolist() == [[10, 11, 12, 20, 21][k] for k in index]
