"""Every method goes on exactly where it stood, from a state saved at any event."""

import copy

import pytest
import torch

from gradmix.methods import METHODS
from gradmix.models import MLP

TRAINED = [name for name, info in METHODS.items() if info.build.trains]
CLOSED_FORM = [name for name in METHODS if name not in TRAINED]
SIZES = ((8, 8), (5, 4), (4, 4))  # 2, 1 and 1 steps
OPTIONS = {"gdumb": {"passes": 1.0}}  # for speed


def recorded(make):
    """The states and events of a whole run."""
    whole = make()
    states, events = [], []
    for event in whole.events():
        states.append(copy.deepcopy(whole.state_dict()))
        events.append(event)
    return states, events


@pytest.fixture(scope="module")
def check_resume(assert_same, assert_same_events):
    def call(make, make_other=None, stride=1):
        states, events = recorded(make)
        for number, state in list(enumerate(states))[::stride]:
            resumed = (make if make_other is None else make_other)()
            resumed.load_state_dict(copy.deepcopy(state))
            assert_same(resumed.state_dict(), state)
            assert_same_events(resumed.finish(), events[number + 1 :])
            assert_same(resumed.state_dict(), states[-1])

    return call


@pytest.mark.parametrize(
    ("mixed", "head", "stride"),
    [
        (True, "growing", 3),  # a step, the end of an epoch, the end of a task
        *(
            pytest.param(mixed, head, 1, marks=pytest.mark.slow)
            for mixed in (True, False)
            for head in ("growing", "fixed")
        ),
    ],
)
@pytest.mark.parametrize("method", TRAINED)
def test_resume_is_exact_at_every_event(
    method, mixed, head, stride, blobs, check_resume, make_training
):
    benchmark = blobs(SIZES)
    mix = ("gradmix+" if METHODS[method].build.replays else "mixup") if mixed else "none"
    settings = {"head": head, "epochs": 2, "exemplars": 2, "options": OPTIONS.get(method)}
    check_resume(lambda: make_training(method, mix, benchmark=benchmark, **settings), stride=stride)


@pytest.mark.parametrize("method", TRAINED)
def test_resume_is_exact_with_batch_norm(method, blobs, check_resume, make_training):
    benchmark = blobs(((8, 8), (4, 4)))
    options = OPTIONS.get(method)
    check_resume(
        lambda: make_training(method, "none", "resnet", benchmark=benchmark, options=options),
        stride=4,
    )


@pytest.mark.parametrize("method", TRAINED)
def test_a_state_needs_no_network_of_the_same_weights(method, blobs, check_resume, make_training):
    """As with a network of the user's own, which no seed of ours made."""
    benchmark = blobs(SIZES)

    def make(seed):
        def network(outputs):
            torch.manual_seed(seed)
            return MLP(64, outputs, (16, 12))

        return make_training(
            method,
            network=network,
            benchmark=benchmark,
            head="growing",
            options=OPTIONS.get(method),
        )

    check_resume(lambda: make(1), lambda: make(2), stride=4)


@pytest.mark.parametrize("method", TRAINED)
def test_resume_with_a_memory_of_fixed_size(method, blobs, check_resume, make_training):
    benchmark = blobs(SIZES)
    settings = {"memory": {"total": 7}, "options": OPTIONS.get(method)}
    check_resume(lambda: make_training(method, benchmark=benchmark, **settings), stride=4)


@pytest.mark.parametrize(
    ("method", "options"),
    [("memo", {"train_shared": 0.0}), ("foster", {"compression": 2.0}), ("mir", {"candidates": 1})],
)
def test_resume_with_options(method, options, blobs, check_resume, make_training):
    check_resume(lambda: make_training(method, benchmark=blobs(SIZES), options=options, epochs=2))


def noisy(x, *, generator):
    """A transform that draws."""
    return x + torch.randint(0, 40, x.shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("method", "mix"),
    [
        ("er", "gradmix+"),
        ("er", "gradient:manifold:remix"),
        ("mir", "none"),
        ("mir", "gradmix+"),
        ("der++", "none"),
        ("der++", "mixup"),
    ],
)
def test_resume_is_exact_with_transforms(method, mix, blobs, check_resume, make_training):
    """Where views are drawn in a step that was planned before."""
    benchmark = blobs(((8, 8), (8, 9)))  # 2 steps each

    check_resume(
        lambda: make_training(method, mix, benchmark=benchmark, exemplars=2, transforms=(noisy,))
    )


@pytest.mark.parametrize(
    ("method", "mix"),
    [
        *((method, "none") for method in TRAINED),
        *(("er", mix) for mix in ("cutmix", "balanced-mixup", "manifold-mixup", "gradmix+")),
    ],
)
def test_states_are_tensors_and_plain_values(
    method, mix, tmp_path, assert_same, blobs, make_training
):
    """So that they can be read back without running code."""
    run = make_training(method, mix, benchmark=blobs(SIZES), head="growing")
    for number, _ in enumerate(run.events()):
        torch.save(run.state_dict(), tmp_path / f"{number}")
        assert_same(torch.load(tmp_path / f"{number}", weights_only=True), run.state_dict())


@pytest.mark.parametrize("method", ["er", "mir"])
def test_resume_is_exact_with_pairs_on_demand(
    method, tmp_path, make_training, blobs, assert_same, check_resume
):
    benchmark = blobs(SIZES)

    def make():
        settings = {"criterion": "clusters", "head": "growing", "epochs": 3, "exemplars": 2}
        return make_training(method, "gradmix+", benchmark=benchmark, **settings)

    check_resume(make)
    run = make()
    run.stop_in_task(1)
    torch.save(run.state_dict(), tmp_path / "state")
    assert_same(torch.load(tmp_path / "state", weights_only=True), run.state_dict())


@pytest.mark.parametrize("head", ["fixed", "growing"])
@pytest.mark.parametrize("method", CLOSED_FORM)
def test_resume_is_exact_in_closed_form(method, head, blobs, check_resume, make_training):
    benchmark = blobs(SIZES)
    check_resume(
        lambda: make_training(method, network="linear", benchmark=benchmark, head=head, seed=3)
    )
