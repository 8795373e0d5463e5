"""The closed form against explicit gradients, autograd, and the mathematics itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gradmix.criterion import scores as scores_module
from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.scores import (
    Exemplars,
    Scored,
    class_scores,
    mean_gradient,
    projections,
    sample_scores,
)
from gradmix.criterion.selector import PairTable, pair_tables
from gradmix.errors import InputError
from gradmix.settings import CriterionSettings

PAIRINGS = ("one-to-one", "all-pairs")
pairings = st.sampled_from(PAIRINGS)
ratios = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
averages = st.sampled_from(["sample", "class"])


def pair_table(exemplars, protected, lam, bias=True, **settings):
    return pair_tables(
        exemplars, protected, [lam], CriterionSettings(**settings), bias=bias
    ).tables[0]


def reference(exemplars, protected, lam, bias=True, **settings):
    return reference_pair_table(exemplars, protected, lam, CriterionSettings(**settings), bias=bias)


def autograd_scores(case, pairing="one-to-one", average="sample"):
    """The scores by backward passes through the head, pair by pair."""
    X, _, y = case.exemplars
    classes = y.unique()
    parameters = list(case.head.parameters())

    def gradient(inputs, targets):
        loss = F.cross_entropy(case.head(inputs), targets)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    memory_X, _, memory_y = case.remembered
    if average == "sample":
        g_buffer = gradient(memory_X, memory_y)
    else:
        each = [
            gradient(memory_X[memory_y == c], memory_y[memory_y == c]) for c in memory_y.unique()
        ]
        g_buffer = torch.stack(each).mean(0)
    one_hot = F.one_hot(y, case.head.out_features).to(X)
    result = X.new_zeros(len(classes), len(classes))
    for a, class_a in enumerate(classes):
        for b, class_b in enumerate(classes):
            i, j = (y == class_a).nonzero().squeeze(1), (y == class_b).nonzero().squeeze(1)
            if pairing == "one-to-one":
                k = torch.arange(max(len(i), len(j)))
                i, j = i[k % len(i)], j[(k + 1) % len(j)]
            else:
                i, j = torch.cartesian_prod(i, j).unbind(1)
            mixed = case.lam * X[i] + (1 - case.lam) * X[j]
            targets = case.lam * one_hot[i] + (1 - case.lam) * one_hot[j]
            result[a, b] = g_buffer @ gradient(mixed, targets)
    return PairTable.from_scores(classes, result)


def assert_same_scores(ours, theirs, rtol=1e-9):
    size = theirs.scores.abs().max().clamp(min=1.0)
    assert torch.equal(ours.classes, theirs.classes)
    assert (ours.scores - theirs.scores).abs().max() <= rtol * size


@given(st.data(), pairings, averages)
@settings(max_examples=150, deadline=None)
def test_closed_form_equals_the_reference(cases, data, pairing, average):
    case = data.draw(cases)
    args = (case.exemplars, case.memory, case.lam)
    options = {"bias": case.head.bias is not None, "pairing": pairing, "average": average}
    assert_same_scores(pair_table(*args, **options), reference(*args, **options))


@given(st.data(), pairings, averages, st.booleans())
@settings(max_examples=60, deadline=None)
def test_closed_form_and_reference_equal_autograd(cases, data, pairing, average, everyone):
    """For the memory's gradient and for the gradient of all classes."""
    case = data.draw(cases)
    case.memory |= everyone
    args = (case.exemplars, case.memory, case.lam)
    options = {"bias": case.head.bias is not None, "pairing": pairing, "average": average}
    truth = autograd_scores(case, pairing, average)
    assert_same_scores(pair_table(*args, **options), truth)
    assert_same_scores(reference(*args, **options), truth)


@given(st.data(), pairings)
@settings(max_examples=60, deadline=None)
def test_single_precision_is_near_double(cases, data, pairing):
    case = data.draw(cases)

    X, z, y = case.exemplars
    single = Exemplars(X.float(), z.float(), y)
    double = pair_table(case.exemplars, case.memory, case.lam, pairing=pairing)
    ours = pair_table(single, case.memory, case.lam, pairing=pairing)
    # Logits of thousands carry an error of 1e-3 in single precision before anything is computed.
    size = double.scores.abs().max().clamp(min=1.0)
    logit_size = case.exemplars.logits.abs().max().clamp(min=1.0)
    assert torch.isfinite(ours.scores).all()
    assert (ours.scores - double.scores).abs().max() <= 1e-5 * size * logit_size


@given(st.data(), st.integers(0, 2**31), pairings)
@settings(max_examples=60, deadline=None)
def test_renaming_the_classes_permutes_the_table(cases, data, seed, pairing):
    """Outputs and labels renamed together: the same scores under the new names."""
    case = data.draw(cases)
    X, z, y = case.exemplars
    outputs = z.shape[1]
    rename = torch.randperm(outputs, generator=torch.Generator().manual_seed(seed))
    renamed_z = torch.empty_like(z)
    renamed_z[:, rename] = z
    renamed = Exemplars(X, renamed_z, rename[y])
    before = pair_table(case.exemplars, case.memory, case.lam, pairing=pairing)
    after = pair_table(renamed, case.memory, case.lam, pairing=pairing)
    where = torch.searchsorted(after.classes, rename[before.classes])
    assert torch.equal(after.classes[where], rename[before.classes])
    difference = after.scores[where][:, where] - before.scores
    assert difference.abs().max() <= 1e-9 * before.scores.abs().max().clamp(min=1)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_negative_and_optimal_are_what_they_say(cases, data):
    case = data.draw(cases)
    table = pair_table(case.exemplars, case.memory, case.lam)
    for a in range(len(table.classes)):
        for b in range(len(table.classes)):
            assert bool(table.negative[a, b]) == (float(table.scores[a, b]) < 0)
        assert table.scores[a, table.optimal[a]] == table.scores[a].max()


def test_a_score_of_zero_is_not_negative():
    table = PairTable.from_scores(torch.tensor([2, 5]), torch.tensor([[0.0, -1.0], [3.0, -0.0]]))
    assert table.negative.tolist() == [[False, True], [False, False]]
    assert table.optimal.tolist() == [0, 0]
    assert table.negative_rate == 0.25


def test_optimal_is_the_highest_even_if_all_are_negative():
    table = PairTable.from_scores(torch.arange(2), torch.tensor([[-3.0, -1.0], [-1.0, -2.0]]))
    assert table.optimal.tolist() == [1, 0]
    assert table.negative.all()


def test_ratio_one_and_zero_are_the_unmixed_gradients(make_case):
    """Theorem of the paper: at λ = 1 the gradient is that of the first sample, at 0 the other's."""
    case = make_case([1, 1, 1], 4, 0, 1.0, 1.0, True, 3)
    X, z, y = case.exemplars
    everyone = torch.ones_like(y, dtype=torch.bool)
    own = pair_table(case.exemplars, everyone, 1.0).scores
    other = pair_table(case.exemplars, everyone, 0.0).scores
    gradient = mean_gradient(case.exemplars)
    delta = z.softmax(1) - F.one_hot(y, 3)
    plain = (delta * projections(X, gradient)).sum(1)[y.argsort()]
    assert torch.allclose(own, plain[:, None].expand(3, 3))
    assert torch.allclose(other, plain[None, :].expand(3, 3))


def test_score_by_hand():
    """Two classes, one feature, uniform predictions: every number can be checked on paper."""
    memory = Exemplars(torch.tensor([[2.0]]), torch.zeros(1, 2), torch.tensor([0]))
    gradient = mean_gradient(memory)
    assert gradient.bias.tolist() == [-0.5, 0.5]
    assert gradient.weight.tolist() == [[-1.0], [1.0]]
    both = Exemplars(torch.tensor([[2.0], [4.0]]), torch.zeros(2, 2), torch.tensor([0, 1]))
    # s_0 = ḡ_b + 2 Ḡ_w = (-2.5, 2.5), s_1 = (-4.5, 4.5); with λ = 1/4 mixed s = (-4, 4),
    # δ = (1/2 - 1/4, 1/2 - 3/4) = (1/4, -1/4): score(0, 1) = -2. At λ = 1/4, (1, 0) has mixed
    # s = (-3, 3) and δ = (-1/4, 1/4): 1.5.
    table = pair_table(both, torch.tensor([True, False]), 0.25)
    assert table.scores.tolist() == [[2.5, -2.0], [1.5, -4.5]]
    assert table.negative.tolist() == [[False, True], [False, True]]
    assert table.optimal.tolist() == [0, 0]


def test_one_to_one_takes_the_next_exemplar_cyclically(make_case):
    """Unequal classes: exemplar k of the first with k + 1 of the second, for k below the larger."""
    case = make_case([3, 2], 3, 0, 1.0, 0.3, True, 0)
    X, _, y = case.exemplars
    gradient = mean_gradient(case.remembered)
    every = Scored(case.exemplars.logits, projections(X, gradient), y)
    single = sample_scores(every, every, case.lam)
    classes, sizes = y.unique(return_counts=True)
    big, small = (classes[sizes == n] for n in (3, 2))
    i, j = (y == big).nonzero().squeeze(1), (y == small).nonzero().squeeze(1)
    expected = (single[i[0], j[1]] + single[i[1], j[0]] + single[i[2], j[1]]) / 3
    found, (scores,) = class_scores(every, [case.lam])
    assert torch.isclose(scores[found == big][:, found == small].squeeze(), expected)


@pytest.mark.parametrize("block", [1, 5, 30])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_blocks_do_not_change_the_scores(pairing, block, make_case):
    case = make_case([4, 3, 5], 3, 1, 1.0, 0.3, True, 1)
    both, lams = (case.exemplars, case.memory), [case.lam, 0.8]
    whole = CriterionSettings(pairing=pairing)
    small = CriterionSettings(pairing=pairing, criterion_block=block)
    for one, blocked in zip(
        pair_tables(*both, lams, whole).tables,
        pair_tables(*both, lams, small).tables,
        strict=True,
    ):
        assert torch.allclose(one.scores, blocked.scores)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_block_bounds_how_many_scores_are_computed_at_once(monkeypatch, pairing, make_case):
    case = make_case([4, 3, 5], 3, 1, 1.0, 0.3, True, 1)
    sizes, original = [], scores_module.sample_scores

    def watched(*args):
        sizes.append((scores := original(*args)).numel())
        return scores

    monkeypatch.setattr(scores_module, "sample_scores", watched)
    for block in (12, 40, 1000):
        sizes.clear()
        pair_table(case.exemplars, case.memory, 0.3, pairing=pairing, criterion_block=block)
        assert max(sizes) <= block


def test_underflow_of_the_normaliser_is_repaired(monkeypatch):
    """Logits 500 apart in opposite directions: exp underflows for every class of the pair."""
    z = torch.tensor([[500.0, 0.0, -500.0], [-500.0, 0.0, 500.0], [0.0, 0.0, 0.0]])
    exemplars = Exemplars(torch.tensor([[1.0], [3.0], [1.0]]), z, torch.tensor([0, 2, 1]))
    memory = torch.tensor([False, False, True])
    table = pair_table(exemplars, memory, 0.5)
    reference = reference_pair_table(exemplars, memory, 0.5)
    assert torch.allclose(table.scores, reference.scores, atol=1e-6)
    repaired = []
    original = scores_module._expected_projection
    monkeypatch.setattr(
        scores_module,
        "_expected_projection",
        lambda *args: repaired.append(int(args[3].sum())) or original(*args),
    )
    pair_table(exemplars, memory, 0.5)
    assert sum(repaired) == 2  # the guard was what made it right


def test_predicted_change_of_the_memorys_loss_is_the_actual_one_to_first_order(make_case):
    """Eq. 1: after a step η on one mixed sample the memory's loss falls by η times the score."""
    case = make_case([4, 4, 4], 5, 0, 0.5, 0.35, True, 7)
    X, _, y = case.exemplars
    gradient = mean_gradient(case.remembered)
    every = Scored(case.exemplars.logits, projections(X, gradient), y)
    score = sample_scores(every, every, case.lam)
    one_hot = F.one_hot(y, 3).to(X)

    @torch.no_grad()
    def memory_loss(head):
        return F.cross_entropy(head(case.remembered.embeddings), case.remembered.labels)

    for i, j in [(0, 1), (2, 9), (5, 5)]:
        errors = []
        for eta in (1e-3, 1e-4):
            head = nn.Linear(5, 3, dtype=torch.float64)
            head.load_state_dict(case.head.state_dict())
            before = memory_loss(head)
            mixed = case.lam * X[i] + (1 - case.lam) * X[j]
            target = case.lam * one_hot[i] + (1 - case.lam) * one_hot[j]
            F.cross_entropy(head(mixed[None]), target[None]).backward()
            torch.optim.SGD(head.parameters(), lr=eta).step()
            change = float(memory_loss(head) - before)
            errors.append(abs(change + eta * float(score[i, j])))
        # What is left over falls with the square of the step.
        assert errors[1] < 0.02 * errors[0]
        assert errors[1] < 1e-2 * 1e-4 * abs(float(score[i, j])) + 1e-12


@given(st.data(), st.lists(ratios, min_size=1, max_size=4), pairings)
@settings(max_examples=60, deadline=None)
def test_several_ratios_at_once_are_the_same_as_one_by_one(cases, data, several, pairing):
    case = data.draw(cases)
    tables = pair_tables(
        case.exemplars, case.memory, several, CriterionSettings(pairing=pairing)
    ).tables
    for lam, table in zip(several, tables, strict=True):
        alone = pair_table(case.exemplars, case.memory, lam, pairing=pairing)
        assert_same_scores(table, alone)


@pytest.mark.parametrize("lam", [-0.1, 1.1, float("nan")])
def test_ratios_outside_0_and_1_are_refused(lam, make_case):
    case = make_case([2, 2], 2, 0, 1.0, 0.5, True, 0)
    with pytest.raises(InputError, match="lam is"):
        pair_table(case.exemplars, case.memory, lam)


def test_an_empty_memory_is_refused(make_case):
    case = make_case([2, 2], 2, 0, 1.0, 0.5, True, 0)
    empty = torch.zeros_like(case.memory)
    with pytest.raises(InputError, match="memory is empty"):
        pair_table(case.exemplars, empty, 0.5)
