"""The memory: never over budget, the lowest priorities kept, and a uniform sample of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.errors import InputError
from gradmix.memory import ReplayMemory, random_priority
from gradmix.types import Samples


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def offer(labels, first=0):
    """Samples whose one value is their number, `first` and on."""
    numbers = torch.arange(first, first + len(labels), dtype=torch.float32)
    return Samples(numbers[:, None], torch.tensor(labels, dtype=torch.int64))


def contents(memory):
    return memory.x.flatten().tolist(), memory.y.tolist()


def filled(**budget):
    memory = ReplayMemory(**budget)
    memory.add(offer([0, 0, 2, 2, 2]), torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1]))
    return memory


def test_keeps_the_lowest_priorities_of_every_class():
    memory = filled(exemplars_per_class=2)
    assert contents(memory) == ([1, 0, 4, 3], [0, 0, 2, 2])
    assert len(memory) == 4
    assert memory.samples.x is memory.x
    assert memory.samples.y is memory.y


def test_a_later_add_competes_with_what_is_there():
    memory = filled(exemplars_per_class=2)
    memory.add(offer([2, 1, 2], first=5), torch.tensor([0.15, 9.0, 0.25]))
    assert contents(memory) == ([1, 0, 6, 4, 5], [0, 0, 1, 2, 2])


def test_a_total_is_shared_and_the_lowest_labels_take_the_remainder():
    memory = filled(total=5)
    assert memory.quota(torch.tensor([0, 2])).tolist() == [3, 0, 2]
    assert memory.quota(torch.tensor([1, 3, 4])).tolist() == [0, 2, 0, 2, 1]
    assert contents(memory) == ([1, 0, 4, 3], [0, 0, 2, 2])  # class 0 has but two of its three
    memory.add(offer([1, 1, 1], first=5), torch.tensor([3.0, 2.0, 1.0]))
    assert contents(memory) == ([1, 0, 7, 6, 4], [0, 0, 1, 1, 2])


def test_quota_per_class_by_label():
    assert ReplayMemory(exemplars_per_class=7).quota(torch.tensor([1, 3])).tolist() == [0, 7, 0, 7]


adds = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=6)
budgets = st.one_of(
    st.integers(1, 5).map(lambda n: {"exemplars_per_class": n}),
    st.integers(1, 20).map(lambda n: {"total": n}),
)


@settings(deadline=None, max_examples=100)
@given(adds, budgets, st.integers(0, 2**31))
def test_within_budget_and_the_best_of_all_ever_offered(adds, budget, seed):
    memory, generator = ReplayMemory(**budget), seeded(seed)
    offered: list[tuple[int, float, float]] = []
    for labels in adds:
        samples = offer(labels, first=len(offered))
        priority = random_priority(len(labels), generator)
        classes = sorted({label for label, _, _ in offered} | set(labels))
        if budget.get("total", math.inf) < len(classes):
            before = contents(memory)
            with pytest.raises(InputError, match="total"):
                memory.add(samples, priority)
            assert contents(memory) == before
            return
        memory.add(samples, priority)
        offered += zip(labels, priority.tolist(), samples.x.flatten().tolist(), strict=True)

        x, y = [], []
        for rank, label in enumerate(classes):
            if "total" in budget:
                quota = math.ceil((budget["total"] - rank) / len(classes))
            else:
                quota = budget["exemplars_per_class"]
            best = sorted(entry[1:] for entry in offered if entry[0] == label)[:quota]
            x += [number for _, number in best]
            y += [label] * len(best)
        assert contents(memory) == (x, y)
        assert len(memory) <= budget.get("total", math.inf)


@pytest.mark.parametrize("budget", [{"exemplars_per_class": 6}, {"total": 12}])
def test_random_priorities_keep_a_uniform_sample_over_several_adds(budget):
    generator, trials = seeded(3), 800
    times = torch.zeros(30)
    for _ in range(trials):
        memory = ReplayMemory(**budget)
        for first, size in ((0, 5), (5, 10), (15, 15)):
            memory.add(offer([0] * size, first), random_priority(size, generator))
        memory.add(offer([1] * 20, first=30), random_priority(20, generator))
        kept = memory.x[memory.y == 0].flatten().long()
        assert len(kept) == 6
        times[kept] += 1
    share = 6 / 30
    assert (times - trials * share).abs().max() < 4.5 * math.sqrt(trials * share * (1 - share))


def test_random_priority_is_float64_and_seeded():
    priority = random_priority(1000, seeded())
    assert priority.dtype == torch.float64
    assert priority.unique().shape == (1000,)
    assert torch.equal(priority, random_priority(1000, seeded()))


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_draw_is_without_replacement(count):
    drawn = filled(exemplars_per_class=2).draw(count, seeded())
    assert len(drawn) == count
    assert len(set(drawn.tolist())) == count
    assert set(drawn.tolist()) <= set(range(4))


def test_draw_of_more_than_there_is_gives_all():
    assert filled(exemplars_per_class=2).draw(64, seeded()).sort().values.tolist() == [0, 1, 2, 3]
    assert ReplayMemory(total=3).draw(64, seeded()).tolist() == []


def test_draw_is_uniform():
    memory, generator, trials = filled(exemplars_per_class=2), seeded(1), 2000
    times = torch.zeros(4)
    for _ in range(trials):
        times[memory.draw(1, generator)] += 1
    assert (times - trials / 4).abs().max() < 4.5 * math.sqrt(trials * 3 / 16)


@pytest.mark.parametrize("budget", [{"exemplars_per_class": 2}, {"total": 5}])
def test_a_saved_memory_goes_on_exactly(budget):
    memory, again = filled(**budget), ReplayMemory(**budget)
    state = memory.state_dict()
    again.load_state_dict(state)
    assert contents(again) == contents(memory)
    for each in (memory, again):
        each.add(offer([2, 0, 1], first=5), torch.tensor([0.15, 0.45, 1.0]))
    assert contents(again) == contents(memory)
    assert torch.equal(again.state_dict()["priority"], memory.state_dict()["priority"])
    assert len(state["y"]) == 4  # what was saved is not touched by later adds


def test_an_empty_memory_can_be_saved():
    memory = filled(total=5)
    memory.load_state_dict(ReplayMemory(total=5).state_dict())
    assert len(memory) == 0


@pytest.mark.parametrize("budget", [{"exemplars_per_class": 1}, {"total": 3}, {"total": 1}])
def test_a_saved_memory_over_budget_is_refused(budget):
    state = filled(exemplars_per_class=2).state_dict()
    memory = ReplayMemory(**budget)
    with pytest.raises(InputError):
        memory.load_state_dict(state)
    assert len(memory) == 0


def test_a_saved_memory_just_within_budget_is_taken():
    memory = ReplayMemory(total=4)
    memory.load_state_dict(filled(exemplars_per_class=2).state_dict())
    assert len(memory) == 4


ROWS = torch.zeros(2, 1)
LABELS = torch.tensor([0, 1])
PRIORITY = torch.zeros(2)


@pytest.mark.parametrize(
    ("x", "y", "priority"),
    [
        pytest.param(ROWS[:1], LABELS, PRIORITY, id="fewer samples"),
        pytest.param(ROWS, LABELS[:1], PRIORITY, id="fewer labels"),
        pytest.param(ROWS, LABELS, PRIORITY[:1], id="fewer priorities"),
        pytest.param(ROWS[:0], LABELS[:0], PRIORITY[:0], id="nothing"),
        pytest.param(ROWS, LABELS.int(), PRIORITY, id="int32 labels"),
        pytest.param(ROWS, LABELS - 1, PRIORITY, id="negative label"),
        pytest.param(ROWS, LABELS[:, None], PRIORITY, id="labels in a column"),
        pytest.param(torch.zeros(2, 2), LABELS, PRIORITY, id="another shape"),
        pytest.param(ROWS.double(), LABELS, PRIORITY, id="another dtype"),
        pytest.param(ROWS, torch.tensor([6, 7]), PRIORITY, id="more classes than total"),
    ],
)
def test_bad_samples_are_refused_and_the_memory_stays(x, y, priority):
    memory = ReplayMemory(total=3)
    memory.add(offer([0, 0, 2, 2, 2]), torch.arange(5.0))
    before = contents(memory), memory.state_dict()["priority"].tolist()
    with pytest.raises(InputError):
        memory.add(Samples(x, y), priority)
    assert (contents(memory), memory.state_dict()["priority"].tolist()) == before


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        ({}, "exactly one"),
        ({"exemplars_per_class": 1, "total": 1}, "exactly one"),
        ({"exemplars_per_class": -1}, "exemplars_per_class is -1"),
        ({"total": -3}, "total is -3"),
    ],
)
def test_bad_budgets_are_refused(budget, name):
    with pytest.raises(InputError, match=name):
        ReplayMemory(**budget)


def held(memory):
    return list(zip(memory.y.tolist(), memory.x.flatten().tolist(), strict=True))


def three_classes(**budget):
    memory = ReplayMemory(**budget)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    x = torch.arange(6.0)[:, None]
    memory.add(Samples(x, y), torch.arange(6.0), {"more": 10 * torch.arange(6)})
    return memory


def test_what_is_split_off_can_be_put_back():
    memory = three_classes(exemplars_per_class=2)
    before = held(memory)
    taken = memory.split_off(torch.tensor([True, False, False, True, False, False]))
    assert taken.samples.y.tolist() == [0, 1]
    assert taken.extras["more"].tolist() == [0, 30]
    assert held(memory) == [(0, 1.0), (1, 2.0), (2, 4.0), (2, 5.0)]
    memory.add(*taken)
    assert held(memory) == before
    assert memory.extras["more"].tolist() == [0, 10, 20, 30, 40, 50]


def test_a_forgotten_class_is_gone_and_the_later_ones_move_up():
    memory = three_classes(exemplars_per_class=2)
    memory.forget(1)
    assert held(memory) == [(0, 0.0), (0, 1.0), (1, 4.0), (1, 5.0)]
    assert memory.extras["more"].tolist() == [0, 10, 40, 50]


def test_a_smaller_budget_drops_the_last_of_each_class():
    memory = three_classes(exemplars_per_class=2)
    memory.set_budget(None, 4)
    assert held(memory) == [(0, 0.0), (0, 1.0), (1, 2.0), (2, 4.0)]


def test_a_memory_without_balance_is_a_uniform_sample_of_the_stream():
    chosen = torch.zeros(40)
    for seed in range(300):
        memory = ReplayMemory(total=10, balanced=False)
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, 40, 4):  # classes arrive one after another, in batches of 4
            x = torch.arange(start, start + 4)[:, None]
            y = torch.full((4,), start // 20)
            memory.add(Samples(x, y), random_priority(4, generator))
        assert len(memory) == 10
        assert bool((memory.y[1:] >= memory.y[:-1]).all())  # sorted by class
        chosen[memory.x.flatten()] += 1
    # Each is kept with probability 1/4: 75 of 300 times, with a standard deviation of 7.5.
    assert float((chosen - 75).abs().max()) < 4 * 7.5


def test_a_memory_without_balance_needs_a_total():
    with pytest.raises(InputError, match="give a total without balance"):
        ReplayMemory(exemplars_per_class=3, balanced=False)


def test_a_saved_memory_without_balance_fits_its_total():
    memory = ReplayMemory(total=3, balanced=False)
    x, y = torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.int64)
    memory.add(Samples(x, y), torch.arange(5.0))
    assert memory.x.flatten().tolist() == [0.0, 1.0, 2.0]
    other = ReplayMemory(total=3, balanced=False)
    other.load_state_dict(memory.state_dict())
    assert len(other) == 3
    with pytest.raises(InputError, match="more than this budget allows"):
        ReplayMemory(total=2, balanced=False).load_state_dict(memory.state_dict())
