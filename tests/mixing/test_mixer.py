"""The mixer of the training loop: plans, mixed batches, counts and saved plans."""

import itertools
import json

import numpy as np
import pytest
import torch

from gradmix.criterion.selector import PairTables
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import InputError
from gradmix.mixing import RECIPES, Recipe, parse_recipe
from gradmix.mixing.mixer import Mixer
from gradmix.mixing.recipe import BLENDS, LABELS, PARTNERS
from gradmix.models import MLP
from gradmix.types import Samples

AXES = [*itertools.product(PARTNERS, BLENDS, LABELS)]
OUTPUTS = 8
# Classes 4 and 6 are new, in random order; 1 and 2 are in memory, unequal in number.
NEW_Y = torch.tensor([4] * 12 + [6] * 5)[
    torch.randperm(17, generator=torch.Generator().manual_seed(0))
]
Y = torch.cat([NEW_Y, torch.tensor([1, 1, 1, 1, 2, 2])])
SIZE = len(Y)
X = torch.eye(SIZE)  # mixed rows tell their parents
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
BATCHES = torch.stack([(ROWS + 7 * k) % SIZE for k in range(5)])
ONE = PairTables(CLASSES, SCORES[None])
THREE = PairTables(CLASSES, torch.stack([SCORES, -SCORES, SCORES.T]))


class FixedHost:
    """A generator of scalars that returns what the test wants and notes what it was asked.

    `lam` is one number for all draws, or one after another.
    """

    def __init__(self, lam=0.3, integer=0):
        self.ratios = itertools.repeat(lam) if isinstance(lam, float) else iter(lam)
        self.integer = integer
        self.asked = []

    def beta(self, a, b):
        self.asked.append(("beta", a, b))
        return next(self.ratios)

    def integers(self, limit):
        self.asked.append(("integers", limit))
        return min(self.integer, limit - 1)


def make_pool(x=X):
    return Pool(Samples(x[:17], NEW_Y), Samples(x[17:], Y[17:]), Normalise([0.0], [1.0]))


def make_mixer(recipe, host=None, x=X, seed=1, mix_points=1):
    recipe = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    host = FixedHost() if host is None else host
    generator = torch.Generator().manual_seed(seed)
    mixer = Mixer(recipe, OUTPUTS, host=host, generator=generator, mix_points=mix_points)
    mixer.begin_task(make_pool(x))
    return mixer


def with_images(recipe, seed=3):
    """A mixer of images, with as many draws of scalars as it needs."""
    x = torch.rand(SIZE, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    return make_mixer(recipe, np.random.default_rng(seed), x, seed, mix_points=3)


def mix_one(mixer, rows, pairs=ONE):
    """A batch of the pool, mixed."""
    return mixer.mix(mixer.plan(rows[None], pairs), 0)


def mix_given(mixer, x, y, pairs=ONE):
    """A batch that is not said to come from the pool, mixed."""
    return mixer.mix(mixer.plan_labels(y[None], pairs), 0, x)


def assert_same_mix(one, other):
    """Bit by bit, wherever the mix happens."""
    assert one.at == other.at
    assert (one.mix is None) == (other.mix is None) == (one.at is None)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.targets, other.targets)
    if one.mix is not None:
        assert torch.equal(one.mix(one.x), other.mix(other.x))


@pytest.mark.parametrize("recipe", [None, "gradmix", "gradmix+", "gradient:cutmix:remix"])
def test_unmixed_without_a_recipe_or_a_table(recipe):
    mixer = make_mixer(recipe)
    x = X[ROWS]
    for mixed in (mix_one(mixer, ROWS, None), mix_given(mixer, x, Y[ROWS], None)):
        assert torch.equal(mixed.x, x)
        assert torch.equal(mixed.targets, Y[ROWS])
        assert (mixed.mix, mixed.at) == (None, None)
    assert mixed.x is x
    assert mixer._host.asked == []
    assert int(mixer.counts.sum()) == 0


@pytest.mark.parametrize("name", RECIPES)
def test_the_ratio_is_drawn_from_the_recipes_distribution(name):
    mixer = make_mixer(
        name, x=torch.rand(SIZE, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    )
    mix_one(mixer, ROWS)
    assert mixer._host.asked[0] == ("beta", *RECIPES[name].ratio)


def test_mixup_by_its_parents(parents):
    mixer = make_mixer("mixup")
    mixed = mix_one(mixer, ROWS)
    assert (mixed.mix, mixed.at) == (None, None)
    found = parents(mixed.x, ROWS)
    assert sorted(partner for _, partner in found) == ROWS.tolist()  # a permutation
    assert any(partner != own for own, (_, partner) in zip(ROWS.tolist(), found, strict=True))
    for row, (own, (lam, partner)) in enumerate(zip(ROWS.tolist(), found, strict=True)):
        assert lam == pytest.approx(1 if partner == own else 0.3)
        expected = 0.3 * torch.eye(OUTPUTS)[Y[own]] + 0.7 * torch.eye(OUTPUTS)[Y[partner]]
        torch.testing.assert_close(mixed.targets[row], expected)


@pytest.mark.parametrize("indexed", [True, False])
def test_gradient_partners_by_their_parents(indexed, parents):
    mixer = make_mixer("gradmix")
    shuffled = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(1))
    negative = {(int(CLASSES[a]), int(CLASSES[b])) for a, b in (SCORES < 0).nonzero().tolist()}
    mixed = mix_one(mixer, ROWS) if indexed else mix_given(mixer, X[ROWS], Y[ROWS])
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


def test_keep_original_leaves_harmed_rows_alone(parents):
    mixer = make_mixer("gradient-keep-original:linear:proportional")
    shuffled = ROWS[torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(1))]
    mixed = mix_one(mixer, ROWS)
    for row, (_, partner) in enumerate(parents(mixed.x, ROWS)):
        own, other = int(ROWS[row]), int(shuffled[row])
        a, b = (int((Y[k] == CLASSES).nonzero()) for k in (own, other))
        assert partner == (own if SCORES[a, b] < 0 else other)
        if partner == own:
            assert torch.equal(mixed.targets[row], torch.eye(OUTPUTS)[Y[own]])


@pytest.mark.parametrize("name", ["mixup", "balanced-mixup", "gradmix", "gradmix+"])
def test_counts_are_the_pairs_mixed(name, parents):
    mixer = make_mixer(name)
    expected = torch.zeros(OUTPUTS, OUTPUTS, dtype=torch.int64)
    for first in (0, 3, 6):
        rows = torch.arange(first, SIZE, 2)
        mixed = mix_one(mixer, rows)
        for own, (_, partner) in zip(rows.tolist(), parents(mixed.x, rows), strict=True):
            expected[Y[own], Y[partner]] += 1
    assert torch.equal(mixer.counts, expected)
    mixer.begin_task(make_pool())
    assert int(mixer.counts.sum()) == 0


@pytest.mark.parametrize("lam", [0.3, 0.7])
def test_remix_labels_count_the_whole_pool(lam, parents):
    """Class 4 has 12 samples, 6 has 5, 1 has 4, 2 has 2: only 4 outnumbers any by κ = 3."""
    mixer = make_mixer("remix", host=FixedHost(lam))
    mixed = mix_one(mixer, ROWS)
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
    mixed = mix_one(mixer, ROWS)
    assert (mixed.mix, mixed.at) == (None, None)
    partner = mixed.x[:, 0, 0, 0].long()
    assert torch.equal(mixed.x[:, 0, 1:, :], x[ROWS, 0, 1:, :])
    eye = torch.eye(OUTPUTS)
    torch.testing.assert_close(mixed.targets, 15 / 16 * eye[Y[ROWS]] + 1 / 16 * eye[Y[partner]])


def test_remix_goes_by_the_share_that_cutmix_left():
    """λ = 0.3 on 4×4: a box of 2×2, of which the corner keeps one pixel; 15/16 is above τ."""
    x = torch.arange(SIZE, dtype=torch.float32).view(-1, 1, 1, 1).expand(SIZE, 1, 4, 4)
    mixer = make_mixer("shuffle:cutmix:remix", x=x)
    mixed = mix_one(mixer, ROWS)
    own_y, partner_y = Y[ROWS], Y[mixed.x[:, 0, 0, 0].long()]
    rarer = (own_y < 3) & (partner_y == 4)
    assert bool(rarer.any())
    shares = torch.where(rarer, 1.0, 15 / 16)[:, None]
    eye = torch.eye(OUTPUTS)
    torch.testing.assert_close(mixed.targets, shares * eye[own_y] + (1 - shares) * eye[partner_y])


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("partners", ["shuffle", "gradient"])
def test_manifold_mixes_the_same_parents_deeper_down(partners, at, parents):
    model, host = MLP(SIZE, OUTPUTS, (5, 4)), FixedHost(0.3, at)
    deep = make_mixer(f"{partners}:manifold:proportional", host=host, mix_points=model.mix_points)
    mixed = mix_one(deep, ROWS)
    assert mixed.at == at
    assert torch.equal(mixed.x[: len(ROWS)], X[ROWS])
    assert len(mixed.x) == (len(ROWS) if partners == "shuffle" else 2 * len(ROWS))
    assert host.asked[1:] == [("integers", 3)]
    shallow = make_mixer(f"{partners}:linear:proportional")
    flat = mix_one(shallow, ROWS)
    torch.testing.assert_close(mixed.targets, flat.targets)
    partner = torch.tensor([p for _, p in parents(flat.x, ROWS)])
    h = X
    layers = [*model.shared, *model.special]
    for layer in layers[:at]:
        h = layer(h)
    h = 0.3 * h[ROWS] + 0.7 * h[partner]
    for layer in layers[at:]:
        h = layer(h)
    torch.testing.assert_close(model(mixed.x, mixed.mix, mixed.at), model.head(h))


@pytest.mark.parametrize("axes", AXES)
def test_with_and_without_index_is_the_same_mix(axes):
    x = torch.rand(SIZE, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    results = []
    for indexed in (True, False):
        mixer = make_mixer(Recipe(*axes), host=np.random.default_rng(3), x=x, mix_points=3)
        mixed = mix_one(mixer, ROWS) if indexed else mix_given(mixer, x[ROWS], Y[ROWS])
        inputs = mixed.x if mixed.mix is None else mixed.mix(mixed.x)
        results.append((inputs, mixed.targets, mixed.at, mixer.counts))
    (x_1, targets_1, at_1, counts_1), (x_2, targets_2, at_2, counts_2) = results
    assert x_1.shape == x[ROWS].shape
    assert torch.equal(x_1, x_2)
    assert torch.equal(targets_1, targets_2)
    assert torch.equal(counts_1, counts_2)
    assert at_1 == at_2


@pytest.mark.parametrize("axes", AXES)
def test_planning_many_batches_is_planning_one_after_another(axes):
    together, apart = (with_images(Recipe(*axes)) for _ in range(2))
    plan = together.plan(BATCHES, THREE)
    mixed = [together.mix(plan, step) for step in range(len(BATCHES))]
    for batch, rows in zip(mixed, BATCHES, strict=True):
        assert_same_mix(batch, mix_one(apart, rows, THREE))
    assert torch.equal(together.counts, apart.counts)
    assert together._host.bit_generator.state == apart._host.bit_generator.state
    assert torch.equal(together._generator.get_state(), apart._generator.get_state())
    assert len(set(plan.draws.lam)) > 1


@pytest.mark.parametrize("axes", AXES)
def test_a_planned_batch_is_the_same_whenever_it_is_mixed(axes):
    mixer = with_images(Recipe(*axes))
    plan = mixer.plan(BATCHES, THREE)
    counts = mixer.counts.clone()
    before = mixer._host.bit_generator.state, mixer._generator.get_state().tolist()
    first = [mixer.mix(plan, step) for step in range(5)]
    for step in (3, 0, 4, 2, 1):
        assert_same_mix(mixer.mix(plan, step), first[step])
    assert torch.equal(mixer.counts, counts)  # of what is planned, however often it is mixed
    assert (mixer._host.bit_generator.state, mixer._generator.get_state().tolist()) == before


def test_every_batch_uses_the_table_of_its_own_ratio():
    ratios, numbers = [0.9, 0.1, 0.5, 1.0, 0.0], [2, 0, 1, 2, 0]
    mixer = make_mixer("gradmix", FixedHost(ratios))
    plan = mixer.plan(BATCHES, THREE)
    assert (plan.draws.lam, plan.draws.table) == (ratios, numbers)
    place, replaced = {int(label): k for k, label in enumerate(CLASSES)}, set()
    for step in (1, 4, 0, 3, 2):
        mixed, table = mixer.mix(plan, step), THREE.tables[numbers[step]]
        for row, own in enumerate(BATCHES[step].tolist()):
            first = int(BATCHES[step, plan.draws.partners.rows[step, row]])
            a, b = place[int(Y[own])], place[int(Y[first])]
            best = int(CLASSES[table.scores[a].argmax()])
            other_y = best if table.scores[a, b] < 0 else int(Y[first])
            replaced |= {numbers[step]} if table.scores[a, b] < 0 else set()
            assert int(plan.partner_y[step, row]) == other_y
            eye, lam = torch.eye(OUTPUTS), ratios[step]
            expected = lam * eye[Y[own]] + (1 - lam) * eye[other_y]
            torch.testing.assert_close(mixed.targets[row], expected)
    assert replaced == {0, 1, 2}


@pytest.mark.parametrize("axes", [None, *AXES])
def test_a_saved_plan_mixes_the_same(axes):
    recipe = None if axes is None else Recipe(*axes)
    mixer, again = with_images(recipe), with_images(recipe, seed=9)
    plan = mixer.plan(BATCHES, THREE)
    before = again._generator.get_state().tolist(), again._host.bit_generator.state
    state = plan.state_dict()
    if axes is not None:
        plain = {name: state["draws"][name] for name in ("lam", "table", "place")}
        assert plain == json.loads(json.dumps(plain))
        state["draws"] = {**state["draws"], **json.loads(json.dumps(plain))}
    assert state.keys() == ({"index"} if axes is None else {"index", "draws"})
    loaded = again.load_plan(state, THREE)
    for step in range(5):
        assert_same_mix(again.mix(loaded, step), mixer.mix(plan, step))
    assert int(again.counts.sum()) == 0  # the counts are saved separately
    assert (again._generator.get_state().tolist(), again._host.bit_generator.state) == before


def test_a_plan_saved_before_there_were_tables_leaves_batches_unmixed():
    plan = make_mixer("gradmix+").plan(BATCHES, None)
    again = make_mixer("gradmix+")
    mixed = again.mix(again.load_plan(plan.state_dict(), ONE), 3)
    assert torch.equal(mixed.x, X[BATCHES[3]])
    assert torch.equal(mixed.targets, Y[BATCHES[3]])


def test_saved_counts_continue():
    mixer, again = make_mixer("mixup"), make_mixer("mixup")
    mix_one(mixer, ROWS)
    saved = mixer.counts.clone()
    again.load_counts(saved)
    for each in (mixer, again):
        each._generator.manual_seed(4)
        mix_one(each, ROWS)
    assert torch.equal(again.counts, mixer.counts)
    assert int(saved.sum()) == len(ROWS)  # mixing on does not change what was saved
    with pytest.raises(InputError, match=r"counts has shape \(2, 2\)"):
        again.load_counts(torch.zeros(2, 2, dtype=torch.int64))


CUTMIX_RATIOS = [0.05, 0.3, 0.5, 0.7, 0.95]


@pytest.mark.parametrize("partners", ["gradient", "gradient-keep-original"])
def test_cutmix_uses_the_table_of_the_share_that_its_box_leaves(partners):
    """A box at a corner covers a quarter of its area, so that the share is above the drawn λ."""
    x = torch.rand(SIZE, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    tables = PairTables(CLASSES, SCORES.expand(8, 4, 4))
    mixer = make_mixer(f"{partners}:cutmix:remix", FixedHost(CUTMIX_RATIOS), x)
    draws = mixer.plan(BATCHES, tables).draws
    changed = 0
    for drawn, lam, table, box in zip(
        CUTMIX_RATIOS, draws.lam, draws.table, draws.place, strict=True
    ):
        assert lam == 1 - (box.bottom - box.top) * (box.right - box.left) / 64
        assert table == min(int(8 * lam), 7)
        changed += table != int(8 * drawn)
    assert changed >= 3  # the table of the drawn λ would be wrong here


def test_a_replaced_sample_follows_the_table_of_the_share_that_cutmix_leaves():
    """Table 7 harms every pair of class 4 and has 1 as its best; all others harm nothing."""
    x = torch.rand(SIZE, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scores = torch.ones(8, 4, 4)
    scores[7, 2] = torch.tensor([-1.0, -2.0, -2.0, -2.0])
    mixer = make_mixer("gradient:cutmix:proportional", FixedHost([0.75]), x)
    plan = mixer.plan(ROWS[None], PairTables(CLASSES, scores))
    assert plan.draws.lam[0] > 0.875
    assert torch.equal(plan.draws.partners.replaced[0], Y[ROWS] == 4)
    assert set(plan.partner_y[0][Y[ROWS] == 4].tolist()) == {1}


@pytest.mark.parametrize(
    ("mix", "change", "name"),
    [
        ("mixup", lambda s: s["index"].fill_(SIZE), "plan.index"),
        ("mixup", lambda s: s["index"].fill_(-1), "plan.index"),
        ("gradmix", lambda s: s["draws"]["partners"]["drawn"].fill_(SIZE), "partners.drawn"),
        ("gradmix", lambda s: s["draws"].update(table=[3] * 5), "draws.table"),
        ("gradmix", lambda s: s["draws"]["partners"].pop("drawn"), "does not fit 'gradient'"),
        ("manifold-mixup", lambda s: s["draws"].update(place=[3] * 5), "draws.place has 3"),
        ("manifold-mixup", lambda s: s["draws"].update(place=[None] * 5), "draws.place has None"),
        ("cutmix", lambda s: s["draws"].update(place=[[0, 6, 0, 3]] * 5), "draws.place"),
        ("cutmix", lambda s: s["draws"].update(place=[[4, 2, 0, 3]] * 5), "draws.place"),
        ("mixup", lambda s: s["draws"].update(place=[1] * 5), "draws.place has 1"),
    ],
)
def test_a_saved_plan_that_does_not_fit_is_refused(mix, change, name):
    mixer = with_images(mix if mix is None else parse_recipe(mix))
    state = mixer.plan(BATCHES.clone(), THREE).state_dict()
    change(state)
    with pytest.raises(InputError, match=name):
        mixer.load_plan(state, THREE)
