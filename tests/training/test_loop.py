"""The loop: what it trains on, its events, and exact continuation at any of them."""

import copy
import io
import threading

import pytest
import torch
from torch import nn

from gradmix.errors import DivergedError, InputError
from gradmix.methods import ER, METHODS, MethodInfo
from gradmix.models import adapt
from gradmix.randomness import RandomStreams
from gradmix.settings import TrainingSettings
from gradmix.training.loop import EpochDone, StepDone, TaskDone

SIZES = ((21, 20), (10, 11), (9, 8))  # samples of the two classes of each of three tasks


@pytest.fixture(scope="module")
def training(blobs, make_training):
    """ER with GradMix+ on three tasks, unless other things are asked for."""
    benchmark = blobs(SIZES)

    def make(mix="gradmix+", **settings):
        given = {"benchmark": benchmark, "epochs": 2, "exemplars": 4, **settings}
        return make_training(mix=mix, **given)

    return make


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
    "gradient-class-balanced:linear:remix",
]


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_learns_blobs(mix, training):
    events = training(mix, epochs=30).finish()
    rows = [event.correct["main"] for event in events if isinstance(event, TaskDone)]
    assert rows[-1].sum() >= 0.7 * 30  # chance would be 5 of the 30 test samples


@pytest.mark.parametrize("mix", MIXES)
def test_the_same_seed_gives_the_same_bits(mix, assert_same, training):
    one, other = training(mix), training(mix)
    one.finish()
    other.finish()
    assert_same(one.state_dict(), other.state_dict())


def test_another_seed_gives_other_weights(training):
    one, other = training(seed=0), training(seed=1)
    assert not torch.equal(one.method.model.head.weight, other.method.model.head.weight)


def test_every_mix_starts_from_the_same_weights_and_sees_the_same_batches(training):
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
def test_resume_is_exact_at_every_event(mix, assert_same, assert_same_events, training):
    whole = training(mix, epochs=1)
    states, events = [], []
    for event in whole.events():
        states.append(copy.deepcopy(whole.state_dict()))
        events.append(event)
    for number, state in enumerate(states):
        resumed = training(mix, epochs=1)
        resumed.load_state_dict(copy.deepcopy(state))
        assert_same_events(list(resumed.events()), events[number + 1 :])
        assert_same(resumed.state_dict(), whole.state_dict())


def test_a_state_of_another_seed_is_refused(training):
    one, other = training(seed=0), training(seed=1)
    next(one.events())
    with pytest.raises(InputError, match="seed 0"):
        other.load_state_dict(one.state_dict())


def test_events_in_their_order(training):
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


def test_a_memory_smaller_than_the_replay_batch_is_replayed_whole(training):
    run = training(replay_batch_size=50)
    rows = []
    draw = run.method.draw_replay
    run.method.draw_replay = lambda: rows.append(draw()) or rows[-1]
    done = [event.replay_batch for event in run.events() if isinstance(event, TaskDone)]
    assert done == [0, 8, 16]
    assert [len(row) for row in rows] == [0] * 10 + [8] * 4 + [16] * 4
    assert all(len(row.unique()) == len(row) for row in rows)


def test_a_task_smaller_than_a_batch_is_one_batch(training):
    run = training(batch_size=1000, epochs=3)
    steps = [event for event in run.events() if isinstance(event, StepDone)]
    assert len(steps) == 3 * 3
    assert all(event.steps == 1 for event in steps)


@pytest.mark.parametrize(("mix", "mixes_first"), [("mixup", True), ("gradmix+", False)])
def test_in_the_first_task_baselines_mix_and_gradmix_does_not(mix, mixes_first, training):
    run = training(mix)
    done = [event for event in run.events() if isinstance(event, TaskDone)]
    assert (done[0].pair_counts.sum() > 0) == mixes_first
    # Two epochs of two steps with 8 new and 6 replayed rows, each mixed once.
    assert done[1].pair_counts.sum() == 2 * 2 * (8 + 6)
    assert done[1].pair_counts[4:].sum() == done[1].pair_counts[:, 4:].sum() == 0


@pytest.mark.parametrize(("mix", "answer"), [("mixup", "no"), ("gradmix+", "yes")])
def test_the_first_task_is_mixed_if_asked_for(mix, answer, training):
    run = training(mix, mix_settings={"mix_first_task": answer})
    done = [event for event in run.events() if isinstance(event, TaskDone)]
    # Two epochs of five steps with 8 new rows.
    assert done[0].pair_counts.sum() == (2 * 5 * 8 if answer == "yes" else 0)
    assert done[1].pair_counts.sum() == 2 * 2 * (8 + 6)


def test_balanced_gradient_partners_draw_exactly_as_their_control(training):
    """Of the same λ, rows and samples, those in S⁻ alone are replaced; until then all is equal."""
    same = {"alpha": 1.0, "tau": 0.75, "mix_first_task": "yes"}
    mixes = ("class-balanced:linear:remix", "gradient-class-balanced:linear:remix")
    runs = [training(mix, mix_settings=same) for mix in mixes]
    events = [run.events() for run in runs]
    while runs[0].position.task == 0:
        first, second = (next(iterator) for iterator in events)
        if isinstance(first, StepDone):
            assert torch.equal(first.loss, second.loss)
    replaced = 0
    for _ in range(4):  # two epochs
        for iterator in events:
            while not isinstance(next(iterator), StepDone):
                pass
        control, ours = (run.method.plan for run in runs)
        assert torch.equal(control.index, ours.index)
        assert control.draws.lam == ours.draws.lam
        kept, chosen = control.draws.partners.drawn, ours.draws.partners.drawn
        pairs = runs[1].method.selector.pairs
        harmful = pairs.harmful(torch.tensor(ours.draws.table)[:, None], ours.y, control.partner_y)
        assert torch.equal(kept[~harmful], chosen[~harmful])
        replaced += int(harmful.sum())
    assert replaced > 0


def test_the_paper_s_er_step_by_hand(training):
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
        method.model(method.pool.inputs(index)), method.pool.y[index]
    )
    gradients = torch.autograd.grad(loss, list(method.model.parameters()))
    next(events)
    for (name, p), g, m in zip(method.model.named_parameters(), gradients, momentum, strict=True):
        assert torch.allclose(p, before[name] - 0.05 * (0.9 * m + g), atol=1e-7), name


def test_learning_rate_falls_at_its_steps(training):
    run = training(epochs=4, lr=0.1, lr_steps=(1, 3))
    rates = {}
    for event in run.events():
        if isinstance(event, StepDone) and event.task == 1:
            rates[event.epoch] = run.method.optimizer.param_groups[0]["lr"]
    assert rates == pytest.approx({0: 0.1, 1: 0.01, 2: 0.01, 3: 0.001})


def test_every_task_has_a_new_optimizer(training):
    run = training(epochs=1)
    optimizers = {}  # kept alive, so that no two have the same id
    for event in run.events():
        if isinstance(event, StepDone):
            optimizers[id(run.method.optimizer)] = run.method.optimizer
            assert len(run.method.optimizer.state) == 6
    assert len(optimizers) == 3


def test_evaluation_counts_right_answers_by_class_and_changes_nothing(assert_same, training):
    run = training()
    with torch.no_grad():
        run.method.model.head.weight.zero_()
        run.method.model.head.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 9.0, 0.0, 0.0]))
    before = copy.deepcopy(run.state_dict())
    correct, task_aware, tested = run.evaluate()
    assert correct.keys() == task_aware.keys() == {"main"}
    assert correct["main"].tolist() == [[0] * 6, [0, 0, 0, 5, 0, 0], [0] * 6]
    # Among the outputs of its own task, the first class wins the ties.
    by_hand = [[5, 0, 0, 0, 0, 0], [0, 0, 0, 5, 0, 0], [0, 0, 0, 0, 5, 0]]
    assert task_aware["main"].tolist() == by_hand
    assert tested.tolist() == [[5, 5, 0, 0, 0, 0], [0, 0, 5, 5, 0, 0], [0, 0, 0, 0, 5, 5]]
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
    with pytest.raises(InputError, match=setting):
        TrainingSettings(**{setting: value})


def test_a_state_has_an_optimizer_and_a_plan_only_within_a_stage(training):
    run = training(epochs=1)
    for event in run.events():
        state = run.state_dict()
        between = isinstance(event, TaskDone)
        assert (state["stage"] is None) == between
        if not between:
            assert state["stage"].keys() == {"optimizer", "new", "plan", "counts", "pairs"}


def test_a_state_has_what_is_planned_for_the_rest_of_the_epoch(
    assert_same, assert_same_events, training
):
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


def test_training_that_diverges_stops_and_says_where(training):
    run = training("none", lr=1e30)
    with pytest.raises(DivergedError, match=r"task 1, train epoch 1; try an lr below 1e\+30"):
        list(run.events())


# --- the step ------------------------------------------------------------------------------------


class Counting(ER):
    """A method whose step pulls one bias to a number; it does not look at the data."""

    calls = ()

    def train_step(self, step):
        """Return a loss of its own."""
        self.calls = (*self.calls, step)
        return (self.head.bias[0] - 7).square()


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_the_loop_trains_what_train_step_returns(training, network, monkeypatch):
    monkeypatch.setitem(METHODS, "counting", MethodInfo("", "", Counting))
    run = training("none", method="counting", network=network, epochs=3, lr=0.1, momentum=0.0)
    before = copy.deepcopy(run.method.model.state_dict())
    expected, events = before["head.bias"][0].clone(), []
    for event in run.events():
        events.append(event)
        if isinstance(event, StepDone):
            torch.testing.assert_close(event.loss, (expected - 7).square())
            expected = expected - 0.1 * 2 * (expected - 7)
            torch.testing.assert_close(run.method.head.bias[0].detach(), expected)
    steps = [event.step - 1 for event in events if isinstance(event, StepDone)]
    assert list(run.method.calls) == steps
    assert len(steps) == 3 * (5 + 2 + 2)
    after = run.method.model.state_dict()
    parameters = {name for name, _ in run.method.model.named_parameters()}
    changed = {name for name in parameters if not torch.equal(after[name], before[name])}
    assert changed == {"head.bias"}
    assert torch.equal(after["head.bias"][1:], before["head.bias"][1:])


def test_a_new_optimizer_of_a_method_is_the_one_that_steps(training, monkeypatch):
    class Adam(ER):
        """ER with another optimizer."""

        def new_optimizer(self):
            """Return Adam."""
            return torch.optim.Adam(self.parameters(), self.settings.lr)

    monkeypatch.setitem(METHODS, "adam", MethodInfo("", "", Adam))
    run = training("none", method="adam", lr=0.01)
    start = run.method.head.bias.detach().clone()
    next(run.events())
    moved = (run.method.head.bias.detach() - start).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), atol=1e-5, rtol=1e-3)


# --- randomness ----------------------------------------------------------------------------------


def with_dropout(outputs):
    """A network of the user's own, always with the same weights."""
    layers = (nn.Linear(64, 16), nn.Dropout(), nn.Linear(16, outputs))
    network = nn.Sequential(nn.Flatten(), *layers)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1, generator=generator)
    return adapt(network)


def test_dropout_is_reproducible_by_the_seed(training, assert_same, global_state):
    ended = {}
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)
        run = training("none", network=with_dropout, seed=seed)
        before = global_state()
        run.finish()
        ended[number] = run.method.model.state_dict()
        assert global_state() == before
    assert_same(ended[0], ended[1])
    assert not torch.equal(ended[0]["module.3.weight"], ended[2]["module.3.weight"])


def test_dropout_is_the_same_after_resuming(training, assert_same, assert_same_events):
    whole, resumed = (training("none", network=with_dropout) for _ in range(2))
    whole.stop_in_task(1)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    rest = whole.finish()
    torch.manual_seed(8)
    assert_same_events(resumed.finish(), rest)
    assert_same(resumed.state_dict(), whole.state_dict())


@pytest.fixture
def noise():
    """A thread that draws from the global generator all the time."""
    stop = threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def undisturbed(training):
    """How runs end without such a thread."""

    def end(network):
        run = training(network=network, epochs=1)
        run.finish()
        return run.state_dict()

    return {network: end(network) for network in ("mlp", "resnet")}


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_draws_of_another_thread_change_nothing(training, undisturbed, network, assert_same):
    for _ in range(5):
        run = training(network=network, epochs=1)
        run.finish()
        assert_same(run.state_dict(), undisturbed[network])
