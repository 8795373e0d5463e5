"""Pair tables: lookups of many batches at once against a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.criterion import PairTables
from gradmix.errors import InputError


@st.composite
def lookups(draw):
    """Tables of a few classes with gaps between their labels, and batches of pairs of them."""
    classes = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=5)))
    tables, size = draw(st.integers(1, 4)), len(classes)
    batches, rows = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scores = torch.randint(-3, 4, (tables, size, size), generator=generator) / 2  # with ties and 0
    own, other = torch.randint(size, (2, batches, rows), generator=generator)
    which = torch.randint(tables, (batches, 1), generator=generator)
    return torch.tensor(classes), scores, which, own, other


@given(lookups())
def test_harmful_and_best_are_those_of_a_plain_loop(lookup):
    classes, scores, which, own, other = lookup
    tables = PairTables(classes, scores)
    harmful = tables.harmful(which, classes[own], classes[other])
    best = tables.best(which, classes[own], torch.ones_like(own, dtype=torch.bool))
    assert harmful.shape == best.shape == own.shape
    for batch in range(own.shape[0]):
        table = scores[which[batch, 0]].tolist()
        for row in range(own.shape[1]):
            a, b = int(own[batch, row]), int(other[batch, row])
            assert bool(harmful[batch, row]) == (table[a][b] < 0)
            first_best = table[a].index(max(table[a]))
            assert int(best[batch, row]) == int(classes[first_best])


@given(lookups())
def test_the_negative_rate_is_the_mean_of_all_tables(lookup):
    classes, scores, *_ = lookup
    expected = sum(score < 0 for score in scores.flatten().tolist()) / scores.numel()
    assert PairTables(classes, scores).negative_rate == pytest.approx(expected)


@given(lookups())
def test_a_state_gives_the_same_tables(lookup):
    classes, scores, which, own, other = lookup
    tables = PairTables(classes, scores)
    again = PairTables(**tables.state_dict())
    assert again.number == tables.number == len(scores)
    asked = which, classes[own], classes[other]
    assert torch.equal(again.harmful(*asked), tables.harmful(*asked))


def test_scores_of_another_shape_are_refused():
    with pytest.raises(InputError, match="3 classes need"):
        PairTables(torch.arange(3), torch.zeros(2, 3, 2))
