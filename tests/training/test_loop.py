"""The loop: what it trains on, its events, and exact continuation at any of them."""

import copy
import io

import pytest
import torch
from lightning_fabric import Fabric
from method_cases import assert_same, assert_same_events

from gradmix.criterion.selector import Judging
from gradmix.data import benchmark_from_tasks
from gradmix.data.pool import Normalise
from gradmix.errors import DivergedError
from gradmix.memory import ReplayMemory
from gradmix.methods import ER, Settings
from gradmix.mixing import parse_recipe
from gradmix.mixing.mixer import Mixer
from gradmix.models import MLP
from gradmix.randomness import RandomStreams
from gradmix.training.loop import EpochDone, StepDone, TaskDone, Training
from gradmix.types import Samples

SIZES = ((21, 20), (10, 11), (9, 8))  # samples of the two classes of each of three tasks


def blobs(sizes=SIZES):
    """Well separated classes of images of 4 × 4."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randint(30, 220, (2 * len(sizes), 1, 4, 4), generator=generator)

    def samples(task, counts):
        y = torch.cat([torch.full((n,), 2 * task + k) for k, n in enumerate(counts)])
        noise = torch.randint(-20, 21, (len(y), 1, 4, 4), generator=generator)
        return Samples((centres[y] + noise).to(torch.uint8), y)

    return benchmark_from_tasks(
        "blobs", [(samples(t, counts), samples(t, (5, 4))) for t, counts in enumerate(sizes)]
    )


def training(mix="gradmix+", seed=0, benchmark=None, **settings):
    benchmark = blobs() if benchmark is None else benchmark
    streams = RandomStreams(seed)
    outputs = len(benchmark.class_names)
    with streams.as_global("weights"):
        model = MLP(16, outputs, (32, 24))
    mixer = Mixer(
        parse_recipe(mix),
        outputs,
        host=streams.host("mixing"),
        generator=streams.device("mixing"),
        mix_points=model.mix_points,
        judging=Judging(exemplars_per_class=3),
    )
    given = {"epochs": 2, "batch_size": 8, "replay_batch_size": 6, "lr": 0.05, **settings}
    memory = ReplayMemory(exemplars_per_class=4)
    normalise = Normalise(benchmark.mean, benchmark.std)
    method = ER(model, memory, mixer, Settings(**given), streams, normalise)
    return Training(benchmark, method, Fabric(accelerator="cpu", devices=1))


MIXES = [
    "none",
    "mixup",
    "manifold-mixup",
    "cutmix",
    "remix",
    "balanced-mixup",
    "gradmix",
    "gradmix+",
    "gradient-keep-original:linear:remix",
    "gradient:cutmix:remix",
    "gradient:manifold:remix",
    "class-balanced:manifold:proportional",
]


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_learns_blobs_and_the_same_seed_gives_the_same_bits(mix):
    one, other = training(mix, epochs=30), training(mix, epochs=30)
    rows = [event.correct["main"] for event in one.events() if isinstance(event, TaskDone)]
    for _ in other.events():
        pass
    assert_same(one.state_dict(), other.state_dict())
    assert rows[-1].sum() >= 0.8 * 27  # chance would be 4 or 5 of the 27 test samples


def test_another_seed_gives_other_weights():
    one, other = training(seed=0), training(seed=1)
    assert not torch.equal(one.method.model.head.weight, other.method.model.head.weight)


def test_every_mix_starts_from_the_same_weights_and_sees_the_same_batches():
    def batches_of(mix):
        run = training(mix)
        start = run.method.model.head.weight.clone()
        batches = []
        for event in run.events():
            if isinstance(event, EpochDone):
                new, index = run.method.new, run.method.plan.index
                assert torch.equal(index[:, : new.shape[1]], new)
                batches.append(index)  # with what is replayed
        return [start, *batches]

    for a, b in zip(batches_of("none"), batches_of("gradmix+"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mix", MIXES)
def test_resume_is_exact_at_every_event(mix):
    whole = training(mix)
    states, events = [], []
    for event in whole.events():
        states.append(copy.deepcopy(whole.state_dict()))
        events.append(event)
    for number, state in enumerate(states):
        resumed = training(mix, seed=0)
        resumed.load_state_dict(copy.deepcopy(state))
        assert_same_events(list(resumed.events()), events[number + 1 :])
        assert_same(resumed.state_dict(), whole.state_dict())


def test_a_state_of_another_seed_is_refused():
    one, other = training(seed=0), training(seed=1)
    next(one.events())
    with pytest.raises(ValueError, match="seed 0"):
        other.load_state_dict(one.state_dict())


def test_events_in_their_order():
    run = training(epochs=2, batch_size=8)
    events = list(run.events())
    steps = [sum(counts) // 8 for counts in SIZES]  # the incomplete last batch is dropped
    assert steps == [5, 2, 2]
    expected = [kind for n in steps for kind in [*([StepDone] * n + [EpochDone]) * 2, TaskDone]]
    assert [type(event) for event in events] == expected
    done = [event for event in events if isinstance(event, TaskDone)]
    assert [event.memory_size for event in done] == [8, 16, 24]
    assert [event.replay_batch for event in done] == [0, 6, 6]
    epochs = [event for event in events if isinstance(event, EpochDone)]
    assert [event.epoch for event in epochs] == [1, 2] * 3
    assert {(event.stage, event.epochs) for event in epochs} == {("train", 2)}
    assert [event.negative_rate is None for event in epochs] == [True] * 2 + [False] * 4


def test_a_memory_smaller_than_the_replay_batch_is_replayed_whole():
    run = training(replay_batch_size=50)
    rows = []
    draw = run.method.draw_replay
    run.method.draw_replay = lambda: rows.append(draw()) or rows[-1]
    done = [event.replay_batch for event in run.events() if isinstance(event, TaskDone)]
    assert done == [0, 8, 16]
    assert [len(row) for row in rows] == [0] * 10 + [8] * 4 + [16] * 4
    assert all(len(row.unique()) == len(row) for row in rows)


def test_a_task_smaller_than_a_batch_is_one_batch():
    run = training(batch_size=1000, epochs=3)
    steps = [event for event in run.events() if isinstance(event, StepDone)]
    assert len(steps) == 3 * 3
    assert all(event.steps == 1 for event in steps)


@pytest.mark.parametrize(("mix", "mixes_first"), [("mixup", True), ("gradmix+", False)])
def test_in_the_first_task_baselines_mix_and_gradmix_does_not(mix, mixes_first):
    run = training(mix)
    done = [event for event in run.events() if isinstance(event, TaskDone)]
    assert (done[0].pair_counts.sum() > 0) == mixes_first
    # Two epochs of two steps with 8 new and 6 replayed rows, each mixed once.
    assert done[1].pair_counts.sum() == 2 * 2 * (8 + 6)
    assert done[1].pair_counts[4:].sum() == done[1].pair_counts[:, 4:].sum() == 0


def test_the_paper_s_er_step_by_hand():
    """One step of ER is SGD with momentum on the mean loss over new and replayed rows."""
    run = training("none", epochs=1)
    events = run.events()
    while run.position.task < 1:
        next(events)
    method, peek = run.method, RandomStreams(0)
    peek.load_state_dict(method.streams.state_dict())
    next(events)  # the first step of the second task, whose batches are drawn before it
    new = torch.randperm(21, generator=peek.device("batches"))[8:16]
    _, replay = (torch.randperm(8, generator=peek.device("replay"))[:6] for _ in range(2))
    before = {name: p.detach().clone() for name, p in method.model.named_parameters()}
    momentum = [state["momentum_buffer"].clone() for state in method.optimizer.state.values()]
    index = torch.cat([new, method.pool.num_new + replay])
    loss = torch.nn.functional.cross_entropy(
        method.model(method.pool.images(index)), method.pool.y[index]
    )
    gradients = torch.autograd.grad(loss, list(method.model.parameters()))
    next(events)
    for (name, p), g, m in zip(method.model.named_parameters(), gradients, momentum, strict=True):
        assert torch.allclose(p, before[name] - 0.05 * (0.9 * m + g), atol=1e-7), name


def test_learning_rate_falls_at_its_steps():
    run = training(epochs=4, lr=0.1, lr_steps=(1, 3))
    rates = {}
    for event in run.events():
        if isinstance(event, StepDone) and event.task == 1:
            rates[event.epoch] = run.method.optimizer.param_groups[0]["lr"]
    assert rates == pytest.approx({0: 0.1, 1: 0.01, 2: 0.01, 3: 0.001})


def test_every_task_has_a_new_optimizer():
    run = training(epochs=1)
    optimizers = set()
    for event in run.events():
        if isinstance(event, StepDone):
            optimizers.add(id(run.method.optimizer))
            assert len(run.method.optimizer.state) == 6
    assert len(optimizers) == 3


def test_evaluation_counts_right_answers_by_class_and_changes_nothing():
    run = training()
    with torch.no_grad():
        run.method.model.head.weight.zero_()
        run.method.model.head.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 9.0, 0.0, 0.0]))
    before = copy.deepcopy(run.state_dict())
    correct = run.evaluate()
    assert correct.keys() == {"main"}
    assert correct["main"].tolist() == [0, 0, 0, 4, 0, 0]
    other = training()
    other.load_state_dict(before)
    assert_same(run.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("replay_batch_size", -1),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("lr_steps", (0,)),
        ("head", "shrinking"),
    ],
)
def test_bad_settings_name_themselves(setting, value):
    with pytest.raises(ValueError, match=setting):
        Settings(**{setting: value})


def test_a_state_has_an_optimizer_and_a_plan_only_within_a_stage():
    run = training(epochs=1)
    for event in run.events():
        state = run.state_dict()
        for name in ("optimizer", "new", "plan"):
            assert (name in state["method"]) == (not isinstance(event, TaskDone))


def test_a_state_has_what_is_planned_for_the_rest_of_the_epoch():
    """In files, without running code, of every kind of choice that is made before a step."""
    for mix in MIXES:
        run = training(mix, epochs=1)
        for event in run.events():
            if isinstance(event, StepDone) and event.task == 1:
                break
        buffer = io.BytesIO()
        torch.save(run.state_dict(), buffer)
        buffer.seek(0)
        resumed = training(mix, epochs=1)
        resumed.load_state_dict(torch.load(buffer, weights_only=True))
        assert_same(resumed.method.plan.state_dict(), run.method.plan.state_dict())
        assert_same_events(list(resumed.events()), list(run.events()))
        assert_same(resumed.state_dict(), run.state_dict())


def test_training_that_diverges_stops_and_says_where():
    run = training("none", lr=1e30)
    with pytest.raises(DivergedError, match=r"task 1, train epoch 1; try an lr below 1e\+30"):
        list(run.events())
