"""Fine-tuning: which layers train, in which mode, and modules of every kind as backbones."""

import copy
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from gradmix.criterion import find_head
from gradmix.errors import InputError
from gradmix.models import adapt
from gradmix.models.efficientnet_lite import EfficientNetLite0
from gradmix.models.finetune import fine_tune, last_blocks
from gradmix.models.pretrained import from_module, load_pretrained

PHOTOS = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def convolutions():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
    )


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return from_module(convolutions(), input_size=8)


def tuned(backbone, finetune, outputs=5):
    return fine_tune(backbone, outputs, finetune, generator=torch.Generator().manual_seed(0))


def trained_names(network):
    return {name for name, p in network.named_parameters() if p.requires_grad}


def test_last_trains_the_last_blocks_and_all_trains_everything(backbone):
    last, everything = tuned(backbone, "last"), tuned(backbone, "all")
    own = {"module.module.1.0.weight", "module.module.1.1.weight", "module.module.1.1.bias"}
    assert trained_names(last) == own | {"head.weight", "head.bias"}
    assert trained_names(everything) == {name for name, _ in everything.named_parameters()}
    pretrained = {id(p) for p in last.pretrained_parameters()}
    assert pretrained == {id(p) for n, p in last.named_parameters() if n in own}
    assert not any(p.requires_grad for p in backbone.module.parameters())  # it was copied


def test_of_efficientnet_lite_the_last_block_and_convolution_train():
    network = EfficientNetLite0()
    blocks = last_blocks(network)
    weights = sum(p.numel() for block in blocks for p in block.parameters())
    assert blocks[0] is network[7][-1]  # the last of the inverted residuals
    assert weights / sum(p.numel() for p in network.parameters()) == pytest.approx(0.302, abs=0.001)


@pytest.mark.parametrize("finetune", ["last", "all"])
def test_statistics_of_batch_norms_never_change(backbone, finetune):
    network = tuned(backbone, finetune).train()
    before = copy.deepcopy(dict(network.named_buffers()))
    F.cross_entropy(network(PHOTOS), torch.arange(6) % 5).backward()
    assert before
    for name, value in network.named_buffers():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(network(PHOTOS), network.eval()(PHOTOS))


def test_dropout_is_active_in_trained_layers_only():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Sequential(nn.Conv2d(4, 40, 3)))
    network = tuned(from_module(module, input_size=8), "last").train()
    assert [m.training for m in network.modules() if isinstance(m, nn.Dropout)] == [False]
    network = tuned(from_module(module, input_size=8), "all").train()
    assert [m.training for m in network.modules() if isinstance(m, nn.Dropout)] == [True]
    assert not network.eval().module.training


def test_embeddings_have_length_one_and_are_those_of_the_backbone(backbone):
    network = tuned(backbone, "last")
    expected = F.normalize(backbone.embed(PHOTOS))
    torch.testing.assert_close(network.features(PHOTOS).detach(), expected)
    torch.testing.assert_close(network(PHOTOS), network.head(network.features(PHOTOS)))
    assert find_head(network) is network.head


def test_photos_of_other_sizes_and_channels_are_fitted(backbone):
    network = tuned(backbone, "last").eval()
    flat = torch.full((1, 1, 20, 12), 0.25)
    expected = network(torch.full((1, 3, 8, 8), 0.25))
    torch.testing.assert_close(network(flat), expected)
    with pytest.raises(InputError, match="1, 3 or 4"):
        network(torch.zeros(1, 2, 8, 8))


def test_only_the_input_can_be_mixed(backbone):
    network = tuned(backbone, "last").eval()
    mixed = network(PHOTOS, lambda x: (x[:3] + x[3:]) / 2, 0)
    torch.testing.assert_close(mixed, network((PHOTOS[:3] + PHOTOS[3:]) / 2))
    with pytest.raises(InputError, match="only at point 0"):
        network(PHOTOS, lambda x: x, 1)


def test_other_layers_are_refused(backbone):
    with pytest.raises(InputError, match="finetune is 'none'"):
        tuned(backbone, "none")


# --- modules of other libraries ------------------------------------------------------------------


class Classifier(nn.Module):
    """As ViTForImageClassification of transformers: returns an object with logits."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(*convolutions(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(4, 7)

    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.classifier(self.encoder(pixel_values)))


class Encoder(nn.Module):
    """As ViTModel: returns hidden states of tokens, and has a linear layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, 6, 4, stride=4)
        self.layer = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.pooler = nn.Linear(6, 6)

    def forward(self, x):
        tokens = self.project(x).flatten(2).transpose(1, 2)
        for layer in self.layer:
            tokens = layer(tokens).tanh()
        return SimpleNamespace(last_hidden_state=tokens)


def test_the_embedding_of_a_classifier_is_the_input_of_its_last_layer():
    module = Classifier().eval()
    backbone = load_pretrained(module, input_size=8)
    assert backbone.embedding_size == 4
    torch.testing.assert_close(
        backbone.embed(PHOTOS), module.encoder(backbone.normalise(PHOTOS)).detach()
    )
    assert isinstance(module.classifier, nn.Linear)  # the caller's module is unchanged


def test_the_embedding_of_an_encoder_is_the_mean_of_its_tokens():
    module = Encoder()
    backbone = load_pretrained(module, input_size=8)
    expected = module(backbone.normalise(PHOTOS)).last_hidden_state.mean(1)
    torch.testing.assert_close(backbone.embed(PHOTOS), expected.detach())


@pytest.mark.parametrize("make", [Classifier, Encoder])
@pytest.mark.parametrize("finetune", ["last", "all"])
def test_modules_of_other_libraries_are_fine_tuned(make, finetune):
    network = tuned(load_pretrained(make(), input_size=8), finetune).train()
    F.cross_entropy(network(PHOTOS), torch.arange(6) % 5).backward()
    moved = [p.grad.abs().sum() > 0 for p in network.pretrained_parameters() if p.grad is not None]
    assert sum(moved) >= 2


def test_a_module_that_returns_logits_is_a_network():
    module = Classifier().eval()
    network = adapt(module)
    assert network(PHOTOS).shape == (6, 7)
    torch.testing.assert_close(network.features(PHOTOS), module.encoder(PHOTOS))


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_the_whole_network_load_into_the_backbone(suffix, tmp_path):
    """Published files contain the classifier, which the backbone does not have."""
    whole, part = nn.Sequential(*convolutions(), nn.Linear(4, 7)), convolutions()
    path = tmp_path / f"a.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(whole.state_dict(), path)
    backbone = load_pretrained(part, weights=path, input_size=8)
    assert torch.equal(backbone.module.module[1][0].weight, whole[1][0].weight)
