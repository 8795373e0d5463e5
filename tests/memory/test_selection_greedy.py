"""GSS's greedy rule: cosines without gradients, who competes, who stays."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from gradmix.criterion.scores import residuals
from gradmix.memory import GreedyBuffer, gradient_directions


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def directions(angles):
    """Gradients in a plane: residuals at these angles, embeddings all alike."""
    angles = torch.as_tensor(angles, dtype=torch.float64) * math.pi / 180
    plane = torch.stack([angles.cos(), angles.sin()], dim=1)
    return gradient_directions(torch.zeros(len(plane), 1, dtype=torch.float64), plane)


def offered(angles, capacity, seed=0, chunk=None):
    buffer, generator = GreedyBuffer(capacity), seeded(seed)
    all_of_them, index = directions(angles), torch.arange(len(angles))
    for part in index.split(len(angles) if chunk is None else chunk):
        buffer.offer(part, all_of_them.rows(part), generator)
    return buffer


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(2, 5), st.booleans(), st.integers(0, 10**6)
)
def test_factored_cosines_are_those_of_explicit_gradients(count, size, outputs, bias, seed):
    generator = seeded(seed)
    x = torch.randn(count, size, generator=generator, dtype=torch.float64)
    y = torch.randint(outputs, (count,), generator=generator)
    weight = torch.randn(outputs, size, generator=generator, dtype=torch.float64)
    offset = torch.randn(outputs, generator=generator, dtype=torch.float64) * bias
    parameters = [weight.requires_grad_(), *([offset.requires_grad_()] if bias else [])]
    explicit = []
    for row, label in zip(x, y, strict=True):
        loss = F.cross_entropy(F.linear(row[None], weight, offset), label[None])
        gradients = torch.autograd.grad(loss, parameters)
        explicit.append(torch.cat([gradient.flatten() for gradient in gradients]))
    rows = F.normalize(torch.stack(explicit), dim=1)
    delta = residuals(F.linear(x, weight, offset).detach(), y)
    ours = gradient_directions(x, delta, bias=bias)
    torch.testing.assert_close(ours.cosines(ours), rows @ rows.T, atol=1e-9, rtol=0)


def test_while_there_is_room_all_are_kept_with_their_scores():
    """The first has 0.1 + 1, the others 1 + the cosine with the nearest that came before."""
    buffer = offered([0, 90, 60, 180], capacity=4)
    assert buffer.index.tolist() == [0, 1, 2, 3]
    expected = [1.1, 1.0, 1 + math.cos(math.pi / 6), 1 + math.cos(math.pi / 2)]
    assert buffer.scores.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("angle", "chance"),
    [
        (0, 1.1 / (1.1 + 2)),  # a duplicate: score 2
        (90, 1.1 / (1.1 + 1)),
        (180, 1.0),  # the opposite: score 0
    ],
)
def test_who_differs_wins_the_place_more_often(angle, chance):
    trials = 1500
    won = sum(offered([0, angle], 1, seed).index.tolist() == [1] for seed in range(trials))
    sigma = math.sqrt(chance * (1 - chance) / trials)
    assert abs(won / trials - chance) <= 4 * sigma


def test_the_place_at_stake_is_that_of_who_resembles_the_others():
    """Kept are 0° (1.1), 120° (0.5) and 240° (0.5) and a duplicate of 120° (2)."""
    for seed in range(50):
        buffer = offered([0, 120, 240, 120, 60], capacity=4, seed=seed)
        kept = buffer.index.tolist()
        assert {1, 2} <= set(kept)  # their chance is one in a million
    taken = [offered([0, 120, 240, 120, 60], 4, seed).index.tolist() for seed in range(400)]
    places = [kept.index(4) for kept in taken if 4 in kept]
    # (1.1 − 0.5) / 1.51 against (2 − 0.5) / 1.51, and won with 1.1 / (1.1 + 1.5), 2 / (2 + 1.5).
    first, fourth = 0.6 * 1.1 / 2.6, 1.5 * 2 / 3.5
    assert places.count(3) / len(places) == pytest.approx(fourth / (first + fourth), abs=0.1)
    assert len(places) / 400 == pytest.approx((first + fourth) / 2.1, abs=0.1)


@pytest.mark.parametrize("chunk", [None, 7])
def test_near_duplicates_give_way_to_the_few_that_differ(chunk):
    """295 gradients within a degree, 5 far apart from them and each other."""
    kept, tries = 0, 40
    for seed in range(tries):
        order = torch.randperm(300, generator=seeded(seed))
        angles = torch.cat(
            [torch.rand(295, generator=seeded(seed + 1)), torch.tensor([60.0, 120, 180, 240, 300])]
        )[order]
        buffer = offered(angles, 10, seed, chunk)
        kept += int((order[buffer.index] >= 295).sum())
    uniform = 5 * 10 / 300
    assert kept / tries >= 4 * uniform


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 15), st.integers(0, 10**6))
def test_never_more_than_its_capacity_and_nobody_twice(capacity, count, chunk, seed):
    angles = torch.rand(count, generator=seeded(seed)) * 360
    buffer = offered(angles, capacity, seed, chunk)
    assert len(buffer.index) == len(buffer.scores) == min(capacity, count)
    assert len(buffer.index.unique()) == len(buffer.index)
    for ours, theirs in zip(buffer._kept, directions(angles).rows(buffer.index), strict=True):
        assert torch.equal(ours, theirs)


def test_a_saved_buffer_goes_on_exactly():
    angles = torch.rand(60, generator=seeded(5)) * 360
    all_of_them, generator = directions(angles), seeded(6)
    buffer = GreedyBuffer(8)
    buffer.offer(torch.arange(30), all_of_them.rows(slice(30)), generator)
    saved, stream = buffer.state_dict(), generator.get_state()
    buffer.offer(torch.arange(30, 60), all_of_them.rows(slice(30, 60)), generator)
    resumed = GreedyBuffer(1)
    resumed.load_state_dict(saved)
    generator.set_state(stream)
    resumed.offer(torch.arange(30, 60), all_of_them.rows(slice(30, 60)), generator)
    assert torch.equal(resumed.index, buffer.index)
    assert torch.equal(resumed.scores, buffer.scores)


def test_offering_changes_nothing_that_was_offered():
    index, given = torch.arange(20), directions(torch.arange(20.0) * 10)
    copies = [part.clone() for part in given]
    GreedyBuffer(3).offer(index, given, seeded())
    assert index.tolist() == list(range(20))
    assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True))
