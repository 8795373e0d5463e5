"""Every metric by hand on one matrix, and what must hold on all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.errors import InputError
from gradmix.training.metrics import (
    accuracy_after_each_task,
    all_metrics,
    average_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting_from_best,
    forgetting_from_learned,
    forward_transfer,
)

# Task 1 is at its best after task 2, task 2 when it was just learned.
MATRIX = [[0.5, 0.1, 0.2], [0.75, 0.8, 0.3], [0.25, 0.4, 1.0]]
INITIAL = [0.9, 0.2, 0.05]

BY_HAND = {
    "average_accuracy": (0.5 + 0.775 + 0.55) / 3,
    "final_accuracy": 0.55,
    "forgetting_from_best": ((0.75 - 0.25) + (0.8 - 0.4)) / 2,
    "forgetting_from_learned": ((0.5 - 0.25) + (0.8 - 0.4)) / 2,
    "backward_transfer": ((0.25 - 0.5) + (0.4 - 0.8)) / 2,
    "forward_transfer": ((0.1 - 0.2) + (0.3 - 0.05)) / 2,
}

matrices = st.integers(1, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n
    ).map(np.array)
)


def test_accuracy_after_each_task_ignores_tasks_not_yet_seen():
    assert accuracy_after_each_task(MATRIX) == pytest.approx([0.5, 0.775, 0.55])


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    functions = {
        "average_accuracy": average_accuracy,
        "final_accuracy": final_accuracy,
        "forgetting_from_best": forgetting_from_best,
        "forgetting_from_learned": forgetting_from_learned,
        "backward_transfer": backward_transfer,
        "forward_transfer": lambda matrix: forward_transfer(matrix, INITIAL),
    }
    assert functions[name](MATRIX) == pytest.approx(BY_HAND[name])
    assert type(functions[name](MATRIX)) is float


def test_all_metrics_by_their_names():
    assert all_metrics(MATRIX, INITIAL) == pytest.approx(BY_HAND)


def test_a_task_best_at_the_end_counts_as_negative_forgetting():
    assert forgetting_from_best([[0.5, 0.0], [0.75, 1.0]]) == -0.25


def test_one_task_forgets_and_transfers_nothing():
    assert all_metrics([[0.25]], [0.5]) == {
        "average_accuracy": 0.25,
        "final_accuracy": 0.25,
        "forgetting_from_best": 0.0,
        "forgetting_from_learned": 0.0,
        "backward_transfer": 0.0,
        "forward_transfer": 0.0,
    }


@settings(deadline=None, max_examples=50)
@given(matrices, st.floats(-0.5, 0.5))
def test_a_shift_of_all_accuracies_moves_accuracy_alone(matrix, shift):
    before = all_metrics(matrix, [0.0] * len(matrix))
    after = all_metrics(matrix + shift, [shift] * len(matrix))
    moved = {"average_accuracy", "final_accuracy"}
    for name, value in before.items():
        expected = value + shift if name in moved else value
        assert after[name] == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(matrices)
def test_what_is_not_yet_learned_counts_only_for_forward_transfer(matrix):
    blanked = np.tril(matrix)
    initial = [0.5] * len(matrix)
    before, after = all_metrics(matrix, initial), all_metrics(blanked, initial)
    before.pop("forward_transfer"), after.pop("forward_transfer")
    assert before == after


@settings(deadline=None, max_examples=50)
@given(matrices)
def test_the_best_is_no_worse_than_when_just_learned(matrix):
    assert forgetting_from_best(matrix) >= forgetting_from_learned(matrix) - 1e-12
    assert forgetting_from_learned(matrix) == -backward_transfer(matrix)


@pytest.mark.parametrize(
    "matrix",
    [[], [[]], [0.5], [[0.5, 0.5]], [[0.5], [0.5]], np.zeros((2, 2, 2)), [[1.0], [0.5, 1]]],
)
def test_anything_but_a_square_is_refused(matrix):
    for metric in (
        accuracy_after_each_task,
        average_accuracy,
        final_accuracy,
        forgetting_from_best,
        forgetting_from_learned,
        backward_transfer,
        lambda m: forward_transfer(m, []),
    ):
        with pytest.raises(InputError, match="matrix"):
            metric(matrix)


@pytest.mark.parametrize("initial", [[], [0.1, 0.2], [0.1] * 4])
def test_initial_needs_one_accuracy_per_task(initial):
    with pytest.raises(InputError, match=f"initial has {len(initial)}"):
        forward_transfer(MATRIX, initial)
