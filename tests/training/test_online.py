"""Online training: one pass, a memory that follows the stream, and nothing seen in advance."""

import copy

import pytest
import torch

from gradmix.data import benchmark_from_tasks
from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.training.loop import EpochDone, StepDone, TaskDone
from gradmix.types import Samples

SIZES = ((13, 9), (11, 10))  # 22 and 21 samples: arrivals of 8, 8, 6 and of 8, 8, 5
ONLINE = {"er", "er-ace", "a-gem", "mir", "aser", "der", "der++", "scr", "finetune"}
PLAIN = {"total": 7, "balanced": False}


@pytest.fixture
def online(make_training, blobs):
    """Return a function that makes an online training on two tasks."""

    def make(**settings):
        return make_training(**{"benchmark": blobs(SIZES), "online": True, **settings})

    return make


def rows_of(samples, of):
    """Return which rows of `of` the samples are; all images differ."""
    same = (samples.x.flatten(1)[:, None] == of.x.flatten(1)[None]).all(dim=2)
    assert bool((same.sum(dim=1) == 1).all())
    return same.nonzero()[:, 1]


def test_every_sample_is_learned_once_and_no_batch_is_dropped(online):
    training = online()
    learned = []
    for event in training.events():
        if isinstance(event, StepDone):
            pool = training.method.pool
            assert training.method.plan.index[0, : pool.num_new].tolist() == [*range(pool.num_new)]
            learned.append((event.task, training._unstored(training._tasks[event.task])))
    assert [len(samples.y) for _, samples in learned] == [8, 8, 6, 8, 8, 5]
    for number, task in enumerate(training.benchmark.tasks):
        parts = [samples for at, samples in learned if at == number]
        seen = Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))
        assert sorted(rows_of(seen, task.train).tolist()) == [*range(len(task.train.y))]


@pytest.mark.parametrize("memory", [None, {"total": 7}, PLAIN], ids=["each", "total", "plain"])
def test_the_memory_holds_what_arrived_before(online, memory):
    training = online(memory=memory, exemplars=3)
    arrived = torch.empty(0, dtype=torch.int64)  # labels
    parts = [task.train for task in training.benchmark.tasks]
    stream = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    seen = set()
    for event in training.events():
        if not isinstance(event, StepDone):
            continue
        stored = training.method.memory
        if memory is PLAIN:
            assert len(stored) == min(7, len(arrived))
        elif len(arrived):
            counts = arrived.bincount(minlength=4)
            quota = stored.quota(arrived.unique())
            wanted = [min(int(n), int(quota[label])) for label, n in enumerate(counts) if n]
            assert [n for n in stored.y.bincount(minlength=4).tolist() if n] == wanted
        if len(stored):
            assert {*rows_of(stored.samples, stream).tolist()} <= seen
        arrival = training._unstored(training._tasks[event.task])
        arrived = torch.cat([arrived, arrival.y])
        seen |= {*rows_of(arrival, stream).tolist()}
    assert len(training.method.memory) > 0


@pytest.mark.parametrize(
    ("method", "mix"),
    [("er", "gradmix+"), ("er", "balanced-mixup"), ("der++", "none"), ("mir", "gradmix")],
)
def test_later_samples_change_nothing_before_they_arrive(online, assert_same, method, mix):
    one = online(method=method, mix=mix)
    one.stop_in_task(1, steps=2)
    last = one._order[16:]  # of the second task, still to come
    tasks = [(task.train, task.test) for task in one.benchmark.tasks]
    changed = tasks[1][0].x.clone()
    changed[last] = 255 - changed[last]
    tasks[1] = (Samples(changed, tasks[1][0].y), tasks[1][1])
    other = online(method=method, mix=mix, benchmark=benchmark_from_tasks("blobs", tasks))
    other.method.normalise = one.method.normalise
    other.stop_in_task(1, steps=2)
    assert_same(one.state_dict(), other.state_dict())
    for training in (one, other):
        training.stop_in_task(1)
    assert one._losses[-1] != other._losses[-1]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_learn_online_or_say_that_they_cannot(make_training, blobs, method):
    build = METHODS[method].build
    network = "mlp" if build.trains else "linear"
    if not build.online:
        with pytest.raises(InputError, match=rf"scenario is 'online', and {build.__name__} needs"):
            make_training(method, network=network, online=True)
        return
    training = make_training(method, benchmark=blobs(((99, 99), (99, 99))), online=True)
    assert {event.task for event in training.finish()} == {0, 1}
    assert max(training.accuracies()) > 0.5


def test_the_methods_that_learn_online():
    assert {name for name, info in METHODS.items() if info.build.online} == ONLINE


@pytest.mark.parametrize("method", ["er", "der++", "mir"])
@pytest.mark.parametrize("memory", [None, PLAIN], ids=["balanced", "plain"])
def test_a_training_resumes_at_every_event(online, assert_same, method, memory):
    settings = {"method": method, "mix": "gradmix+", "memory": memory}
    whole = online(**settings)
    states, events = [], []
    for event in whole.events():
        states.append(copy.deepcopy(whole.state_dict()))
        events.append(event)
    for number, state in enumerate(states):
        resumed = online(**settings)
        resumed.load_state_dict(copy.deepcopy(state))
        rest = resumed.finish()
        assert [type(event) for event in rest] == [type(event) for event in events[number + 1 :]]
        assert_same(resumed.state_dict(), whole.state_dict())
        for event, expected in zip(rest, events[number + 1 :], strict=True):
            if isinstance(event, StepDone):
                assert event.predicted == expected.predicted
            elif isinstance(event, TaskDone):
                assert torch.equal(event.pair_counts, expected.pair_counts)
            elif isinstance(event, EpochDone):
                assert (event.loss, event.negative_rate) == (expected.loss, expected.negative_rate)


def test_what_arrives_is_predicted_before_it_is_learned(online):
    training = online(lr=0.2)
    expected = None
    for event in training.events():
        if isinstance(event, StepDone):
            if expected is not None:
                assert int(event.predicted) == expected
            task = training._tasks[event.task]
            expected = None
            if event.step < event.steps:
                x, y = training._arrival(task, event.step)
                scores = training.method.predict(training.method.normalise(x))
                expected = int((scores.argmax(dim=1) == y).sum())


def test_pairs_are_counted_over_the_whole_task(online):
    training = online(mix="mixup", exemplars=1)
    counts = [int(e.pair_counts.sum()) for e in training.events() if isinstance(e, TaskDone)]
    # Mixup mixes every sample of a step, new and replayed: 8 + 0, 8 + 2 and 6 + 2, then
    # 8 + 2, 8 + 4 and 5 + 4.
    assert counts == [8 + 10 + 8, 10 + 12 + 9]


def test_several_epochs_are_refused(online):
    with pytest.raises(InputError, match="epochs is 2; an online stream is seen once; give 1"):
        online(epochs=2)


@pytest.mark.parametrize("order", [None, torch.zeros(22, dtype=torch.int64), torch.arange(21)])
def test_an_altered_order_is_refused(online, order):
    training = online()
    training.stop_in_task(0)
    state = {**training.state_dict(), "order": order}
    with pytest.raises(InputError, match="order: it does not name every sample of the task once"):
        online().load_state_dict(state)


def test_an_online_training_does_not_resume_as_another_one(online):
    training = online(batch_size=100)
    training.stop_in_task(0)
    with pytest.raises(InputError, match="order: the saved training is online"):
        online(batch_size=100, online=False).load_state_dict(training.state_dict())
