"""Saved weights into networks."""

import pytest
import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.models.weights import load_weights


def saved(outputs=3):
    return {name: value.clone() for name, value in nn.Linear(2, outputs).state_dict().items()}


def test_networks_without_memory_take_the_saved_tensors():
    weights = saved()
    with torch.device("meta"):
        network = nn.Linear(2, 3).requires_grad_(False)
    load_weights(network, weights)
    assert network.weight.data_ptr() == weights["weight"].data_ptr()
    assert not network.weight.requires_grad


def test_others_keep_tensors_of_their_own():
    weights, network = saved(), nn.Linear(2, 3)
    load_weights(network, weights)
    assert torch.equal(network.weight, weights["weight"])
    assert network.weight.data_ptr() != weights["weight"].data_ptr()


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (saved(4), "weight is saved as"),
        ({"weight": saved()["weight"]}, "another network"),
        ({name: value.double() for name, value in saved().items()}, "float64"),
    ],
)
def test_weights_of_another_network_are_refused(weights, match):
    with torch.device("meta"):
        network = nn.Linear(2, 3)
    with pytest.raises(InputError, match=match):
        load_weights(network, weights)
    assert network.weight.is_meta
