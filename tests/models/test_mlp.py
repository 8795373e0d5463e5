"""The MLP: shapes, its arithmetic by hand, and where it lets hidden states be mixed."""

import pytest
import torch
from torch import nn

from gradmix.errors import InputError, UnknownNameError
from gradmix.models import MLP, MODELS, build_model

X = torch.rand(5, 1, 2, 3, generator=torch.Generator().manual_seed(0))


def hidden_layers(model):
    return [*model.shared, *model.special]


def by_hand(model, x):
    """The hidden state of every mix point."""
    states = [x.flatten(1)]
    for layer in hidden_layers(model):
        states.append((states[-1] @ layer.weight.T + layer.bias).clamp(min=0))
    return states


@pytest.mark.parametrize("hidden", [(4,), (4, 7), (4, 7, 2)])
def test_forward_is_relu_layers_and_a_linear_head(hidden):
    model = MLP(6, 3, hidden)
    states = by_hand(model, X)
    assert [state.shape[1] for state in states] == [6, *hidden]
    assert model.mix_points == len(hidden) + 1
    torch.testing.assert_close(model.features(X), states[-1])
    logits = states[-1] @ model.head.weight.T + model.head.bias
    assert logits.shape == (5, 3)
    torch.testing.assert_close(model(X), logits)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_mix_sees_the_state_of_its_layer_and_replaces_it(at):
    model = MLP(6, 3, (4, 7))
    seen = []

    def mix(h):
        seen.append(h)
        return -h

    features = model.features(X, mix, at)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], by_hand(model, X)[at])
    h = -seen[0]
    for layer in hidden_layers(model)[at:]:
        h = layer(h)
    torch.testing.assert_close(features, h)
    torch.testing.assert_close(model(X, mix, at), model.head(h))


@pytest.mark.parametrize("at", [-1, 3, None])
def test_a_mix_at_no_layer_is_refused(at):
    with pytest.raises(InputError, match=f"at is {at}"):
        MLP(6, 3, (4, 7))(X, lambda h: h, at)


def test_the_default_is_the_papers():
    assert [layer.out_features for layer in hidden_layers(MLP(784, 10))] == [256, 256]


def test_weights_are_drawn_layer_by_layer_and_the_head_last():
    torch.manual_seed(4)
    layers = [nn.Linear(6, 4), nn.Linear(4, 7), nn.Linear(7, 3)]
    torch.manual_seed(4)
    model = MLP(6, 3, (4, 7))
    for made, expected in zip([*hidden_layers(model), model.head], layers, strict=True):
        assert torch.equal(made.weight, expected.weight)
        assert torch.equal(made.bias, expected.bias)


def test_the_last_hidden_layer_is_the_special_part():
    model = MLP(6, 3, (4, 7, 2))
    assert torch.equal(model.shared(X), by_hand(model, X)[2])
    assert [layer.out_features for layer in model.special] == [2]
    assert torch.equal(MLP(6, 3, (4,)).shared(X), X.flatten(1))


@pytest.mark.parametrize(
    ("inputs", "outputs", "hidden", "name"),
    [
        (0, 3, (4,), "inputs is 0"),
        (6, -1, (4,), "outputs is -1"),
        (6, 3, (), "hidden is"),
        (6, 3, (4, 0), "hidden is"),
    ],
)
def test_bad_sizes_are_refused(inputs, outputs, hidden, name):
    with pytest.raises(InputError, match=name):
        MLP(inputs, outputs, hidden)


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_takes_its_input_and_has_a_head(name):
    model = build_model(name, (1, 2, 3), 11)
    assert model(X).shape == (5, 11)
    assert model.head.in_features == model.features(X).shape[1]


def test_widths_by_name():
    widths = {
        name: [layer.out_features for layer in hidden_layers(build_model(name, (6,), 2))]
        for name in ("mlp", "mlp-small")
    }
    assert widths == {"mlp": [256, 256], "mlp-small": [128, 128]}


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'mlp'"):
        build_model("mpl", (6,), 2)
