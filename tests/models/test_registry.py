"""Networks by name: what follows from the input's shape."""

import pytest
import torch

from gradmix.errors import InputError
from gradmix.models import MODELS, Network, build_model

IMAGE_MODELS = [name for name in MODELS if name.startswith(("resnet", "vit"))]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_network_with_a_summary_and_a_source(name):
    with torch.device("meta"):
        network = build_model(name, (3, 32, 32), 10)
    assert isinstance(network, Network)
    assert network.head.out_features == 10
    assert MODELS[name].summary
    assert MODELS[name].source


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(784,), (28, 28), (3, 0, 32), (2, 3, 8, 8)])
def test_image_networks_refuse_what_is_no_image(name, shape):
    with pytest.raises(InputError, match=r"input_shape is .*needs images \(channels, height"):
        build_model(name, shape, 10)


@pytest.mark.parametrize("name", ["resnet18-narrow", "vit-small", "mlp-small"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 8, 8)])
def test_channels_and_size_follow_the_input(name, shape):
    assert build_model(name, shape, 4)(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((3, 32, 32), 4),
        ((3, 64, 64), 8),
        ((1, 28, 28), 4),
        ((1, 8, 8), 1),
        ((3, 96, 96), 12),
        ((3, 224, 224), 16),
        ((3, 32, 48), 8),
        ((1, 7, 5), 1),
    ],
)
def test_the_patch_follows_the_size(shape, patch):
    with torch.device("meta"):
        embedding = build_model("vit-small", shape, 4).shared.embedding
    assert embedding.project.kernel_size == (patch, patch)


def test_widths_by_name():
    with torch.device("meta"):
        sizes = {name: build_model(name, (3, 32, 32), 2).embedding_size for name in MODELS}
    assert sizes == {
        "linear": 3 * 32 * 32,
        "mlp": 256,
        "mlp-small": 128,
        "resnet18": 512,
        "cnn": 256,
        "resnet18-narrow": 160,
        "resnet18-tiny": 64,
        "resnet18-imagenet": 512,
        "vit": 384,
        "vit-small": 128,
    }


def test_stems_by_name():
    with torch.device("meta"):
        stems = {
            name: build_model(name, (1, 32, 32), 2).shared.stem[0].kernel_size
            for name in IMAGE_MODELS
            if name.startswith("resnet")
        }
    assert stems.pop("resnet18-imagenet") == (7, 7)
    assert stems == dict.fromkeys(["resnet18", "resnet18-narrow", "resnet18-tiny"], (3, 3))
