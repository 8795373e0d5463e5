"""Partners: who is replaced, by whom, and that every draw is as uniform as it says."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.criterion.selector import PairTables
from gradmix.data.pool import ClassIndex
from gradmix.mixing.plan import (
    DRAW,
    Draws,
    Plan,
    Request,
    class_balanced,
    gradient,
    gradient_class_balanced,
    gradient_keep_original,
    shuffle,
)
from gradmix.mixing.recipe import PARTNERS
from gradmix.ranks import Ranks
from gradmix.types import Partners

OUTPUTS = 12
CLASSES = torch.tensor([3, 7, 9])  # with gaps, fewer than the outputs
POOL = torch.tensor([7, 3, 9, 7, 7, 3, 9, 7, 9, 9])
SCORES = torch.tensor(
    [
        [-1.0, 2.0, 0.5],  # 3: harmed by itself, best with 7
        [1.0, 0.0, -2.0],  # 7: harmed by 9; 0 is not below 0; best with 3
        [-3.0, -1.0, -2.0],  # 9: harmed by all, least by 7
    ]
)
NEGATIVE = {(3, 3), (7, 9), (9, 3), (9, 7), (9, 9)}
BEST = {3: 7, 7: 3, 9: 7}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def table(scores=SCORES, classes=CLASSES):
    return PairTables(classes, scores[None])


def index():
    return ClassIndex(POOL, OUTPUTS)


def draw_one(draw, y, pairs=None, seed=0, of=None):
    """The partners of one batch; `of` is the index they come from, `seed` may be a generator."""
    generator = seeded(seed) if isinstance(seed, int) else seed
    of = index() if of is None else of
    partners = draw(Request(y[None], of, generator, pairs, torch.tensor([[0]])))
    return Partners(*(None if part is None else part[0] for part in partners))


def uniform(number, seed):
    return torch.rand(number, generator=seeded(seed), dtype=torch.float64)


def near(observed, expected, trials, sigmas=4.5):
    """Within `sigmas` standard deviations of a binomial with the expected share."""
    return abs(observed - trials * expected) < sigmas * math.sqrt(
        trials * expected * (1 - expected)
    )


def test_every_kind_has_a_draw():
    assert list(DRAW) == PARTNERS
    by_gradient = [gradient, gradient_class_balanced, gradient_keep_original]
    assert list(DRAW.values()) == [shuffle, class_balanced, *by_gradient]


@pytest.mark.parametrize(
    ("kind", "control"),
    [
        ("gradient", "shuffle"),
        ("gradient-keep-original", "shuffle"),
        ("gradient-class-balanced", "class-balanced"),
    ],
)
def test_gradient_partners_without_pairs_are_those_of_their_control(kind, control):
    ours, theirs = (draw_one(DRAW[name], POOL, seed=3) for name in (kind, control))
    assert torch.equal(ours.rows, theirs.rows)
    if kind == "gradient-class-balanced":
        assert torch.equal(ours.drawn, theirs.drawn)
    else:
        assert ours.replaced is None or not ours.replaced.any()


def test_class_index_by_hand():
    of = index()
    assert of.counts.tolist() == [0, 0, 0, 2, 0, 0, 0, 4, 0, 4, 0, 0]
    assert of.classes.tolist() == [3, 7, 9]
    ends = torch.tensor([0.0, 0.5], dtype=torch.float64).repeat(3)
    assert of.at(CLASSES.repeat_interleave(2), ends).tolist() == [1, 5, 0, 4, 2, 8]


def test_samples_of_a_class_are_drawn_once_each():
    assert sorted(index().draw(7, 99, seeded()).tolist()) == [0, 3, 4, 7]
    assert len(set(index().draw(9, 3, seeded()).tolist()) & {2, 6, 8, 9}) == 3


def test_a_draw_within_a_class_is_uniform_over_its_samples():
    trials = 3000
    for label in (3, 7, 9):
        drawn = index().at(torch.full((trials,), label), uniform(trials, label))
        members = (label == POOL).nonzero().squeeze(1)
        counts = drawn.bincount(minlength=len(POOL))
        assert counts.sum() == counts[members].sum() == trials
        assert all(near(int(counts[k]), 1 / len(members), trials) for k in members)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, OUTPUTS - 1), min_size=1, max_size=30), st.integers(0, 2**31))
def test_a_draw_has_the_class_asked_for(labels, seed):
    y = torch.tensor(labels)
    assert torch.equal(y[ClassIndex(y, OUTPUTS).at(y, uniform(len(y), seed))], y)


def test_the_ends_of_the_unit_interval_are_the_ends_of_a_class():
    ends = torch.tensor([[0.0], [0.5], [1 - 2**-53]], dtype=torch.float64).repeat(1, 3)
    drawn = index().at(CLASSES.expand(3, 3), ends)
    assert drawn.tolist() == [[1, 0, 2], [5, 4, 8], [5, 7, 9]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([3, 7, 9]), min_size=1, max_size=30), st.integers(0, 2**31))
def test_shuffle_is_a_permutation(labels, seed):
    rows, replaced, drawn = draw_one(shuffle, torch.tensor(labels), seed=seed)
    assert sorted(rows.tolist()) == list(range(len(labels)))
    assert replaced is None
    assert drawn is None


def test_shuffle_reaches_every_permutation_equally():
    generator, trials, seen = seeded(1), 3000, {}
    for _ in range(trials):
        rows = tuple(draw_one(shuffle, torch.tensor([3, 7, 9]), seed=generator).rows.tolist())
        seen[rows] = seen.get(rows, 0) + 1
    assert len(seen) == 6
    assert all(near(count, 1 / 6, trials) for count in seen.values())


def test_class_balanced_draws_classes_evenly_and_samples_evenly_within():
    pool = torch.tensor([3] * 1 + [7] * 10 + [9] * 100)
    y = torch.full((6000,), 9)
    rows, replaced, drawn = draw_one(class_balanced, y, seed=2, of=ClassIndex(pool, OUTPUTS))
    assert rows.tolist() == list(range(len(y)))
    assert bool(replaced.all())
    labels = pool[drawn]
    for label in (3, 7, 9):
        assert near(int((labels == label).sum()), 1 / 3, len(y))
    counts = drawn.bincount(minlength=len(pool))
    assert near(int(counts[0]), 1 / 3, len(y))
    assert all(near(int(count), 1 / 30, len(y)) for count in counts[1:11])
    assert all(near(int(count), 1 / 300, len(y)) for count in counts[11:])


batches = st.lists(st.sampled_from([3, 7, 9]), min_size=1, max_size=30)


@settings(deadline=None, max_examples=100)
@given(batches, st.integers(0, 2**31))
def test_gradient_replaces_exactly_the_pairs_in_s_minus(labels, seed):
    y = torch.tensor(labels)
    rows, replaced, drawn = draw_one(gradient, y, table(), seed)
    assert torch.equal(rows, draw_one(shuffle, y, seed=seed).rows)
    for i, own in enumerate(labels):
        assert bool(replaced[i]) == ((own, labels[rows[i]]) in NEGATIVE)
        assert POOL[drawn[i]] == BEST[own]


@settings(deadline=None, max_examples=100)
@given(batches, st.integers(0, 2**31))
def test_gradient_class_balanced_is_class_balanced_except_for_the_pairs_in_s_minus(labels, seed):
    y = torch.tensor(labels)
    generators = [seeded(seed), seeded(seed)]
    control = draw_one(class_balanced, y, seed=generators[0])
    ours = draw_one(gradient_class_balanced, y, table(), generators[1])
    assert torch.equal(*(generator.get_state() for generator in generators))  # the same draws
    assert torch.equal(ours.rows, control.rows)
    assert bool(ours.replaced.all())
    for own, kept, drawn in zip(labels, control.drawn, ours.drawn, strict=True):
        if (own, int(POOL[kept])) in NEGATIVE:
            assert POOL[drawn] == BEST[own]
        else:
            assert drawn == kept


def test_gradient_class_balanced_draws_the_best_class_uniformly():
    y = torch.full((4000,), 9)  # harmed by all, so every partner is of class 7
    drawn = draw_one(gradient_class_balanced, y, table(), 4).drawn
    counts = drawn.bincount(minlength=len(POOL))
    assert counts.nonzero().squeeze(1).tolist() == [0, 3, 4, 7]
    assert all(near(int(counts[k]), 1 / 4, len(y)) for k in (0, 3, 4, 7))


@settings(deadline=None, max_examples=50)
@given(batches, st.integers(0, 2**31))
def test_a_re_paired_sample_leaves_s_minus_unless_its_best_is_in_it(labels, seed):
    y = torch.tensor(labels)
    rows, replaced, drawn = draw_one(gradient, y, table(), seed)
    partner_y = torch.where(replaced, POOL[drawn], y[rows])
    for own, other in zip(labels, partner_y.tolist(), strict=True):
        assert (own, other) not in NEGATIVE or (own == 9 and other == 7)


def test_gradient_draws_the_best_class_uniformly_over_the_whole_pool():
    y = torch.full((4000,), 9)
    _, replaced, drawn = draw_one(gradient, y, table(), 4)
    assert bool(replaced.all())
    counts = drawn.bincount(minlength=len(POOL))
    assert counts.nonzero().squeeze(1).tolist() == [0, 3, 4, 7]  # all that are of class 7
    assert all(near(int(counts[k]), 1 / 4, len(y)) for k in (0, 3, 4, 7))


def test_gradient_without_harmful_pairs_is_shuffle():
    y = torch.tensor([3, 7, 9, 9, 7])
    harmless = table(SCORES.abs())
    rows, replaced, _ = draw_one(gradient, y, harmless, 5)
    assert not bool(replaced.any())
    assert torch.equal(rows, draw_one(shuffle, y, seed=5).rows)


@settings(deadline=None, max_examples=100)
@given(batches, st.integers(0, 2**31))
def test_keep_original_partners_harmed_rows_with_themselves(labels, seed):
    y = torch.tensor(labels)
    rows, replaced, drawn = draw_one(gradient_keep_original, y, table(), seed)
    assert replaced is None
    assert drawn is None
    shuffled = draw_one(shuffle, y, seed=seed).rows
    for i, (kept, other) in enumerate(zip(rows.tolist(), shuffled.tolist(), strict=True)):
        assert kept == (i if (labels[i], labels[other]) in NEGATIVE else other)


@pytest.mark.parametrize("kind", ["gradient", "gradient-keep-original", "shuffle"])
def test_relabelling_the_classes_changes_no_partner(kind):
    other = torch.zeros(OUTPUTS, dtype=torch.int64)
    other[CLASSES] = torch.tensor([10, 0, 4])  # 7 < 9 < 3 from now on
    y = POOL[torch.randint(len(POOL), (50,), generator=seeded(6))]
    order = other[CLASSES].argsort()
    relabelled = table(SCORES[order][:, order], other[CLASSES][order])
    before = draw_one(DRAW[kind], y, table(), 7)
    after = draw_one(DRAW[kind], other[y], relabelled, 7, ClassIndex(other[POOL], OUTPUTS))
    for one, two in zip(before, after, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize("kind", PARTNERS)
def test_same_seed_same_partners(kind):
    y = POOL.repeat(3)
    first, second, third = (draw_one(DRAW[kind], y, table(), s) for s in (8, 8, 9))
    for one, two in zip(first, second, strict=True):
        assert one is two is None or torch.equal(one, two)
    chosen = [p.rows if p.drawn is None else p.drawn for p in (first, third)]
    assert not torch.equal(*chosen)


@pytest.mark.parametrize("kind", PARTNERS)
def test_the_global_generator_is_left_alone(kind):
    before = torch.get_rng_state()
    draw_one(DRAW[kind], POOL, table())
    assert torch.equal(torch.get_rng_state(), before)


BATCHES = torch.stack([POOL.roll(k) for k in range(4)])
THREE = PairTables(CLASSES, torch.stack([SCORES, -SCORES, SCORES.T]))


@pytest.mark.parametrize("kind", PARTNERS)
def test_many_batches_at_once_are_one_after_another(kind):
    which = [0, 2, 1, 2]
    numbers = torch.tensor(which)[:, None]
    together = DRAW[kind](Request(BATCHES, index(), seeded(3), THREE, numbers))
    generator = seeded(3)
    apart = [
        draw_one(DRAW[kind], y, table(THREE.scores[number]), generator)
        for y, number in zip(BATCHES, which, strict=True)
    ]
    for name, part in together._asdict().items():
        parts = [getattr(batch, name) for batch in apart]
        assert parts == [None] * 4 if part is None else torch.equal(part, torch.stack(parts))


# --- which samples the rows of a rank need ---

INDEX = torch.tensor([[10, 11, 12, 13, 14, 15, 16]])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_ranks_need_disjoint_parts_of_an_unmixed_batch(size):
    plans = [Plan(INDEX * 0, INDEX, Ranks(rank, size).rows(7)) for rank in range(size)]
    parts = [plan.needed(0).tolist() for plan in plans]
    assert [row for part in parts for row in part] == INDEX[0].tolist()


def test_a_rank_needs_the_partners_of_its_rows():
    rows = torch.tensor([[6, 5, 4, 3, 2, 1, 0]])
    replaced = torch.tensor([[True, False, False, False, False, False, True]])
    partners = Partners(rows, replaced, torch.full((1, 7), 99))
    plan = Plan(INDEX * 0, INDEX, slice(0, 2), Draws([0.5], [0], [None], partners))
    assert plan.needed(0).tolist() == [10, 11, 16, 15, 99]
    assert replace(plan, rows=slice(2, 4)).needed(0).tolist() == [12, 13, 14, 13]
    plain = replace(plan, draws=Draws([0.5], [0], [None], Partners(rows)))
    assert plain.needed(0).tolist() == [10, 11, 16, 15]
