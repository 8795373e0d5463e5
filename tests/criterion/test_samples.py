"""Pairs of samples, judged one by one."""

import pytest
import torch
from criterion_cases import cases, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from mixer_cases import OUTPUTS, ROWS, Y, batch_norm_model, make_mixer

from gradmix.criterion import (
    SamplePairs,
    Scored,
    memory_gradient,
    projections,
    row_scores,
    sample_scores,
)
from gradmix.errors import InputError
from gradmix.mixing import Recipe, parse_recipe
from gradmix.mixing.gradmix import GradMix
from gradmix.mixing.recipe import BY_SAMPLES


def scored(case):
    X, z, y = case.exemplars
    gradient = memory_gradient(case.remembered, bias=case.head.bias is not None)
    return Scored(z, projections(X, gradient), y)


@given(cases, st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_rows_are_those_of_the_matrix_of_all_pairs(case, seed):
    every = scored(case)
    number = len(every.labels)
    matrix = sample_scores(every, every, case.lam)
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.randint(number, (2, 9), generator=generator)
    left, right = (Scored(*(part[at] for part in every)) for at in (i, j))
    found = row_scores(left, right, torch.tensor([case.lam], dtype=torch.float64))
    size = matrix.abs().max().clamp(min=1.0)
    assert (found - matrix[i, j]).abs().max() <= 1e-9 * size


def test_harm_is_judged_at_each_batch_s_own_ratio():
    generator = torch.Generator().manual_seed(0)
    z, s = torch.randn(2, 12, 3, generator=generator)  # scores of either sign
    every, ratios = Scored(z, s, torch.arange(12) % 3), [0.2, 0.7]
    index = torch.tensor([[0, 3, 5, 7], [1, 2, 8, 11]])
    rows = torch.tensor([[1, 0, 3, 2], [3, 2, 1, 0]])
    pairs = SamplePairs(every, index, ratios, lambda y, wanted: y)
    found = pairs.harmful(every.labels[index], rows)
    for step, lam in enumerate(ratios):
        matrix = sample_scores(every, every, lam)
        assert torch.equal(found[step], matrix[index[step], index[step, rows[step]]] < 0)
    assert 0 < found.sum() < found.numel()


def test_chances_follow_the_scores():
    case = make_case([4, 4, 4], 3, 0, 3.0, 0.3, True, 5)
    every = scored(case)
    index = torch.tensor([[0, 3, 5, 7]])
    (chances,) = SamplePairs(every, index, [0.4], lambda y, wanted: y).chances()
    scores = sample_scores(every, every, 0.4)[index[0]][:, index[0]]
    torch.testing.assert_close(chances, (scores / scores.std()).softmax(1))


@pytest.mark.parametrize("partners", ["gradient", "gradient-keep-original", "gradient-softmax"])
def test_a_mixer_judges_the_samples_of_its_batches(partners):
    """What is not replaced has a score of at least 0 with the model as it was."""
    recipe = parse_recipe(f"{partners}:linear:proportional", level="sample")
    mixer = make_mixer(recipe)
    model = batch_norm_model()
    mixer.refresh(model)
    plan = mixer.plan(Y[ROWS][None], ROWS[None])
    choices, _ = plan.mixing
    rows, replaced, drawn = choices.partners
    every = mixer.judge.samples
    assert every.logits.shape == (len(Y), OUTPUTS)
    matrix = sample_scores(every, every, choices.lam[0])
    score = matrix[ROWS, ROWS[rows[0]]]
    if partners == "gradient":
        assert torch.equal(replaced[0], score < 0)
        best = mixer.judge.tables[choices.table[0]]
        position = torch.searchsorted(best.classes, Y[ROWS])
        chosen = best.classes[best.optimal[position]]
        assert torch.equal(Y[drawn[0]][replaced[0]], chosen[replaced[0]])
    elif partners == "gradient-keep-original":
        kept = rows[0] == torch.arange(len(ROWS))
        assert bool((score[~kept] >= 0).all())
        assert bool(kept.any())
    else:
        assert drawn is None


@pytest.mark.parametrize("level", ["class", "sample"])
def test_refined_partners_are_the_best_of_a_few_of_the_best_class(level):
    """Whatever is replaced is replaced by the best of samples that another draw could have had."""
    mixer = make_mixer(parse_recipe("gradient-refined:linear:proportional", level=level))
    mixer.refresh(batch_norm_model())
    choices, _ = mixer.plan(Y[ROWS][None], ROWS[None]).mixing
    (rows,), (replaced,), (drawn,) = choices.partners
    matrix = sample_scores(mixer.judge.samples, mixer.judge.samples, choices.lam[0])
    table = mixer.judge.tables[choices.table[0]]
    position = torch.searchsorted(table.classes, Y[ROWS])
    if level == "class":
        assert torch.equal(replaced, table.negative[position, position[rows]])
    else:
        assert torch.equal(replaced, matrix[ROWS, ROWS[rows]] < 0)
    assert torch.equal(Y[drawn], table.classes[table.optimal[position]])
    of_class = Y[None] == Y[drawn][:, None]  # better than most of the class
    better = (matrix[ROWS] < matrix[ROWS, drawn][:, None]) & of_class
    assert better.sum() > 0.6 * (of_class.sum() - len(ROWS))


def test_the_best_of_some_candidates():
    generator = torch.Generator().manual_seed(0)
    z, s = torch.randn(2, 12, 3, generator=generator)
    every, ratios = Scored(z, s, torch.arange(12) % 3), [0.2, 0.7]
    index = torch.tensor([[0, 3], [1, 2]])
    candidates = torch.randint(12, (4, 2, 2), generator=generator)
    found = SamplePairs(every, index, ratios, lambda y, wanted: y).best_of(candidates)
    for step, lam in enumerate(ratios):
        matrix = sample_scores(every, every, lam)
        for row in range(2):
            scores = matrix[index[step, row], candidates[:, step, row]]
            assert found[step, row] == candidates[scores.argmax(), step, row]


def test_levels_that_do_not_fit_are_refused():
    for partners in BY_SAMPLES:
        with pytest.raises(InputError, match=partners):
            GradMix(partners=partners)
    with pytest.raises(InputError, match="level 'pair'"):
        Recipe("gradient", level="pair")
    mixer = make_mixer(parse_recipe("gradmix+", level="sample"), criterion="clusters")
    with pytest.raises(InputError, match="pairs of samples and criterion is 'clusters'"):
        mixer.refresh(batch_norm_model())
