"""Criterion and mixing together, as the loop uses them."""

import itertools
import json

import numpy as np
import pytest
import torch
from mixer_cases import (
    BATCHES,
    BEST,
    CLASSES,
    OUTPUTS,
    ROWS,
    SCORES,
    SIZE,
    TABLES,
    FixedHost,
    X,
    Y,
    batch_norm_model,
    make_mixer,
    make_pool,
    mix_given,
    mix_one,
    parents,
    seeded,
    with_table,
)

from gradmix.mixing import RECIPES, Recipe
from gradmix.mixing.recipe import BLENDS, BY_SAMPLES, LABELS, PARTNERS
from gradmix.models import MLP

BY_TABLE = [name for name in PARTNERS if name not in BY_SAMPLES]
AXES = [*itertools.product(BY_TABLE, BLENDS, LABELS)]


@pytest.mark.parametrize("recipe", [None, "gradmix", "gradmix+", "gradient:cutmix:remix"])
def test_unmixed_without_a_recipe_or_a_table(recipe):
    mixer = make_mixer(recipe)
    x = X[ROWS]
    for mixed in (mix_one(mixer, ROWS), mix_given(mixer, x, Y[ROWS])):
        assert torch.equal(mixed.x, x)
        assert torch.equal(mixed.targets, Y[ROWS])
        assert (mixed.mix, mixed.at) == (None, None)
    assert mixed.x is x
    assert mixer._host.asked == []
    assert int(mixer.counts.sum()) == 0


@pytest.mark.parametrize("name", RECIPES)
def test_the_ratio_is_drawn_from_the_recipes_distribution(name):
    mixer = with_table(name, x=torch.rand(SIZE, 1, 4, 4, generator=seeded()))
    mix_one(mixer, ROWS)
    assert mixer._host.asked[0] == ("beta", *RECIPES[name].ratio)


def test_mixup_by_its_parents():
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
def test_gradient_partners_by_their_parents(indexed):
    mixer = with_table("gradmix")
    shuffled = torch.randperm(len(ROWS), generator=seeded(1))
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


def test_keep_original_leaves_harmed_rows_alone():
    mixer = with_table("gradient-keep-original:linear:proportional")
    shuffled = ROWS[torch.randperm(len(ROWS), generator=seeded(1))]
    mixed = mix_one(mixer, ROWS)
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
        mixed = mix_one(mixer, rows)
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
def test_manifold_mixes_the_same_parents_deeper_down(partners, at):
    model, host = MLP(SIZE, OUTPUTS, (5, 4)), FixedHost(0.3, at)
    deep = with_table(f"{partners}:manifold:proportional", host=host, mix_points=model.mix_points)
    mixed = mix_one(deep, ROWS)
    assert mixed.at == at
    assert torch.equal(mixed.x[: len(ROWS)], X[ROWS])
    assert len(mixed.x) == (len(ROWS) if partners == "shuffle" else 2 * len(ROWS))
    assert host.asked[1:] == [("integers", 3)]
    shallow = with_table(f"{partners}:linear:proportional")
    flat = mix_one(shallow, ROWS)
    torch.testing.assert_close(mixed.targets, flat.targets)
    partner = torch.tensor([p for _, p in parents(flat.x, ROWS)])
    h = X
    for layer in model.hidden[:at]:
        h = layer(h).relu()
    h = 0.3 * h[ROWS] + 0.7 * h[partner]
    for layer in model.hidden[at:]:
        h = layer(h).relu()
    torch.testing.assert_close(model(mixed.x, mixed.mix, mixed.at), model.head(h))


@pytest.mark.parametrize("axes", AXES)
def test_with_and_without_index_is_the_same_mix(axes):
    x = torch.rand(SIZE, 2, 5, 3, generator=seeded())
    results = []
    for indexed in (True, False):
        mixer = with_table(Recipe(*axes), host=np.random.default_rng(3), x=x, mix_points=3)
        mixed = mix_one(mixer, ROWS) if indexed else mix_given(mixer, x[ROWS], Y[ROWS])
        inputs = mixed.x if mixed.mix is None else mixed.mix(mixed.x)
        results.append((inputs, mixed.targets, mixed.at, mixer.counts))
    (x_1, targets_1, at_1, counts_1), (x_2, targets_2, at_2, counts_2) = results
    assert x_1.shape == x[ROWS].shape
    assert torch.equal(x_1, x_2)
    assert torch.equal(targets_1, targets_2)
    assert torch.equal(counts_1, counts_2)
    assert at_1 == at_2


def assert_same_mix(one, other):
    """Bit by bit, wherever the mix happens."""
    assert one.at == other.at
    assert (one.mix is None) == (other.mix is None) == (one.at is None)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.targets, other.targets)
    if one.mix is not None:
        assert torch.equal(one.mix(one.x), other.mix(other.x))


def with_images(recipe, seed=3, **settings):
    """A mixer of images, with as many host draws as there are, and a choice of tables."""
    x, host = torch.rand(SIZE, 2, 5, 3, generator=seeded()), np.random.default_rng(seed)
    return with_table(recipe, tables=TABLES, host=host, x=x, mix_points=3, seed=seed, **settings)


@pytest.mark.parametrize("axes", AXES)
def test_planning_many_batches_is_planning_one_after_another(axes):
    together, apart = (with_images(Recipe(*axes)) for _ in range(2))
    plan = together.plan(Y[BATCHES], BATCHES)
    mixed = [together.mix(plan, step) for step in range(len(BATCHES))]
    for batch, rows in zip(mixed, BATCHES, strict=True):
        assert_same_mix(batch, mix_one(apart, rows))
    assert torch.equal(together.counts, apart.counts)
    assert together._host.bit_generator.state == apart._host.bit_generator.state
    assert torch.equal(together._generator.get_state(), apart._generator.get_state())
    assert len(set(plan.mixing[0].lam)) > 1


@pytest.mark.parametrize("axes", AXES)
def test_a_planned_batch_is_the_same_whenever_it_is_mixed(axes):
    mixer = with_images(Recipe(*axes))
    plan = mixer.plan(Y[BATCHES], BATCHES)
    counts = mixer.counts.clone()
    before = mixer._host.bit_generator.state, mixer._generator.get_state().tolist()
    first = [mixer.mix(plan, step) for step in range(5)]
    for step in (3, 0, 4, 2, 1):
        assert_same_mix(mixer.mix(plan, step), first[step])
    assert torch.equal(mixer.counts, counts)  # of what is planned, however often it is mixed
    assert (mixer._host.bit_generator.state, mixer._generator.get_state().tolist()) == before


def test_every_batch_uses_the_table_of_its_own_ratio():
    ratios, numbers = [0.9, 0.1, 0.5, 1.0, 0.0], [2, 0, 1, 2, 0]
    mixer = with_table("gradmix", tables=TABLES, host=FixedHost(ratios))
    plan = mixer.plan(Y[BATCHES], BATCHES)
    choices, follows = plan.mixing
    assert (choices.lam, choices.table) == (ratios, numbers)
    place, replaced = {int(label): k for k, label in enumerate(CLASSES)}, set()
    for step in (1, 4, 0, 3, 2):
        mixed, table = mixer.mix(plan, step), TABLES[numbers[step]]
        assert mixer.pairs is table
        for row, own in enumerate(BATCHES[step].tolist()):
            first = int(BATCHES[step, choices.partners.rows[step, row]])
            a, b = place[int(Y[own])], place[int(Y[first])]
            best = int(CLASSES[table.scores[a].argmax()])
            other_y = best if table.scores[a, b] < 0 else int(Y[first])
            replaced |= {numbers[step]} if table.scores[a, b] < 0 else set()
            assert int(follows.partner_y[step, row]) == other_y
            eye, lam = torch.eye(OUTPUTS), ratios[step]
            expected = lam * eye[Y[own]] + (1 - lam) * eye[other_y]
            torch.testing.assert_close(mixed.targets[row], expected)
    assert replaced == {0, 1, 2}


@pytest.mark.parametrize("axes", [None, *AXES])
def test_a_saved_plan_mixes_the_same(axes, tmp_path):
    recipe = None if axes is None else Recipe(*axes)
    mixer, again = with_images(recipe), with_images(recipe, seed=9)
    plan = mixer.plan(Y[BATCHES], BATCHES)
    before = again._generator.get_state().tolist(), again._host.bit_generator.state
    state = plan.state_dict()
    tensors = {name: state[name] for name in ("index", "partners") if name in state}
    plain = {name: value for name, value in state.items() if name not in tensors}
    assert plain.keys() == (set() if axes is None else {"lam", "table", "place"})
    torch.save(state, tmp_path / "state")
    read = [
        state,
        {**tensors, **json.loads(json.dumps(plain))},
        torch.load(tmp_path / "state", weights_only=True),
    ]
    assert plain == json.loads(json.dumps(plain))
    for saved in read:
        loaded = again.load_plan(saved)
        for step in range(5):
            assert_same_mix(again.mix(loaded, step), mixer.mix(plan, step))
    assert int(again.counts.sum()) == 0  # these are saved by the mixer
    assert (again._generator.get_state().tolist(), again._host.bit_generator.state) == before


def test_a_plan_saved_before_there_were_tables_leaves_batches_unmixed():
    plan = make_mixer("gradmix+").plan(Y[BATCHES], BATCHES)
    mixed = with_table("gradmix+").mix(with_table("gradmix+").load_plan(plan.state_dict()), 3)
    assert torch.equal(mixed.x, X[BATCHES[3]])
    assert torch.equal(mixed.targets, Y[BATCHES[3]])


def test_state_round_trip():
    mixer = make_mixer("gradmix+", host=np.random.default_rng(3))
    mixer.refresh(batch_norm_model())
    mix_one(mixer, ROWS)
    state, generator = mixer.state_dict(), mixer._generator.get_state()
    host = mixer._host.bit_generator.state
    saved = state["counts"].clone()
    expected = mix_one(mixer, ROWS)
    assert torch.equal(state["counts"], saved)  # mixing on does not change what was saved
    again = make_mixer("gradmix+", host=np.random.default_rng(9))
    again.load_state_dict(state)
    again._generator.set_state(generator)
    again._host.bit_generator.state = host
    result = mix_one(again, ROWS)
    assert torch.equal(result.x, expected.x)
    assert torch.equal(result.targets, expected.targets)
    assert torch.equal(again.counts, mixer.counts)
    assert torch.equal(state["counts"], saved)


def test_state_without_a_table():
    mixer = with_table("gradmix")
    mixer.load_state_dict(make_mixer("gradmix").state_dict())
    assert mixer.pairs is None
