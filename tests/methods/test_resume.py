"""Every method goes on exactly where it stood, from a state saved at any event."""

import copy

import pytest
import torch
from method_cases import assert_same, assert_same_events, blobs, finish, make_training

from gradmix.methods import METHODS
from gradmix.models import MLP

SIZES = ((8, 8), (5, 4), (4, 4))  # 2, 1 and 1 steps


def cases():
    for method, info in METHODS.items():
        mixed = "gradmix+" if info.build.replays else "mixup"
        for mix in ("none", mixed):
            for head in ("fixed",) if info.build.grows else ("fixed", "growing"):
                yield pytest.param(method, mix, head, id=f"{method}-{mix}-{head}")


def recorded(make):
    """A whole run: its events, and what could have been saved at each of them."""
    whole = make()
    states, events = [], []
    for event in whole.events():
        states.append(copy.deepcopy(whole.state_dict()))
        events.append(event)
    return states, events


def check_resume(make, make_other=None):
    states, events = recorded(make)
    for number, state in enumerate(states):
        resumed = (make if make_other is None else make_other)()
        resumed.load_state_dict(copy.deepcopy(state))
        assert_same(resumed.state_dict(), state)
        assert_same_events(finish(resumed), events[number + 1 :])
        assert_same(resumed.state_dict(), states[-1])


@pytest.mark.parametrize(("method", "mix", "head"), [*cases()])
def test_resume_is_exact_at_every_event(method, mix, head):
    benchmark = blobs(SIZES)
    check_resume(
        lambda: make_training(method, mix, benchmark=benchmark, head=head, epochs=2, exemplars=2)
    )


@pytest.mark.parametrize("method", METHODS)
def test_resume_is_exact_with_batch_norm(method):
    benchmark = blobs(((8, 8), (4, 4), (4, 4)))
    check_resume(lambda: make_training(method, "none", "resnet", benchmark=benchmark))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_needs_no_network_of_the_same_weights(method):
    """As with a network of the user's own, which no seed of ours made."""
    benchmark = blobs(SIZES)

    def make(seed):
        def network(outputs):
            torch.manual_seed(seed)
            return MLP(64, outputs, (16, 12))

        return make_training(method, network=network, benchmark=benchmark, head="growing")

    check_resume(lambda: make(1), lambda: make(2))


@pytest.mark.parametrize("method", METHODS)
def test_resume_with_a_memory_of_fixed_size(method):
    benchmark = blobs(SIZES)
    check_resume(lambda: make_training(method, benchmark=benchmark, memory={"total": 7}))


@pytest.mark.parametrize(
    ("method", "options"),
    [("memo", {"train_shared": 0.0}), ("foster", {"compression": 2.0}), ("mir", {"candidates": 1})],
)
def test_resume_with_options(method, options):
    check_resume(lambda: make_training(method, benchmark=blobs(SIZES), options=options, epochs=2))


def noisy(x, *, generator):
    """A transform that draws."""
    return x + torch.randint(0, 40, x.shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("mix", ["none", "mixup", "gradmix+", "gradient:manifold:remix"])
@pytest.mark.parametrize("method", ["er", "mir", "der++"])
def test_resume_is_exact_with_transforms(method, mix):
    """Where views are drawn in a step that was planned before."""
    benchmark = blobs(((8, 8), (8, 9)))  # 2 steps each

    def make():
        run = make_training(method, mix, benchmark=benchmark, exemplars=2)
        run.transforms = (noisy,)
        return run

    check_resume(make)


@pytest.mark.parametrize("mix", ["none", "cutmix", "balanced-mixup", "manifold-mixup"])
@pytest.mark.parametrize("method", METHODS)
def test_states_are_tensors_and_plain_values(method, mix, tmp_path):
    """So that they can be read back without running code."""
    run = make_training(method, mix, benchmark=blobs(SIZES), head="growing")
    for number, _ in enumerate(run.events()):
        torch.save(run.state_dict(), tmp_path / f"{number}")
        assert_same(torch.load(tmp_path / f"{number}", weights_only=True), run.state_dict())


@pytest.mark.parametrize(
    ("method", "criterion", "rolling"),
    [("er", "auto", 2), ("mir", "auto", 3), ("er", "clusters", 1), ("mir", "clusters", 2)],
)
def test_resume_is_exact_with_pairs_on_demand_and_rolling_exemplars(
    method, criterion, rolling, tmp_path
):
    benchmark = blobs(SIZES)

    def make():
        settings = {"criterion": criterion, "rolling": rolling, "head": "growing"}
        return make_training(
            method, "gradmix+", benchmark=benchmark, epochs=3, exemplars=2, **settings
        )

    check_resume(make)
    run = make()
    for event in run.events():
        if getattr(event, "task", 0) == 1:
            break
    torch.save(run.state_dict(), tmp_path / "state")
    assert_same(torch.load(tmp_path / "state", weights_only=True), run.state_dict())


@pytest.mark.parametrize("method", ["er", "mir"])
@pytest.mark.parametrize(
    "mix", ["gradmix+", "gradient-refined:linear:remix", "gradient-softmax:linear:remix"]
)
def test_resume_is_exact_where_samples_are_judged(method, mix):
    benchmark = blobs(SIZES)
    check_resume(
        lambda: make_training(
            method, mix, benchmark=benchmark, epochs=2, exemplars=2, level="sample"
        )
    )
