"""Any module as a network, and backbones that were trained elsewhere."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradmix.criterion import embed, find_head
from gradmix.errors import CorruptFileError, InputError
from gradmix.models import MLP, ResNet18, adapt, load_backbone
from gradmix.models.adapt import Adapted
from gradmix.models.convolutional import TORCHVISION_NAMES
from gradmix.models.heads import grow_head

X = torch.rand(4, 1, 2, 3, generator=torch.Generator().manual_seed(0))


class Foreign(nn.Module):
    """A network whose head is registered before another linear layer."""

    def __init__(self):
        super().__init__()
        self.top = nn.ModuleDict({"classify": nn.Linear(5, 3)})
        self.body = nn.Linear(6, 5)

    def forward(self, x):
        return self.top["classify"](self.body(x.flatten(1)).tanh())


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_the_last_linear_layer_is_the_head_and_features_its_input():
    module = plain()
    network = adapt(module)
    assert network.head is module[3] is find_head(network)
    assert (network.mix_points, network.embedding_size) == (1, 5)
    assert torch.equal(network(X), module(X))
    assert torch.equal(network.features(X), module[:3](X))
    assert torch.equal(embed(network, network.head, X, torch.zeros(4)).embeddings, module[:3](X))
    assert not network.head._forward_pre_hooks


def test_a_mix_of_the_input():
    network = adapt(plain())
    expected = network((X[:2] + X[2:]) / 2)
    assert torch.equal(network(X, lambda h: (h[:2] + h[2:]) / 2, 0), expected)
    features = network.features(X, lambda h: h + 1, 0)
    assert torch.equal(features, network.features(X + 1))
    features.sum().backward()
    assert network.module[1].weight.grad.any()


@pytest.mark.parametrize("at", [1, -1, None])
def test_a_mix_inside_is_refused_with_the_way_out(at):
    for call in (adapt(plain()), adapt(plain()).features):
        with pytest.raises(InputError, match=f"at is {at}; .*only at point 0.*write a Network"):
            call(X, lambda h: h, at)


def test_a_head_that_is_given_and_replaced_in_place():
    module = Foreign()
    network = adapt(module, module.top["classify"])
    assert network.head is module.top["classify"]
    before = network(X)
    network.head = grow_head(network.head, 7, generator=torch.Generator())
    assert network.head is module.top["classify"]
    assert network(X).shape == (4, 7)
    torch.testing.assert_close(network(X)[:, :3], before)
    assert set(network.state_dict()) == {f"module.{name}" for name in module.state_dict()}
    twin = copy.deepcopy(network)
    assert twin.head is not network.head
    assert torch.equal(twin(X), network(X))


def test_a_module_that_is_its_head():
    network = adapt(nn.Linear(6, 3))
    rows = X.flatten(1)
    assert torch.equal(network.features(rows), rows)
    network.head = grow_head(network.head, 4, generator=torch.Generator())
    assert network(rows).shape == (4, 4)


def test_a_head_that_is_no_linear_layer_is_refused():
    network = adapt(plain())
    with pytest.raises(InputError, match="head is a ReLU"):
        network.head = nn.ReLU()
    assert network.head is network.module[3]


def test_a_wrong_head_is_noticed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(self.layer(x.flatten(1)))

    with pytest.raises(InputError, match=r"shapes \[\(4, 6\), \(4, 6\)\].*used once"):
        adapt(Twice()).features(X)
    with pytest.raises(InputError, match=r"shapes \[\(4, 1, 2, 3\)\]"):
        adapt(nn.Sequential(nn.Linear(3, 3), nn.Flatten())).features(X)


def test_modules_without_the_head_are_refused():
    with pytest.raises(InputError, match=r"ReLU without any nn\.Linear"):
        adapt(nn.ReLU())
    with pytest.raises(InputError, match="Sequential without the head"):
        adapt(plain(), nn.Linear(5, 3))


def test_networks_stay_as_they_are():
    for network in (MLP(6, 3, (4,)), adapt(plain())):
        assert adapt(network) is network
        assert adapt(network, network.head) is network
        with pytest.raises(InputError, match="but module has the head"):
            adapt(network, nn.Linear(4, 3))


def as_state(network, folder):
    return network.state_dict()


def as_module(network, folder):
    return network


def as_file(network, folder):
    path = folder / "weights.safetensors"
    save_file(network.state_dict(), path)
    return path


def as_text(network, folder):
    return str(as_file(network, folder))


def without_head(network, folder):
    return {name: t for name, t in network.state_dict().items() if not name.startswith("head.")}


SOURCES = [as_state, as_module, as_file, as_text, without_head]


@pytest.mark.parametrize("source", SOURCES)
def test_a_backbone_is_loaded_and_the_head_is_not(source, tmp_path):
    x = torch.rand(4, 3, 8, 8)
    trained = ResNet18(7, width=2)
    trained(x)  # moves the statistics
    network = ResNet18(3, width=2)
    head = copy.deepcopy(network.head.state_dict())
    load_backbone(network, source(trained, tmp_path))
    assert torch.equal(network.eval().features(x), trained.eval().features(x))
    assert all(torch.equal(head[name], t) for name, t in network.head.state_dict().items())
    assert network.shared.stem[0].weight is not trained.shared.stem[0].weight


def test_an_adapted_network_takes_the_weights_of_its_module():
    source, target = Foreign(), Foreign()
    network = adapt(target, target.top["classify"])
    head = target.top["classify"].weight.detach().clone()
    for given in (source, source.state_dict(), adapt(source, source.top["classify"])):
        nn.init.zeros_(target.body.weight)
        load_backbone(network, given)
        assert torch.equal(target.body.weight, source.body.weight)
        assert torch.equal(target.top["classify"].weight, head)
    assert isinstance(network, Adapted)


def test_torchvisions_names_are_ours_after_renaming():
    trained = ResNet18(5, width=2, stem="7x7")
    ours = {new: old for old, new in TORCHVISION_NAMES.items()}
    theirs = {}
    for name, tensor in trained.state_dict().items():
        prefix = next(prefix for prefix in ours if name.startswith(prefix))
        theirs[ours[prefix] + name.removeprefix(prefix)] = tensor
    # names as torchvision.models.resnet18().state_dict() lists them
    assert {"conv1.weight", "bn1.running_mean", "layer1.1.bn2.bias", "fc.weight"} <= set(theirs)
    assert {"layer2.0.downsample.0.weight", "layer4.0.downsample.1.running_var"} <= set(theirs)
    network = ResNet18(3, width=2, stem="7x7")
    load_backbone(network, theirs, rename=TORCHVISION_NAMES)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(network.eval().features(x), trained.eval().features(x))


def test_what_does_not_fit_is_named_and_changes_nothing():
    network = MLP(6, 3, (4, 5))
    before = copy.deepcopy(network.state_dict())
    state = dict(MLP(6, 3, (4, 2)).state_dict())
    del state["shared.0.bias"]
    state["extra.weight"] = torch.ones(1)
    with pytest.raises(InputError) as caught:
        load_backbone(network, state)
    message = str(caught.value)
    assert "missing: shared.0.bias;" in message
    assert "unexpected: extra.weight;" in message
    assert "special.0.weight is (2, 4) instead of (5, 4)" in message
    assert "special.0.bias is (2,) instead of (5,)" in message
    assert "head" not in message
    assert all(torch.equal(before[name], t) for name, t in network.state_dict().items())


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        ("extra.weight", torch.ones(1), r"unexpected: extra.weight$"),
        (
            "special.0.bias",
            torch.ones(2),
            r"misshaped: special.0.bias is \(2,\) instead of \(5,\)$",
        ),
        ("special.0.bias", None, r"missing: special.0.bias$"),
    ],
)
def test_one_problem_is_enough(name, tensor, problem):
    network = MLP(6, 3, (4, 5))
    state = {**MLP(6, 3, (4, 5)).state_dict(), name: tensor}
    with pytest.raises(InputError, match=problem):
        load_backbone(network, {key: t for key, t in state.items() if t is not None})


def test_long_lists_of_names_are_cut():
    with pytest.raises(InputError, match=r"missing: shared.stem.0.weight, .* and \d+ more"):
        load_backbone(ResNet18(3, width=1), {})


def test_files_that_are_no_weights_are_refused(tmp_path):
    network = MLP(6, 3, (4,))
    pickled = tmp_path / "weights.pt"
    torch.save(network.state_dict(), pickled)
    load_backbone(network, pickled)
    with pytest.raises(InputError, match="there is no such file"):
        load_backbone(network, tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(pickled.read_bytes())
    with pytest.raises(CorruptFileError, match="broken"):
        load_backbone(network, broken)
    with pytest.raises(InputError, match=r"source\['epoch'\] is a int"):
        load_backbone(network, {"epoch": 3})
