"""Criterion and mixing together, in the library's loop and in anybody's.

Every sample is its own unit vector, so that a mixed row tells λ and both of its parents.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradmix
from gradmix.criterion import Exemplars
from gradmix.criterion.reference import reference_pair_table
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixer import GradMix, Mixer
from gradmix.mixing import RECIPES, Recipe, parse_recipe
from gradmix.mixing.recipes import BLENDS, LABELS, PARTNERS
from gradmix.models import MLP
from gradmix.types import Batch, PairTable, Samples

OUTPUTS = 8
NEW_Y = torch.tensor([4] * 12 + [6] * 5)[
    torch.randperm(17, generator=torch.Generator().manual_seed(0))
]
OLD_Y = torch.tensor([1, 1, 1, 1, 2, 2])  # unequal, so that the kinds of average differ
Y = torch.cat([NEW_Y, OLD_Y])
SIZE = len(Y)
X = torch.eye(SIZE)
NEW, OLD = (X[:17], NEW_Y), (X[17:], OLD_Y)
EMPTY = (torch.empty(0, SIZE), torch.empty(0, dtype=torch.int64))
CLASSES = torch.tensor([1, 2, 4, 6])
SCORES = torch.tensor(
    [
        [1.0, -1.0, -1.0, 0.5],  # 1: best with itself
        [3.0, -1.0, 0.0, -1.0],  # 2: best with 1
        [-1.0, 2.0, -1.0, -1.0],  # 4: best with 2
        [-4.0, -3.0, -2.0, -1.0],  # 6: harmed by all, least by itself
    ]
)
BEST = {1: 1, 2: 1, 4: 2, 6: 6}
ROWS = torch.tensor([0, 3, 5, 8, 11, 14, 16, 17, 18, 20, 22])  # a batch of the pool


class FixedHost:
    """A generator of scalars that gives what the test wants, and notes what it was asked."""

    def __init__(self, lam=0.3, integer=0):
        self.lam, self.integer = lam, integer
        self.asked = []

    def beta(self, a, b):
        self.asked.append(("beta", a, b))
        return self.lam

    def integers(self, limit):
        self.asked.append(("integers", limit))
        return min(self.integer, limit - 1)


class RecordingPool(Pool):
    """A pool that notes which samples it was asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def images(self, index):
        self.asked.append(index.tolist())
        return super().images(index)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_pool(memory=OLD, x=X):
    if memory is not None:
        memory = Samples(x[17:], OLD_Y)
    return RecordingPool(Samples(x[:17], NEW_Y), memory, Normalise([0.0], [1.0]))


def make_mixer(recipe, host=None, memory=OLD, x=X, seed=1, **settings):
    recipe = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    host = FixedHost() if host is None else host
    mixer = Mixer(recipe, OUTPUTS, host=host, generator=seeded(seed), **settings)
    mixer.begin_task(make_pool(memory, x))
    return mixer


def with_table(recipe, **settings):
    mixer = make_mixer(recipe, **settings)
    mixer.pairs = PairTable.from_scores(CLASSES, SCORES)
    return mixer


def parents(mixed, rows):
    """For each mixed row of unit vectors: λ and the partner's place in the pool."""
    result = []
    for row, own in zip(mixed, rows.tolist(), strict=True):
        others = [k for k in row.nonzero().squeeze(1).tolist() if k != own]
        assert len(others) <= 1
        result.append((float(row[own]), others[0] if others else own))
        torch.testing.assert_close(row.sum(), torch.tensor(1.0))
    return result


def global_state():
    keys, *rest = np.random.get_state()[1:]
    return [torch.get_rng_state().tolist(), keys.tolist(), *rest]


def batch_norm_model(bias=True):
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Linear(SIZE, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(6, OUTPUTS, bias=bias),
        )
        with torch.no_grad():
            model[1].running_mean.uniform_(-1, 1)
            model[1].bias.fill_(1.0)
            model[4].weight[[4, 6]] += 0.5  # takes all for new, so that some pairs do harm
    return model


def reference(model, lam, average="sample"):
    """Algorithm 1 by explicit gradients on the whole pool, all pairs of samples."""
    head = model[-1]
    model.eval()
    with torch.no_grad():
        embeddings = model[:-1](X)
        exemplars = Exemplars(embeddings, head(embeddings), Y)
    model.train()
    memory = Exemplars(*(part[17:] for part in exemplars))
    return reference_pair_table(
        exemplars, memory, lam, bias=head.bias is not None, pairing="all-pairs", average=average
    )


# --- Mixer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [None, "gradmix", "gradmix+", "gradient:cutmix:remix"])
def test_unmixed_without_a_recipe_or_a_table(recipe):
    mixer = make_mixer(recipe)
    batch = mixer._pool.batch(ROWS)
    mixed = mixer.mix(batch)
    assert mixed.x is batch.x
    assert mixed.targets is batch.y
    assert (mixed.mix, mixed.at) == (None, None)
    assert mixer._host.asked == []
    assert int(mixer.counts.sum()) == 0


@pytest.mark.parametrize("recipe", ["gradmix", "gradient-keep-original:linear:proportional"])
def test_an_empty_memory_gives_no_table_and_no_mix(recipe):
    mixer = make_mixer(recipe, memory=None)
    mixer.refresh(nn.Linear(SIZE, OUTPUTS))
    assert mixer.pairs is None
    assert mixer.mix(Batch(X[:3], NEW_Y[:3])).targets.tolist() == NEW_Y[:3].tolist()
    assert mixer._pool.asked == []


@pytest.mark.parametrize("recipe", [None, "mixup", "remix", "cutmix", "balanced-mixup"])
def test_without_gradients_the_model_is_never_asked(recipe):
    mixer = make_mixer(recipe)
    mixer.refresh(nn.Identity())  # has no head and would be refused
    assert mixer.pairs is None
    assert mixer._host.asked == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_ratio_is_drawn_from_the_recipes_distribution(name):
    mixer = with_table(name, x=torch.rand(SIZE, 1, 4, 4, generator=seeded()))
    mixer.mix(mixer._pool.batch(ROWS))
    assert mixer._host.asked[0] == ("beta", *RECIPES[name].ratio)


def test_mixup_by_its_parents():
    mixer = make_mixer("mixup")
    mixed = mixer.mix(mixer._pool.batch(ROWS))
    found = parents(mixed.x, ROWS)
    assert sorted(partner for _, partner in found) == ROWS.tolist()  # a permutation
    assert any(partner != own for own, (_, partner) in zip(ROWS.tolist(), found, strict=True))
    for row, (own, (lam, partner)) in enumerate(zip(ROWS.tolist(), found, strict=True)):
        assert lam == pytest.approx(1 if partner == own else 0.3)
        expected = 0.3 * torch.eye(OUTPUTS)[Y[own]] + 0.7 * torch.eye(OUTPUTS)[Y[partner]]
        torch.testing.assert_close(mixed.targets[row], expected)


@pytest.mark.parametrize("indexed", [True, False])
def test_gradient_partners_by_their_parents(indexed):
    mixer = with_table("gradmix")
    batch = mixer._pool.batch(ROWS) if indexed else Batch(X[ROWS], Y[ROWS])
    shuffled = torch.randperm(len(ROWS), generator=seeded(1))
    negative = {(int(CLASSES[a]), int(CLASSES[b])) for a, b in (SCORES < 0).nonzero().tolist()}
    mixed = mixer.mix(batch)
    replaced = 0
    for row, (_, partner) in enumerate(parents(mixed.x, ROWS)):
        own_y, first_y = int(Y[ROWS[row]]), int(Y[ROWS[shuffled[row]]])
        if (own_y, first_y) in negative:
            assert int(Y[partner]) == BEST[own_y]
            replaced += 1
        else:
            assert partner == ROWS[shuffled[row]]
        expected = 0.3 * torch.eye(OUTPUTS)[own_y] + 0.7 * torch.eye(OUTPUTS)[Y[partner]]
        torch.testing.assert_close(mixed.targets[row], expected)
    assert 0 < replaced < len(ROWS)


def test_keep_original_leaves_harmed_rows_alone():
    mixer = with_table("gradient-keep-original:linear:proportional")
    shuffled = ROWS[torch.randperm(len(ROWS), generator=seeded(1))]
    mixed = mixer.mix(mixer._pool.batch(ROWS))
    for row, (_, partner) in enumerate(parents(mixed.x, ROWS)):
        own, other = int(ROWS[row]), int(shuffled[row])
        a, b = (int((Y[k] == CLASSES).nonzero()) for k in (own, other))
        assert partner == (own if SCORES[a, b] < 0 else other)
        if partner == own:
            assert torch.equal(mixed.targets[row], torch.eye(OUTPUTS)[Y[own]])


@pytest.mark.parametrize("name", ["mixup", "balanced-mixup", "gradmix", "gradmix+"])
def test_counts_are_the_pairs_mixed(name):
    mixer = with_table(name)
    expected = torch.zeros(OUTPUTS, OUTPUTS, dtype=torch.int64)
    for first in (0, 3, 6):
        rows = torch.arange(first, SIZE, 2)
        mixed = mixer.mix(mixer._pool.batch(rows))
        for own, (_, partner) in zip(rows.tolist(), parents(mixed.x, rows), strict=True):
            expected[Y[own], Y[partner]] += 1
    assert torch.equal(mixer.counts, expected)
    mixer.begin_task(make_pool())
    assert int(mixer.counts.sum()) == 0
    assert mixer.pairs is None


@pytest.mark.parametrize("lam", [0.3, 0.7])
def test_remix_labels_count_the_whole_pool(lam):
    """Class 4 has 12 samples, 6 has 5, 1 has 4, 2 has 2: only 4 outnumbers any by κ = 3."""
    mixer = make_mixer("remix", host=FixedHost(lam))
    mixed = mixer.mix(mixer._pool.batch(ROWS))
    leaning = 0
    for row, (_, partner) in enumerate(parents(mixed.x, ROWS)):
        own_y, other_y = int(Y[ROWS[row]]), int(Y[partner])
        share = lam
        if own_y == 4 and other_y in (1, 2) and lam == 0.3:
            share, leaning = 0.0, leaning + 1
        if own_y in (1, 2) and other_y == 4 and lam == 0.7:
            share, leaning = 1.0, leaning + 1
        eye = torch.eye(OUTPUTS)
        torch.testing.assert_close(
            mixed.targets[row], share * eye[own_y] + (1 - share) * eye[other_y]
        )
    assert leaning > 0


def test_cutmix_labels_have_the_share_of_pixels():
    """λ = 0.75 on 4×4: a box of 2×2, of which the corner keeps one pixel."""
    x = torch.arange(SIZE, dtype=torch.float32).view(-1, 1, 1, 1).expand(SIZE, 1, 4, 4)
    mixer = make_mixer("cutmix", host=FixedHost(0.75), x=x)
    mixed = mixer.mix(mixer._pool.batch(ROWS))
    partner = mixed.x[:, 0, 0, 0].long()
    assert torch.equal(mixed.x[:, 0, 1:, :], x[ROWS, 0, 1:, :])
    eye = torch.eye(OUTPUTS)
    torch.testing.assert_close(mixed.targets, 15 / 16 * eye[Y[ROWS]] + 1 / 16 * eye[Y[partner]])


def test_remix_goes_by_the_share_that_cutmix_left():
    """λ = 0.3 on 4×4: a box of 2×2, of which the corner keeps one pixel; 15/16 is above τ."""
    x = torch.arange(SIZE, dtype=torch.float32).view(-1, 1, 1, 1).expand(SIZE, 1, 4, 4)
    mixer = make_mixer("shuffle:cutmix:remix", x=x)
    mixed = mixer.mix(mixer._pool.batch(ROWS))
    own_y, partner_y = Y[ROWS], Y[mixed.x[:, 0, 0, 0].long()]
    rarer = (own_y < 3) & (partner_y == 4)
    assert bool(rarer.any())
    shares = torch.where(rarer, 1.0, 15 / 16)[:, None]
    eye = torch.eye(OUTPUTS)
    torch.testing.assert_close(mixed.targets, shares * eye[own_y] + (1 - shares) * eye[partner_y])


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("partners", ["shuffle", "gradient"])
def test_manifold_mixes_the_same_parents_deeper_down(partners, at):
    model, host = MLP(SIZE, OUTPUTS, (5, 4)), FixedHost(0.3, at)
    deep = with_table(f"{partners}:manifold:proportional", host=host, mix_points=model.mix_points)
    mixed = deep.mix(deep._pool.batch(ROWS))
    assert mixed.at == at
    assert host.asked[1:] == [("integers", 3)]
    shallow = with_table(f"{partners}:linear:proportional")
    flat = shallow.mix(shallow._pool.batch(ROWS))
    torch.testing.assert_close(mixed.targets, flat.targets)
    partner = torch.tensor([p for _, p in parents(flat.x, ROWS)])
    h = X
    for layer in model.hidden[:at]:
        h = layer(h).relu()
    h = 0.3 * h[ROWS] + 0.7 * h[partner]
    for layer in model.hidden[at:]:
        h = layer(h).relu()
    torch.testing.assert_close(model(mixed.x, mixed.mix, mixed.at), model.head(h))


@pytest.mark.parametrize("axes", list(itertools.product(PARTNERS, BLENDS, LABELS)))
def test_with_and_without_index_is_the_same_mix(axes):
    x = torch.rand(SIZE, 2, 5, 3, generator=seeded())
    results = []
    for index in (ROWS, None):
        mixer = with_table(Recipe(*axes), host=np.random.default_rng(3), x=x, mix_points=3)
        mixed = mixer.mix(Batch(x[ROWS], Y[ROWS], index))
        inputs = mixed.x if mixed.mix is None else mixed.mix(mixed.x)
        results.append((inputs, mixed.targets, mixed.at, mixer.counts))
    (x_1, targets_1, at_1, counts_1), (x_2, targets_2, at_2, counts_2) = results
    assert x_1.shape == x[ROWS].shape
    assert torch.equal(x_1, x_2)
    assert torch.equal(targets_1, targets_2)
    assert torch.equal(counts_1, counts_2)
    assert at_1 == at_2


@pytest.mark.parametrize("average", ["sample", "class"])
def test_refresh_is_algorithm_1(average):
    model, host = batch_norm_model(), FixedHost(0.3)
    mixer = make_mixer("gradmix", host=host, pairing="all-pairs", average=average)
    mixer.refresh(model)
    expected = reference(model, 0.3, average)
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6]
    torch.testing.assert_close(mixer.pairs.scores, expected.scores)
    assert torch.equal(mixer.pairs.negative, expected.negative)
    assert torch.equal(mixer.pairs.optimal, expected.optimal)
    assert host.asked == [("beta", 1.0, 1.0)]


def test_refresh_leaves_the_model_and_the_global_generators_as_they_were():
    model = batch_norm_model().train()
    model[1].eval()  # a user's frozen BatchNorm stays frozen
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    randomness = global_state()
    mixer = make_mixer("gradmix")
    mixer.refresh(model)
    mixer.mix(mixer._pool.batch(ROWS))
    assert global_state() == randomness
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("limit", "of_4", "of_6"), [(1, 1, 1), (5, 5, 5), (7, 7, 5), (99, 12, 5)])
def test_refresh_draws_a_few_new_samples_and_the_whole_memory(limit, of_4, of_6):
    mixer = make_mixer("gradmix", exemplars_per_class=limit)
    mixer.refresh(batch_norm_model())
    (asked,) = mixer._pool.asked
    assert len(set(asked)) == len(asked)
    assert sorted(k for k in asked if k >= 17) == list(range(17, SIZE))
    labels = Y[torch.tensor(asked)]
    assert (int((labels == 4).sum()), int((labels == 6).sum())) == (of_4, of_6)


def test_every_refresh_draws_other_exemplars():
    mixer = make_mixer("gradmix", exemplars_per_class=3)
    for _ in range(60):
        mixer.refresh(batch_norm_model())
    drawn = {k for asked in mixer._pool.asked for k in asked}
    assert drawn == set(range(SIZE))
    assert mixer._pool.asked[0] != mixer._pool.asked[1]


def test_state_round_trip():
    mixer = make_mixer("gradmix+", host=np.random.default_rng(3))
    mixer.refresh(batch_norm_model())
    mixer.mix(mixer._pool.batch(ROWS))
    state, generator = mixer.state_dict(), mixer._generator.get_state()
    host = mixer._host.bit_generator.state
    saved = state["counts"].clone()
    expected = mixer.mix(mixer._pool.batch(ROWS))
    assert torch.equal(state["counts"], saved)  # mixing on does not change what was saved
    again = make_mixer("gradmix+", host=np.random.default_rng(9))
    again.load_state_dict(state)
    again._generator.set_state(generator)
    again._host.bit_generator.state = host
    result = again.mix(again._pool.batch(ROWS))
    assert torch.equal(result.x, expected.x)
    assert torch.equal(result.targets, expected.targets)
    assert torch.equal(again.counts, mixer.counts)
    assert torch.equal(state["counts"], saved)


def test_state_without_a_table():
    mixer = with_table("gradmix")
    mixer.load_state_dict(make_mixer("gradmix").state_dict())
    assert mixer.pairs is None


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"exemplars_per_class": 0}, InputError, "exemplars_per_class is 0"),
        ({"pairing": "one-to-on"}, UnknownNameError, "did you mean 'one-to-one'"),
        ({"average": "samples"}, UnknownNameError, "did you mean 'sample'"),
    ],
)
def test_bad_settings_are_refused(settings, error, name):
    with pytest.raises(error, match=name):
        make_mixer("gradmix", **settings)
    with pytest.raises(error, match=name):
        GradMix(**settings)


# --- GradMix ----------------------------------------------------------------------------------


def refreshed(model=None, seed=2, memory=OLD, current=NEW, **settings):
    mixer = GradMix(generator=seeded(seed), **settings)
    mixer.refresh(batch_norm_model() if model is None else model, memory=memory, current=current)
    return mixer


def use(mixer, argument, samples):
    """Hand over samples as a batch, or as one argument of a refresh."""
    if argument == "batch":
        mixer(*samples)
    else:
        mixer.refresh(batch_norm_model(), **{"memory": OLD, "current": NEW, argument: samples})


def test_it_is_the_public_name():
    assert gradmix.GradMix is GradMix


@pytest.mark.parametrize("bias", [True, False])
def test_the_table_is_algorithm_1(bias):
    """A huge α makes λ a half."""
    model = batch_norm_model(bias)
    mixer = refreshed(model, alpha=1e10, pairing="all-pairs")
    expected = reference(model, 0.5)
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6]
    torch.testing.assert_close(mixer.pairs.scores, expected.scores, atol=1e-4, rtol=1e-3)
    assert torch.equal(mixer.pairs.negative, expected.negative)
    assert torch.equal(mixer.pairs.optimal, expected.optimal)


def test_a_mixed_batch_is_what_it_says():
    mixer = refreshed(labels="proportional")
    table = mixer.pairs
    assert 0 < table.negative_rate < 1  # else this test would show little
    position = {int(label): k for k, label in enumerate(table.classes)}
    eye, ratios = torch.eye(OUTPUTS), set()
    for _ in range(20):
        x, targets = mixer(X[ROWS], Y[ROWS])
        assert targets.dtype == torch.float32
        assert targets.shape == (len(ROWS), OUTPUTS)
        mixed = {}
        for row, (lam, partner) in enumerate(parents(x, ROWS)):
            a, b = position[int(Y[ROWS[row]])], position[int(Y[partner])]
            assert not table.negative[a, b] or b == table.optimal[a]
            if partner != ROWS[row]:
                mixed[row] = lam, partner
        (lam,) = {round(lam, 5) for lam, _ in mixed.values()}  # one λ per batch
        ratios.add(lam)
        for row, (lam, partner) in mixed.items():
            expected = lam * eye[Y[ROWS[row]]] + (1 - lam) * eye[Y[partner]]
            torch.testing.assert_close(targets[row], expected)
    assert len(ratios) == 20


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("partners", PARTNERS)
@pytest.mark.parametrize("blend", ["linear", "cutmix"])
def test_targets_are_distributions_and_train_a_model(blend, partners, labels):
    x = torch.rand(SIZE, 1, 4, 4, generator=seeded())
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, OUTPUTS))
    mixer = refreshed(
        model,
        memory=(x[17:], OLD_Y),
        current=(x[:17], NEW_Y),
        partners=partners,
        blend=blend,
        labels=labels,
    )
    mixed, targets = mixer(x[ROWS], Y[ROWS])
    assert mixed.shape == x[ROWS].shape
    assert bool((targets >= 0).all())
    torch.testing.assert_close(targets.sum(1), torch.ones(len(ROWS)))
    seen = Y.unique().tolist()
    assert not targets[:, [k for k in range(OUTPUTS) if k not in seen]].any()
    F.cross_entropy(model(mixed), targets).backward()
    assert model[-1].weight.grad is not None


def test_same_seed_same_bits_whatever_the_global_generator_does():
    results = []
    for seed in (4, 4, 5):
        torch.manual_seed(len(results))
        mixer = refreshed(seed=seed)
        torch.rand(3)
        results.append((mixer.pairs.scores, *mixer(X[ROWS], Y[ROWS])))
    assert all(torch.equal(*pair) for pair in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][1], results[2][1])


def test_with_a_generator_the_global_ones_and_the_model_are_left_alone():
    model = batch_norm_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    randomness = global_state()
    refreshed(model)(X[ROWS], Y[ROWS])
    assert global_state() == randomness
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_a_generator_the_global_seed_decides():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        mixer = GradMix()
        mixer.refresh(batch_norm_model(), memory=OLD, current=NEW)
        results.append(mixer(X[ROWS], Y[ROWS])[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_batch_is_not_written_to():
    x, y = X[ROWS].clone(), Y[ROWS].clone()
    refreshed()(x, y)
    assert torch.equal(x, X[ROWS])
    assert torch.equal(y, Y[ROWS])


def test_an_empty_memory_leaves_batches_as_they_are():
    mixer = refreshed(memory=EMPTY)
    assert mixer.pairs is None
    x = X[:5].clone()
    mixed, targets = mixer(x, NEW_Y[:5])
    assert torch.equal(mixed, X[:5])
    assert targets.dtype == torch.float32
    assert torch.equal(targets, torch.eye(OUTPUTS)[NEW_Y[:5]])


def test_an_empty_memory_does_not_stop_mixes_without_gradients():
    mixed, _ = refreshed(memory=EMPTY, partners="shuffle")(X[:9], NEW_Y[:9])
    assert not torch.equal(mixed, X[:9])


def test_a_given_head_is_used_where_the_last_linear_is_another():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(SIZE, OUTPUTS, bias=False)
            self.rotation = nn.Linear(SIZE, 4)  # registered last, used for something else

        def forward(self, x):
            return self.classifier(x)

    model = Model()
    mixer = refreshed(model, head=model.classifier)
    assert mixer(X[ROWS], Y[ROWS])[1].shape == (len(ROWS), OUTPUTS)
    before = mixer.pairs
    with pytest.raises(InputError, match="head"):
        refreshed(model)
    assert mixer.pairs is before


@pytest.mark.parametrize("limit", [1, 4])
def test_few_exemplars_are_drawn_of_the_current_classes(limit):
    model, rows = batch_norm_model(), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].argmax(1)))
    refreshed(model, exemplars_per_class=limit)
    labels = Y[torch.cat(rows)]
    assert labels.bincount(minlength=OUTPUTS).tolist() == [0, 4, 2, 0, limit, 0, limit, 0]


def test_a_refresh_follows_model_and_data():
    mixer = refreshed(pairing="all-pairs")
    first = mixer.pairs
    mixer.refresh(batch_norm_model(), memory=(X, Y), current=(X[:4], torch.full((4,), 7)))
    assert mixer.pairs is not first
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6, 7]
    mixer.refresh(batch_norm_model(), memory=EMPTY, current=NEW)
    assert mixer.pairs is None


def test_state_goes_on_between_epochs():
    mixer = GradMix(generator=(generator := seeded(3)))
    model = batch_norm_model()

    def epoch(mixer):
        mixer.refresh(model, memory=OLD, current=NEW)
        return [mixer(X[ROWS], Y[ROWS])[0] for _ in range(3)]

    epoch(mixer)
    state, draws = mixer.state_dict(), generator.get_state()
    expected = epoch(mixer)
    again = GradMix(generator=(other := seeded(99)))
    again.load_state_dict(state)
    other.set_state(draws)
    assert all(torch.equal(*pair) for pair in zip(epoch(again), expected, strict=True))


def test_a_call_before_the_first_refresh_says_what_to_do():
    mixer = GradMix()
    assert mixer.pairs is None
    with pytest.raises(InputError, match="call refresh"):
        mixer(X[ROWS], Y[ROWS])


NAN = torch.where(torch.eye(SIZE) > 0, torch.nan, X)

BAD_SAMPLES = {
    "fewer inputs": (X[:2], Y[:3], "3 labels"),
    "fewer labels": (X[:3], Y[:2], "2 labels"),
    "int32 labels": (X[:2], Y[:2].int(), "labels are torch.int32"),
    "soft labels": (X[:2], torch.eye(OUTPUTS)[:2], "labels are torch.float32"),
    "labels in a column": (X[:2], Y[:2, None], "2 dimensions"),
    "label above the outputs": (X[:2], torch.tensor([1, 8]), "outputs 0 to 7"),
    "label below 0": (X[:2], torch.tensor([1, -1]), "from -1 to 1"),
    "integer inputs": (X[:2].to(torch.uint8), Y[:2], "inputs are torch.uint8"),
    "NaN": (NAN[:2], Y[:2], "NaN or infinite"),
    "infinite": (X[:2] / 0, Y[:2], "NaN or infinite"),
    "other shape": (X[:2, None], Y[:2], r"shape \(2, 1, 23\)"),
    "fewer columns": (X[:2, :1], Y[:2], r"shape \(2, 1\)"),
    "other dtype": (X[:2].half(), Y[:2], "torch.float16"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
@pytest.mark.parametrize("argument", ["memory", "current", "batch"])
def test_bad_samples_are_refused_by_name_and_change_nothing(argument, case):
    x, y, message = BAD_SAMPLES[case]
    mixer = refreshed()
    pairs, state = mixer.pairs, mixer.state_dict()
    if argument == "current" and case in ("other shape", "fewer columns", "other dtype"):
        message = "memory inputs are .*" + message  # which of the two is wrong, nobody can know
    else:
        message = f"{argument} .*{message}"
    with pytest.raises(InputError, match=message):
        use(mixer, argument, (x, y))
    assert mixer.pairs is pairs
    assert mixer.state_dict() == state
    assert mixer(X[ROWS], Y[ROWS])[0].shape == (len(ROWS), SIZE)  # and it still works


@pytest.mark.parametrize("argument", ["current", "batch"])
def test_only_the_memory_may_be_empty(argument):
    mixer = refreshed()
    with pytest.raises(InputError, match=f"{argument} has 0 inputs"):
        use(mixer, argument, EMPTY)


@pytest.mark.parametrize("partners", ["gradient", "shuffle"])
def test_a_class_that_was_not_there_at_the_refresh_is_refused(partners):
    mixer = refreshed(partners=partners)
    with pytest.raises(InputError, match=r"classes \[0, 5\].*classes \[1, 2, 4, 6\]"):
        mixer(X[:3], torch.tensor([5, 4, 0]))


def diverged():
    model = batch_norm_model()
    with torch.no_grad():
        model[-1].weight.fill_(torch.nan)
    return model


BAD_MODELS = {
    "no linear": (lambda: nn.Sequential(nn.Flatten(), nn.ReLU()), "model is a Sequential"),
    "softmax behind the head": (lambda: nn.Sequential(batch_norm_model(), nn.Softmax(1)), "head"),
    "diverged": (diverged, "model gives NaN"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models_are_refused_and_change_nothing(case):
    make, message = BAD_MODELS[case]
    mixer, model = refreshed(), make().train()
    pairs, state = mixer.pairs, mixer.state_dict()
    with pytest.raises(InputError, match=message):
        mixer.refresh(model, memory=OLD, current=NEW)
    assert mixer.pairs is pairs
    assert mixer.state_dict() == state
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("which", ["a stranger", "a hidden layer"])
def test_a_wrong_head_is_refused(which):
    model = nn.Sequential(nn.Linear(SIZE, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, OUTPUTS))
    head = model[0] if which == "a hidden layer" else nn.Linear(SIZE, OUTPUTS)
    with pytest.raises(InputError, match="head"):
        refreshed(model, head=head)


def test_cutmix_of_rows_is_refused():
    mixer = refreshed(blend="cutmix")
    with pytest.raises(InputError, match="cutmix needs images"):
        mixer(X[ROWS], Y[ROWS])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"blend": "manifold"}, InputError, "blend is 'manifold'"),
        ({"alpha": 0.0}, InputError, "alpha is 0.0"),
        ({"alpha": -1.0}, InputError, "alpha is -1.0"),
        ({"alpha": float("nan")}, InputError, "alpha is nan"),
        ({"alpha": float("inf")}, InputError, "alpha is inf"),
        ({"labels": "remx"}, UnknownNameError, "unknown labels 'remx': did you mean 'remix'"),
        ({"partners": "gradent"}, UnknownNameError, "did you mean 'gradient'"),
        ({"blend": "cutmx"}, UnknownNameError, "unknown blend 'cutmx': did you mean 'cutmix'"),
        ({"exemplars_per_class": -1}, InputError, "exemplars_per_class is -1"),
    ],
)
def test_bad_settings_fail_at_construction(settings, error, message):
    with pytest.raises(error, match=message):
        GradMix(**settings)
