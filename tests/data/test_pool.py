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
    assert (len(pool), pool.num_new, pool.input_shape) == (5, 3, (1,))
    assert pool.y.tolist() == [5, 4, 5, 0, 1]
    assert pool.inputs(torch.arange(5)).flatten().tolist() == [10, 11, 12, 20, 21]


@pytest.mark.parametrize("memory", [None, Samples(torch.empty(0), torch.empty(0).long())])
def test_without_memory(memory):
    pool = Pool(NEW, memory, SAME)
    assert len(pool) == pool.num_new == 3
    assert pool.y.tolist() == [5, 4, 5]


def test_an_empty_memory_does_not_turn_stored_images_into_floats():
    images = Samples(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 1]))
    seen = []

    def look(x, *, generator):
        seen.append(x.dtype)
        return x

    Pool(images, Samples(torch.empty(0), torch.empty(0).long()), SAME, [look]).augmented(images.y)
    assert seen == [torch.uint8]


def test_asking_for_images_leaves_the_stored_ones():
    pool = Pool(NEW, OLD, Normalise([1.0], [2.0]))
    index = torch.tensor([4, 0, 4])
    expected = [(21 - 1) / 2, (10 - 1) / 2, (21 - 1) / 2]
    assert pool.inputs(index).flatten().tolist() == expected
    assert pool.inputs(index).flatten().tolist() == expected
    assert NEW.x.flatten().tolist() == [10, 11, 12]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 11), max_size=20),
    st.floats(0, 255, width=32),
    st.floats(0.5, 100, width=32),
    st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
def test_inputs_kept_are_those_worked_out_each_time(index, mean, std, dtype):
    """A small pool keeps its inputs, a large one its images: the same bits."""
    x = torch.randint(256, (12, 1, 3, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    y, normalise = torch.zeros(12).long(), Normalise([mean], [std])
    new, memory = Samples(x[:8], y[:8]), Samples(x[8:], y[8:])
    small = Pool(new, memory, normalise)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradmix.data.pool.READY_BYTES", 4 * x.numel() - 1)
        large = Pool(new, memory, normalise)
    rows = torch.tensor(index, dtype=torch.int64)
    assert small._stored.index_select(0, rows).dtype == torch.float32
    assert large._stored.index_select(0, rows).dtype == dtype
    assert torch.equal(small.inputs(rows), large.inputs(rows))
    assert torch.equal(small.augmented(rows), large.augmented(rows))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), max_size=10))
def test_a_batch_has_the_samples_asked_for(index):
    pool = Pool(NEW, OLD, SAME)
    batch = pool.batch(torch.tensor(index, dtype=torch.int64))
    assert batch.y.tolist() == [[5, 4, 5, 0, 1][k] for k in index]
    assert batch.x.flatten().tolist() == [[10, 11, 12, 20, 21][k] for k in index]


def plus_one(x, *, generator):
    """A transform that shows: each image brighter by 1 or 2."""
    return x + torch.randint(1, 3, (len(x), 1, 1, 1), generator=generator).to(torch.uint8)


def test_views_are_transformed_and_images_are_not():
    x = torch.zeros(64, 1, 2, 2, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    pool = Pool(Samples(x, torch.zeros(64).long()), None, SAME, [plus_one, plus_one], generator)
    index = torch.arange(64)
    assert set(pool.augmented(index).flatten().tolist()) == {2.0, 3.0, 4.0}
    assert set(pool.batch(index).x.flatten().tolist()) == {2.0, 3.0, 4.0}
    assert pool.inputs(index).sum() == 0
    assert not pool.one_gather


class Files:
    """A stand-in for images in files that notes how they are asked for."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.device = x, x.shape, x.dtype, x.device
        self.direct, self.ahead = [], []

    def __len__(self):
        return len(self.x)

    def index_select(self, _, index):
        self.direct.append(index.tolist())
        return self.x[index]

    def batches(self, batches):
        for batch in batches:
            self.ahead.append(batch.tolist())
            yield self.x[batch]


@pytest.fixture
def streamed():
    x = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    files = Files(x)
    memory = Samples(torch.full((2, 1, 1, 1), 100, dtype=torch.uint8), torch.tensor([0, 0]))
    return files, Pool(Samples(files, torch.ones(6).long()), memory, SAME)


def test_streamed_and_stored_samples_together(streamed):
    files, pool = streamed
    assert pool.input_shape == (1, 1, 1)
    index = torch.tensor([7, 3, 0, 6, 3])
    assert pool.inputs(index).flatten().tolist() == [100, 3, 0, 100, 3]
    assert pool.inputs(torch.tensor([6, 7])).flatten().tolist() == [100, 100]
    assert pool.batch(index).y.tolist() == [0, 1, 1, 0, 1]
    assert files.direct[0] == [0, 3]  # each file once
    assert not pool.one_gather


def test_what_is_expected_is_read_ahead_and_once(streamed):
    files, pool = streamed
    first, second = torch.tensor([4, 1]), torch.tensor([0, 5])
    pool.expect([first, second])
    assert pool.inputs(torch.cat([first, torch.tensor([6])])).flatten().tolist() == [4, 1, 100]
    assert pool.inputs(first).flatten().tolist() == [4, 1]  # asked for again in the same step
    assert pool.inputs(torch.tensor([2])).flatten().tolist() == [2]  # a partner from outside
    assert pool.inputs(torch.cat([second, torch.tensor([7])])).flatten().tolist() == [0, 5, 100]
    assert files.ahead == [[1, 4], [0, 5]]
    assert files.direct == [[2]]


def test_parts_of_an_expected_batch_are_read_ahead_and_once(streamed):
    files, pool = streamed
    pool.expect([torch.tensor([7, 6]), torch.tensor([4, 1, 6]), torch.tensor([0])])
    assert pool.inputs(torch.tensor([6, 7])).flatten().tolist() == [100, 100]
    for index in ([4, 4], [1], [7, 1, 4]):
        assert pool.inputs(torch.tensor(index)).flatten()[-1] == index[-1]
    assert pool.inputs(torch.tensor([0])).flatten().tolist() == [0]
    pool.expect([torch.tensor([0]), torch.tensor([3])])  # another epoch begins as this one ends
    assert pool.inputs(torch.tensor([0])).flatten().tolist() == [0]
    assert pool.inputs(torch.tensor([3])).flatten().tolist() == [3]
    assert files.ahead == [[1, 4], [0], [0], [3]]
    assert files.direct == []


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([2, 1, 2])])
def test_a_rank_reads_only_its_rows_and_draws_for_all(streamed, rows):
    files, plain = streamed
    whole, part = (
        Pool(*plain.parts, SAME, [plus_one], torch.Generator().manual_seed(0)) for _ in range(2)
    )
    index = torch.tensor([5, 0, 7, 3, 2])
    expected = whole.augmented(index)[rows]
    files.direct.clear()
    assert torch.equal(part.augmented(index, rows), expected)
    assert files.direct == [[0]]


def test_a_pool_without_some_samples():
    pool = Pool(NEW, OLD, SAME).without(torch.tensor([3, 1]))
    assert (pool.num_new, pool.y.tolist()) == (2, [5, 5, 1])
    assert pool.inputs(torch.arange(3)).flatten().tolist() == [10, 12, 21]
    alone = Pool(NEW, None, SAME).without(torch.tensor([0]))
    assert (alone.num_new, alone.y.tolist()) == (2, [4, 5])


def test_other_samples_with_the_same_transforms():
    double = Pool(NEW, None, SAME, [lambda x, generator: 2 * x]).with_samples(OLD)
    assert (double.num_new, double.y.tolist()) == (2, [0, 1])
    assert double.augmented(torch.arange(2)).flatten().tolist() == [40, 42]
    assert double.inputs(torch.arange(2)).flatten().tolist() == [20, 21]
