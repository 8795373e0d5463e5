"""Pairs judged anew each epoch, as the mixer asks for it."""

import pytest
import torch
from mixer_cases import (
    NEW_Y,
    OUTPUTS,
    ROWS,
    SIZE,
    FixedHost,
    X,
    Y,
    batch_norm_model,
    global_state,
    make_mixer,
    mix_given,
    mix_one,
    reference,
)
from torch import nn

from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing.gradmix import GradMix


@pytest.mark.parametrize("recipe", ["gradmix", "gradient-keep-original:linear:proportional"])
def test_an_empty_memory_gives_no_table_and_no_mix(recipe):
    mixer = make_mixer(recipe, memory=None)
    mixer.refresh(nn.Linear(SIZE, OUTPUTS))
    assert mixer.pairs is None
    assert mix_given(mixer, X[:3], NEW_Y[:3]).targets.tolist() == NEW_Y[:3].tolist()
    assert mixer._pool.asked == []


@pytest.mark.parametrize("recipe", [None, "mixup", "remix", "cutmix", "balanced-mixup"])
def test_without_gradients_the_model_is_never_asked(recipe):
    mixer = make_mixer(recipe)
    mixer.refresh(nn.Identity())  # has no head and would be refused
    assert mixer.pairs is None
    assert mixer._host.asked == []


@pytest.mark.parametrize("average", ["sample", "class"])
def test_refresh_is_algorithm_1(average):
    model, host = batch_norm_model(), FixedHost(0.3)
    mixer = make_mixer("gradmix", host=host, pairing="all-pairs", average=average)
    mixer.refresh(model)
    expected = reference(model, 0.3, average)
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6]
    torch.testing.assert_close(mixer.pairs.scores, expected.scores)
    assert torch.equal(mixer.pairs.negative, expected.negative)
    assert torch.equal(mixer.pairs.optimal, expected.optimal)
    assert host.asked == [("beta", 1.0, 1.0)]


def test_refresh_leaves_the_model_and_the_global_generators_as_they_were():
    model = batch_norm_model().train()
    model[1].eval()  # a user's frozen BatchNorm stays frozen
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    randomness = global_state()
    mixer = make_mixer("gradmix")
    mixer.refresh(model)
    mix_one(mixer, ROWS)
    assert global_state() == randomness
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("limit", "of_4", "of_6"), [(1, 1, 1), (5, 5, 5), (7, 7, 5), (99, 12, 5)])
def test_refresh_draws_a_few_new_samples_and_the_whole_memory(limit, of_4, of_6):
    mixer = make_mixer("gradmix", exemplars_per_class=limit)
    mixer.refresh(batch_norm_model())
    (asked,) = mixer._pool.asked
    assert len(set(asked)) == len(asked)
    assert sorted(k for k in asked if k >= 17) == list(range(17, SIZE))
    labels = Y[torch.tensor(asked)]
    assert (int((labels == 4).sum()), int((labels == 6).sum())) == (of_4, of_6)


def test_every_refresh_draws_other_exemplars():
    mixer = make_mixer("gradmix", exemplars_per_class=3)
    for _ in range(60):
        mixer.refresh(batch_norm_model())
    drawn = {k for asked in mixer._pool.asked for k in asked}
    assert drawn == set(range(SIZE))
    assert mixer._pool.asked[0] != mixer._pool.asked[1]


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"exemplars_per_class": 0}, InputError, "exemplars_per_class is 0"),
        ({"pairing": "one-to-on"}, UnknownNameError, "did you mean 'one-to-one'"),
        ({"average": "samples"}, UnknownNameError, "did you mean 'sample'"),
    ],
)
def test_bad_settings_are_refused(settings, error, name):
    with pytest.raises(error, match=name):
        make_mixer("gradmix", **settings)
    with pytest.raises(error, match=name):
        GradMix(**settings)


@pytest.mark.parametrize("criterion", ["exact", "clusters"])
def test_decisions_do_not_depend_on_the_block(criterion):
    found = []
    for block in (None, 3):
        mixer = make_mixer("gradmix+", criterion=criterion, block=block)
        mixer.refresh(batch_norm_model())
        found.append(mixer.plan(Y[ROWS][None], ROWS[None]).mixing[0].partners)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_block_of_nothing_is_refused():
    with pytest.raises(InputError, match="block is 0"):
        make_mixer("gradmix+", block=0)
