"""Channels-last only where it is tested and fast; weights load across the limit."""

import pytest
import torch

from gradmix.models import ResNet18, memory_format
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import from_module
from gradmix.models.weights import load_weights


@pytest.mark.parametrize(
    ("shape", "device", "last"),
    [
        ((3, 32, 32), "cpu", True),
        ((1, 8, 8), "cpu", True),
        ((1, 28, 28), "cpu", True),
        ((3, 33, 32), "cpu", False),
        ((3, 32, 33), "cpu", False),
        ((3, 48, 48), "cpu", False),
        ((3, 224, 224), "cpu", False),
        ((64,), "cpu", False),
        ((3, 32, 32), "cuda", False),
        ((3, 32, 32), "mps", False),
    ],
)
def test_channels_last_only_for_small_images_on_the_cpu(shape, device, last):
    expected = torch.channels_last if last else torch.contiguous_format
    assert memory_format(shape, device) == expected


@pytest.fixture
def side_benchmark(blobs):
    """Return a function that makes a benchmark of images with a given side."""

    def make(side):
        benchmark = blobs(((2, 2),))
        for samples in (part for task in benchmark.tasks for part in (task.train, task.test)):
            samples.x.resize_(len(samples.y), 1, side, side)
        return benchmark

    return make


@pytest.mark.parametrize(("side", "last"), [(8, True), (48, False)])
def test_a_method_has_a_network_in_that_format(side, last, make_training, side_benchmark):
    network = make_training(
        "er",
        network=lambda outputs: ResNet18(outputs, in_channels=1),
        benchmark=side_benchmark(side),
    ).method.model
    weight = network.shared.layer1[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == last
    assert weight.is_contiguous() != last


def test_a_fine_tuned_backbone_has_the_default_format(make_training, side_benchmark):
    """It resizes small images to its own size, where channels-last may crash."""
    backbone = from_module(torch.nn.Conv2d(3, 4, 3), input_size=64)
    network = make_training(
        "er",
        network=lambda outputs: fine_tune(backbone, outputs, "all", generator=torch.Generator()),
        benchmark=side_benchmark(8),
    ).method.model
    weights = [weight for weight in network.parameters() if weight.ndim == 4]
    assert len(weights) == 1
    assert weights[0].is_contiguous()
    assert not weights[0].is_contiguous(memory_format=torch.channels_last)


def saved_in(layout):
    network = ResNet18(3, width=2).to(memory_format=layout)
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def empty(layout):
    with torch.device("meta"):
        return ResNet18(3, width=2).to(memory_format=layout)


@pytest.mark.parametrize("there", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("here", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("meta", [True, False])
def test_loaded_weights_have_the_layout_of_the_network(there, here, meta):
    """A classifier saved in channels-last would crash the backward pass on larger images."""
    saved = saved_in(there)
    network = empty(here) if meta else ResNet18(3, width=2).to(memory_format=here)
    strides = {name: value.stride() for name, value in network.state_dict().items()}
    load_weights(network, saved)
    for name, value in network.state_dict().items():
        assert torch.equal(value, saved[name]), name
        assert value.stride() == strides[name], name


def test_saved_weights_are_taken_without_a_copy_if_their_layout_fits():
    saved, network = saved_in(torch.channels_last), empty(torch.channels_last)
    load_weights(network, saved)
    weight = network.shared.stem[0].weight
    assert weight.data_ptr() == saved["shared.stem.0.weight"].data_ptr()
