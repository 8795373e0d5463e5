"""Inner products with the memory's gradient, without any sample's gradient, against autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmix.diagnostics import inner_products
from gradmix.diagnostics.inner_products import LastLayer, WholeNetwork
from gradmix.errors import InputError
from gradmix.models import ViT
from gradmix.types import Samples

OUTPUTS = 6
OLD_Y = torch.tensor([0, 0, 0, 1, 3])  # the labels of `samples`
NEW_Y = torch.tensor([2, 5, 2, 5, 2, 2])


@pytest.fixture(scope="session")
def soft(samples, seeded, one_hot):
    def soft(lam):
        """Samples mixed with each other, and their soft targets."""
        memory, current = samples()
        x, y = (torch.cat(parts) for parts in zip(memory, current, strict=True))
        partners = torch.randperm(len(y), generator=seeded())
        return torch.lerp(x[partners], x, lam), torch.lerp(one_hot(y)[partners], one_hot(y), lam)

    return soft


@pytest.mark.parametrize("average", ["sample", "class"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["sequential", "residual", "linear"])
def test_the_whole_network_is_what_autograd_says(
    kind, bias, average, monkeypatch, make, samples, products, soft
):
    monkeypatch.setattr(inner_products, "BATCH", 3)  # several parts
    model, (memory, _) = make(kind, bias), samples()
    x, targets = soft(0.3)
    ours = WholeNetwork(model, Samples(*memory), average, OUTPUTS)(x, targets)
    expected = products(model, True, memory, x, targets, average)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)  # labels are float32
    assert not ours.requires_grad


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["sequential", "residual"]),
    st.booleans(),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_both_are_what_autograd_says_at_any_ratio(
    make, samples, products, last_layer_of, soft, kind, bias, lam, seed
):
    model, (memory, _) = make(kind, bias, seed), samples()
    x, targets = soft(lam)
    whole = WholeNetwork(model, Samples(*memory), "class", OUTPUTS)
    last = LastLayer(model, last_layer_of(model), Samples(*memory), "class")
    for ours, whole_network in ((whole, True), (last, False)):
        expected = products(model, whole_network, memory, x, targets, "class")
        scale = float(expected.abs().max())
        torch.testing.assert_close(
            ours(x, targets).double(), expected, rtol=1e-4, atol=1e-5 * scale
        )


def test_one_exemplar_is_enough(make, samples, one_hot, products):
    model, (memory, current) = make("sequential"), samples()
    one = (memory[0][:1], memory[1][:1])
    x, targets = current[0], one_hot(NEW_Y)
    expected = products(model, True, one, x, targets, "class")
    ours = WholeNetwork(model, Samples(*one), "class", OUTPUTS)(x, targets)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["ViT", "nn.TransformerEncoderLayer"])
def test_attention_has_its_derivative(kind, samples, one_hot, products):
    """The fast forms of attention have none in forward mode; plain ones stand in, for a while."""

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(5, 1, 6, batch_first=True)
            self.head = nn.Linear(5, OUTPUTS)

        def forward(self, x):
            return self.head(self.layer(x.flatten(1, 2)).mean(dim=1))

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = Attending()
        if kind == "ViT":
            model = ViT(OUTPUTS, image_size=5, patch=5, in_channels=1, dim=8, depth=2, heads=2)
    model = model.double()
    memory, (x, y) = samples()
    ours = WholeNetwork(model, Samples(*memory), "sample", OUTPUTS)(x, one_hot(y))
    expected = products(model, True, memory, x, one_hot(y), "sample")
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)
    assert torch.backends.mha.get_fastpath_enabled()


def test_it_works_where_gradients_are_off(make, samples, one_hot):
    model, (memory, current) = make("residual"), samples()
    expected = WholeNetwork(model, Samples(*memory), "sample", OUTPUTS)(current[0], one_hot(NEW_Y))
    with torch.no_grad():
        ours = WholeNetwork(model, Samples(*memory), "sample", OUTPUTS)(current[0], one_hot(NEW_Y))
    assert torch.equal(ours, expected)


def test_a_model_without_anything_to_train_is_refused(make, samples):
    model = make("linear").requires_grad_(False)
    with pytest.raises(InputError, match="no parameter that requires a gradient"):
        WholeNetwork(model, Samples(*samples()[0]), "sample", OUTPUTS)


def test_an_operation_without_forward_mode_is_named(samples, one_hot, gradient, make):
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Model(type(make("residual"))):
        def forward(self, x):
            return Opaque.apply(super().forward(x))

    whole = WholeNetwork(Model().double(), Samples(*samples()[0]), "sample", OUTPUTS)
    with pytest.raises(InputError, match=r"forward-mode derivative.*whole_network=False"):
        whole(samples()[0][0], one_hot(OLD_Y))


def test_outputs_of_another_shape_are_refused(make, samples):
    model = nn.Sequential(make("linear"), nn.Flatten(0))
    with pytest.raises(InputError, match=r"outputs of shape \(30,\) for 5 samples"):
        WholeNetwork(model, Samples(*samples()[0]), "sample", OUTPUTS)
