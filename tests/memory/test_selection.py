"""Choosing by priority within classes: by hand, and against a loop."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.memory.replay import first_of_each_class


def test_by_hand_with_ties_in_their_order():
    labels = torch.tensor([1, 0, 1, 0, 1])
    priority = torch.tensor([0.3, 0.2, 0.1, 0.2, 0.5])
    assert first_of_each_class(labels, priority, torch.tensor([1, 2])).tolist() == [1, 2, 0]


def test_a_class_smaller_than_its_quota_gives_all_and_a_quota_of_zero_none():
    labels = torch.tensor([4, 2, 4, 0])
    quota = torch.tensor([0, 9, 1, 9, 9, 9])
    assert first_of_each_class(labels, torch.arange(4), quota).tolist() == [1, 0, 2]


def test_nothing_of_nothing():
    empty = torch.empty(0, dtype=torch.int64)
    assert first_of_each_class(empty, torch.empty(0), torch.tensor([3])).tolist() == []


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2)), max_size=30),
    st.lists(st.integers(0, 5), min_size=5, max_size=7),
)
def test_like_a_loop_over_classes(samples, quota):
    expected = []
    for label, size in enumerate(quota):
        members = [k for k, (of, _) in enumerate(samples) if of == label]
        expected += sorted(members, key=lambda k: samples[k][1])[:size]
    labels = torch.tensor([of for of, _ in samples], dtype=torch.int64)
    priority = torch.tensor([p for _, p in samples], dtype=torch.float32)
    assert first_of_each_class(labels, priority, torch.tensor(quota)).tolist() == expected
