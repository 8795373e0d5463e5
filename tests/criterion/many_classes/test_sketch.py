"""Scores from a sketch against the exact ones, which a sketch of everything must give."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.criterion.many_classes.sketch import logits_pass, make_sketch, pair_scores
from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.scores import Scored, class_scores, mean_gradient, projections
from gradmix.criterion.selector import pair_tables
from gradmix.settings import CriterionSettings


def pair_table(exemplars, protected, lam):
    return pair_tables(exemplars, protected, [lam]).tables[0]


def sketched(case, lam, all_pairs=False, at_once=7, **given):
    """The whole table, pair by pair."""
    X, _, y = case.exemplars
    sketch = make_sketch(X, y, case.linear_head, case.weights, all_pairs=all_pairs, **given)
    size = len(sketch.classes)
    own, other = torch.cartesian_prod(torch.arange(size), torch.arange(size)).view(-1, 2).unbind(1)
    ratio = torch.full((size**2,), lam, dtype=torch.float64)
    return pair_scores(sketch, own, other, ratio, block=at_once).view(size, size)


@given(st.data(), st.booleans(), st.integers(1, 12), st.sampled_from([1, 50, 10**6]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_sample_of_all_outputs_gives_the_reference(cases, data, all_pairs, top, block, fixed):
    case = data.draw(cases)
    bias = case.head.bias is not None and not fixed
    criterion = CriterionSettings(pairing="all-pairs" if all_pairs else "one-to-one")
    args = (case.exemplars, case.memory, case.lam, criterion)
    expected = reference_pair_table(*args, bias=bias).scores
    sizes = {"top": top, "tail": 10**6, "block": block}
    found = sketched(case, case.lam, all_pairs, fixed_bias=fixed, **sizes)
    size = expected.abs().max().clamp(min=1.0)
    assert (found - expected).abs().max() <= 1e-9 * size


@given(st.data(), st.sampled_from([1, 20, 10**6]))
@settings(max_examples=30, deadline=None)
def test_the_logits_pass_gives_the_memorys_gradient_and_the_favourites(cases, data, block):
    case = data.draw(cases)
    X, z, y = case.exemplars
    order = y.argsort(stable=True)
    gradient, top = logits_pass(X[order], y[order], case.linear_head, case.weights[order], 3, block)
    expected = mean_gradient(case.remembered, bias=case.head.bias is not None)
    torch.testing.assert_close(gradient.weight, expected.weight)
    assert (gradient.bias is None) == (expected.bias is None)
    if expected.bias is not None:
        torch.testing.assert_close(gradient.bias, expected.bias)
    for label, favourites in zip(y.unique(), top.tolist(), strict=True):
        mean = z[y == label].softmax(1).mean(0)
        assert favourites[0] == label
        others = mean[[c for c in range(len(mean)) if c not in favourites]]
        assert not len(others) or others.max() <= mean[favourites[1:]].min() + 1e-12


def test_a_small_sample_is_near_the_exact_scores(make_case):
    """400 outputs of which 16 are exact and 64 sampled: the signs agree, the errors are small."""
    case = make_case([2] * 300, 16, 100, 0.7, 0.3, True, 0)
    exact = pair_table(case.exemplars, case.memory, case.lam)
    generator = torch.Generator().manual_seed(0)
    found = sketched(case, case.lam, at_once=2**20, top=16, tail=64, generator=generator)
    assert (found - exact.scores).pow(2).mean() < 0.02 * exact.scores.var()
    assert ((found < 0) == exact.negative).double().mean() > 0.97


def test_only_some_exemplars_are_scored_but_all_make_the_gradient(make_case):
    case = make_case([5, 4, 3], 4, 0, 1.0, 0.3, True, 3)
    X, z, y = case.exemplars
    few = torch.cat([(y == label).nonzero().squeeze(1)[:2] for label in y.unique()])
    s = projections(X[few], mean_gradient(case.remembered))
    expected = class_scores(Scored(z[few], s, y[few]), [case.lam])[1][0]
    found = sketched(case, case.lam, most=2, top=2, tail=3)
    torch.testing.assert_close(found, expected)
