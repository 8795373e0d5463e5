"""What holds for every network: its parts, its mix points, its modes, its randomness."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradmix.criterion import find_head
from gradmix.errors import InputError
from gradmix.models import CNN, MLP, Network, Part, ResNet18, ViT

NETWORKS = {
    "mlp": (lambda: MLP(3 * 8 * 12, 5, (6, 7)), 3),
    "mlp-1": (lambda: MLP(3 * 8 * 12, 5, (6,)), 2),
    "cnn": (lambda: CNN(5, width=4), 3),
    "resnet": (lambda: ResNet18(5, width=4), 3),
    "resnet-7x7": (lambda: ResNet18(5, width=4, stem="7x7"), 3),
    "vit": (lambda: ViT(5, image_size=(8, 12), patch=4, dim=8, depth=4, heads=2), 3),
    "vit-2": (lambda: ViT(5, image_size=(8, 12), patch=2, dim=6, depth=2, heads=3), 3),
}
POINTS = [(name, at) for name, (_, points) in NETWORKS.items() for at in range(points)]
X = torch.rand(6, 3, 8, 12, generator=torch.Generator().manual_seed(0))


def make(name, seed=0):
    with torch.device("meta"):
        network = NETWORKS[name][0]()
    network = network.to_empty(device="cpu")
    network.initialise(torch.Generator().manual_seed(seed))
    return network


def pieces(network):
    """What runs from each mix point to the next, written out, the last up to the embedding."""
    shared, special = network.shared, network.special
    if isinstance(network, MLP):
        return [lambda x: x.flatten(1), *shared, *special]
    if isinstance(network, ResNet18):
        first = nn.Sequential(shared.stem, shared.layer1)
        return [nn.Identity(), first, shared.layer2, nn.Sequential(shared.layer3, special)]
    if isinstance(network, CNN):
        return [nn.Identity(), shared.stage1, shared.stage2, nn.Sequential(shared.stage3, special)]
    blocks = [module for name, module in shared.named_children() if name.startswith("block")]
    half = (len(blocks) + 1) // 2
    first, rest = nn.Sequential(*blocks[:half]), nn.Sequential(*blocks[half:], special)
    return [nn.Identity(), shared.embedding, first, rest]


def halves(h):
    assert len(h) == len(X)
    return 0.3 * h[: len(h) // 2] + 0.7 * h[len(h) // 2 :]


@pytest.mark.parametrize(("name", "at"), POINTS)
@pytest.mark.parametrize("training", [True, False])
def test_a_mix_at_every_point_is_what_it_is_by_hand(name, at, training):
    network = make(name).train(training)
    twin = copy.deepcopy(network)
    h = X
    for number, piece in enumerate(pieces(twin)):
        h = piece(h)
        if number == at:
            h = halves(h)
    assert torch.equal(network.features(X, halves, at), h)
    assert torch.equal(network.eval()(X, halves, at), network.head(network.features(X, halves, at)))


@pytest.mark.parametrize(("name", "at"), POINTS)
def test_the_parts_with_a_mix_are_the_features_with_it(name, at):
    network, calls = make(name).eval(), []

    def mix(h):
        calls.append(h)
        return halves(h)

    special = copy.deepcopy(network.special)  # as MEMO's, out of its network
    parts = special(network.shared(X, mix, at), mix, at)
    assert len(calls) == 1
    assert parts.shape == (3, network.embedding_size)
    assert torch.equal(parts, network.features(X, halves, at))


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_features_and_head_make_the_whole(name):
    network = make(name).eval()
    features = network.features(X)
    assert features.shape == (6, network.embedding_size) == (6, network.head.in_features)
    assert torch.equal(network.special(network.shared(X)), features)
    assert torch.equal(network(X), network.head(features))
    assert torch.equal(network(X, None, 99), network(X))
    assert network.mix_points == NETWORKS[name][1]
    assert find_head(network) is network.head
    inside = {name.partition(".")[0] for name in network.state_dict()}
    assert inside <= {"shared", "special", "head"}


@pytest.mark.parametrize(("name", "at"), POINTS)
def test_the_pooled_tokens_are_the_embedding(name, at):
    network = make(name).eval()
    tokens = network.tokens(X, halves, at)
    number = {"resnet": 1 * 2, "cnn": 1 * 2, "vit": 1 + 2 * 3, "vit-2": 1 + 4 * 6}
    assert tokens.shape == (len(X) // 2, number.get(name, 1), network.embedding_size)
    torch.testing.assert_close(network.pool(tokens), network.features(X, halves, at))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("at", [-1, 3, None])
def test_a_mix_at_no_point_is_refused_by_the_whole_and_by_both_parts(name, at):
    network = make(name)
    hidden = network.shared(X)
    for call in (network, network.features, network.shared):
        with pytest.raises(InputError, match=f"at is {at}; .* has {network.mix_points}"):
            call(X, halves, at)
    with pytest.raises(InputError, match=f"at is {at}"):
        network.special(hidden, halves, at)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_seed_one_network(name):
    first, again, other = make(name, 1), make(name, 1), make(name, 2)
    assert torch.equal(first(X), again(X))
    assert not torch.equal(first(X), other(X))


@pytest.mark.parametrize("name", NETWORKS)
def test_only_training_moves_statistics_and_evaluation_ignores_the_batch(name):
    network = make(name).train()
    before = copy.deepcopy(network.state_dict())
    network.eval()
    together = network(X)
    torch.testing.assert_close(together[2:3], network(X[2:3]))
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    network.train()(X)
    moved = {key for key, value in network.state_dict().items() if not value.equal(before[key])}
    assert moved == {key for key, _ in network.named_buffers()}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_learns(name):
    network = make(name)
    network(X).square().sum().backward()
    silent = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@pytest.mark.parametrize("name", ["resnet", "vit", "mlp"])
def test_per_sample_gradients_by_vmap_are_those_one_by_one(name):
    network = make(name).eval()
    params = {key: p.detach() for key, p in network.named_parameters()}

    def loss(params, x):
        return torch.func.functional_call(network, params, (x.unsqueeze(0),)).square().sum()

    with sdpa_kernel(SDPBackend.MATH):  # the only attention that vmap knows
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, X[:2])
    alone = torch.func.grad(loss)(params, X[1])
    for key, value in alone.items():
        torch.testing.assert_close(each[key][1], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_by_autocast(name):
    network = make(name)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(X, halves, 1)
    assert logits.shape == (3, 5)
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("places", [(0, 0), (2, 1), (3,), (-1,)])
def test_mix_points_that_are_no_places_between_stages_are_refused(places):
    with pytest.raises(InputError, match="mix_after is"):
        Part(nn.ReLU(), nn.ReLU(), mix_after=places)


@pytest.mark.parametrize("places", [(), (1,)])
def test_the_input_is_always_a_mix_point(places):
    shared, special = Part(nn.Linear(2, 2), mix_after=places), Part(nn.ReLU())
    with pytest.raises(InputError, match=r"shared has mix_after=\(.*must be 0, the input"):
        Network(shared, special, nn.Linear(2, 3))


def test_points_are_numbered_through_both_parts():
    shared = Part(nn.Linear(2, 2), mix_after=(0, 1))
    special = Part(nn.Linear(2, 2), nn.ReLU(), mix_after=(1, 2))
    network = Network(shared, special, nn.Linear(2, 3))
    x = torch.rand(2, 2)
    states = [x, shared(x), special[0](shared(x)), special(shared(x))]
    for at, state in enumerate(states):
        seen = []
        network(x, lambda h, seen=seen: seen.append(h) or h, at)
        assert torch.equal(seen[0], state)
        assert len(seen) == 1
