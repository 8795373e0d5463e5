"""EfficientNet-Lite0: shapes, padding, and agreement with two other implementations."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from gradmix.errors import MissingPackageError
from gradmix.models.efficientnet_lite import EfficientNetLite0, SameConv2d
from gradmix.models.pretrained import fold_batch_norms, load_pretrained

REFERENCE = Path(__file__).with_name("efficientnet_lite0_reference.safetensors")


def images(size):
    """Return four generated images (4, 3, size, size), from -1 to 1."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(4, 3, 8, 8, generator=generator) * 2 - 1
    return F.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)


@pytest.fixture(scope="module")
def pretrained():
    try:
        return load_pretrained("efficientnet-lite0").module
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [32, 64, 100])
def test_any_size_gives_1280_features(size):
    assert EfficientNetLite0().eval()(torch.zeros(2, 3, size, size)).shape == (2, 1280)


def test_the_number_of_weights():
    """4,652,008 as published, less the 1,281,000 of the ImageNet classifier."""
    assert sum(p.numel() for p in EfficientNetLite0().parameters()) == 3_371_008


def test_an_odd_padding_goes_to_the_bottom_and_right():
    conv = SameConv2d(1, 1, 3, 2, bias=False)
    torch.nn.init.ones_(conv.weight)
    with torch.no_grad():
        found = conv(torch.ones(1, 1, 4, 4))
    assert found.flatten().tolist() == [9.0, 6.0, 6.0, 4.0]


@pytest.mark.parametrize("size", [64, 160, 224])
def test_features_agree_with_the_reference(pretrained, size):
    """The reference is efficientnet-lite-pytorch 0.1.0 with the same weights (see `images`).

    On 16 CIFAR-10 photos at 224 pixels the largest difference to it was 0.0; timm 1.0.30's
    tf_efficientnet_lite0 with these weights differed by 1.5e-5 at most, where features reach 6.
    """
    expected = load_file(REFERENCE)[f"features_{size}"]
    with torch.inference_mode():
        torch.testing.assert_close(pretrained(images(size)), expected, rtol=1e-4, atol=1e-4)


def test_folded_batch_norms_change_next_to_nothing(pretrained):
    folded = fold_batch_norms(pretrained)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in folded.modules())
    with torch.inference_mode():
        difference = folded(images(96)) - pretrained(images(96))
    assert float(difference.abs().max()) < 1e-4
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in pretrained.modules())
