"""The head, what it sees, and the model left as it was."""

import contextlib

import pytest
import torch
from torch import nn

from gradmix.criterion import embed, evaluating, find_head
from gradmix.criterion.embedding import embed_rows
from gradmix.errors import InputError
from gradmix.models import MLP


def small_network() -> nn.Sequential:
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    return nn.Sequential(*layers)


def test_embeddings_are_the_inputs_of_the_head_and_logits_its_outputs():
    model = MLP(4, 3, (5, 6))
    x, y = torch.rand(7, 4), torch.arange(7) % 3
    seen = embed(model, model.head, x, y)
    assert torch.equal(seen.embeddings, model.features(x))
    assert torch.allclose(seen.logits, model(x))
    assert seen.labels is y
    assert not seen.embeddings.requires_grad


def test_more_samples_than_one_pass_takes(monkeypatch):
    monkeypatch.setattr("gradmix.criterion.embedding.EMBED_BATCH", 2)
    monkeypatch.setattr("gradmix.criterion.embedding.FETCH_BATCH", 5)
    model = MLP(4, 3, (5,))
    x = torch.rand(8, 4)
    assert torch.allclose(embed(model, model.head, x, torch.zeros(8)).logits, model(x))
    order = torch.randperm(8)
    fetched = embed_rows(model, model.head, x.__getitem__, order)
    assert torch.allclose(fetched, model.features(x[order]))


def test_statistics_modes_and_gradients_are_left_untouched():
    model = small_network()
    model.train()
    model[3].eval()  # a user's own choice
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    x = torch.rand(9, 4)
    rng = torch.get_rng_state()
    embed(model, find_head(model), x, torch.zeros(9))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)
    assert not model[-1]._forward_pre_hooks


def test_modes_come_back_after_an_error():
    model = small_network()
    with contextlib.suppress(RuntimeError), evaluating(model):
        assert not model.training
        raise RuntimeError
    assert all(module.training for module in model.modules())


def test_the_last_linear_layer_is_found():
    model = small_network()
    assert find_head(model) is model[-1]
    assert find_head(MLP(4, 3)).out_features == 3
    with pytest.raises(InputError, match=r"without any nn\.Linear"):
        find_head(nn.Sequential(nn.Conv2d(1, 1, 3)))


def test_a_layer_that_is_not_the_head_is_refused():
    model = small_network()
    with pytest.raises(InputError, match="does not give the model's output"):
        embed(model, model[0], torch.rand(5, 4), torch.zeros(5))
    with pytest.raises(InputError, match="for 5 samples"):
        embed(model, nn.Linear(6, 3), torch.rand(5, 4), torch.zeros(5))
