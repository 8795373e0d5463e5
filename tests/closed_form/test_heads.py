"""What all closed-form heads have in common: order, calls, forgetting, state and errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.closed_form import SLDA, NearestMean, Ridge
from gradmix.errors import FileError, InputError

D = 6
MAKERS = {
    "ncm": lambda: NearestMean(D),
    "slda": lambda: SLDA(D),
    "ridge": lambda: Ridge(D),
    "ridge-random": lambda: Ridge(D, features=20, generator=torch.Generator().manual_seed(3)),
}
each_head = pytest.mark.parametrize("name", MAKERS)


def draw(seed=0, classes=4, each=12):
    generator = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(classes, D, generator=generator)
    labels = torch.arange(classes).repeat(each)
    return means[labels] + torch.randn(len(labels), D, generator=generator), labels


def learned(name, embeddings, labels):
    head = MAKERS[name]()
    head.update(embeddings, labels)
    return head


@each_head
@given(seed=st.integers(0, 10), parts=st.integers(1, 9), order=st.permutations(range(4)))
def test_order_and_number_of_calls_make_no_difference(name, seed, parts, order):
    embeddings, labels = draw(seed)
    joint, stepwise = learned(name, embeddings, labels), MAKERS[name]()
    for label in order:
        for part in embeddings[labels == label].chunk(parts):
            stepwise.update(part, torch.full((len(part),), label))
    assert stepwise.classes == joint.classes == (0, 1, 2, 3)
    assert stepwise.counts == joint.counts
    torch.testing.assert_close(stepwise.scores(embeddings), joint.scores(embeddings))


@each_head
def test_scores_between_calls_change_nothing(name):
    embeddings, labels = draw()
    head = learned(name, embeddings[:20], labels[:20])
    before = head.scores(embeddings)
    head.update(embeddings[20:], labels[20:])
    after = head.scores(embeddings)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, learned(name, embeddings, labels).scores(embeddings))


@each_head
@given(seed=st.integers(0, 10), label=st.integers(0, 3))
def test_forgetting_with_the_embeddings_equals_never_having_learned(name, seed, label):
    embeddings, labels = draw(seed)
    head = learned(name, embeddings, labels)
    own = embeddings[labels == label].flip(0)
    assert head.forget(label, own)
    never = learned(name, embeddings[labels != label], labels[labels != label])
    assert head.classes == never.classes
    torch.testing.assert_close(head.scores(embeddings), never.scores(embeddings))


@each_head
def test_forgetting_without_embeddings_is_exact_only_without_second_moments(name):
    embeddings, labels = draw(each=400)
    head = learned(name, embeddings, labels)
    assert head.forget(2) is (name == "ncm")
    never = learned(name, embeddings[labels != 2], labels[labels != 2])
    kept = labels != 2
    same = head.scores(embeddings)[kept].argmax(1) == never.scores(embeddings)[kept].argmax(1)
    assert head.classes == (0, 1, 3)
    assert same.float().mean() > 0.98  # the classes have nearly the same covariance


def test_forgetting_without_embeddings_is_exact_for_classes_of_equal_covariance():
    cloud = draw()[0][:10]
    embeddings = torch.cat([cloud, cloud + 1, cloud + torch.arange(6.0)])
    labels = torch.arange(3).repeat_interleave(10)
    head, never = SLDA(D, normalise=False), SLDA(D, normalise=False)
    head.update(embeddings, labels)
    never.update(embeddings[:20], labels[:20])
    assert not head.forget(2)
    torch.testing.assert_close(head.scores(embeddings), never.scores(embeddings))


@each_head
def test_forgetting_the_last_class_leaves_nothing(name):
    embeddings, labels = draw(classes=1)
    head = learned(name, embeddings, labels)
    assert head.forget(0)
    assert head.classes == ()
    with pytest.raises(InputError, match="no classes"):
        head.scores(embeddings)
    head.update(embeddings, labels)
    same = learned(name, embeddings, labels).scores(embeddings)
    torch.testing.assert_close(head.scores(embeddings), same)


@each_head
def test_the_state_is_restored_and_learning_continues(name):
    embeddings, labels = draw()
    head, restored = learned(name, embeddings[:24], labels[:24]), MAKERS[name]()
    state = head.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    restored.load_state_dict(state)
    for each in (head, restored):
        each.update(embeddings[24:], labels[24:])
    assert torch.equal(head.scores(embeddings), restored.scores(embeddings))


@each_head
def test_relabelling_the_classes_permutes_the_scores(name):
    embeddings, labels = draw()
    scores = learned(name, embeddings, labels).scores(embeddings)
    renamed = learned(name, embeddings, 3 - labels).scores(embeddings)
    torch.testing.assert_close(renamed, scores.flip(1))


@each_head
def test_a_separable_toy_is_learned(name):
    embeddings, labels = draw(each=40)
    scores = learned(name, embeddings, labels).scores(embeddings)
    assert (scores.argmax(1) == labels).float().mean() > 0.9


@each_head
@pytest.mark.parametrize(
    ("embeddings", "labels", "match"),
    [
        (torch.zeros(2, 5), torch.zeros(2, dtype=torch.long), r"shape \(2, 5\)"),
        (torch.zeros(2, D), torch.zeros(3, dtype=torch.long), "one integer for each of 2"),
        (torch.zeros(2, D), torch.zeros(2), "float32"),
        (torch.zeros(2, D), torch.tensor([0, -1]), "labels has -1"),
        (torch.full((1, D), torch.nan), torch.tensor([0]), "not finite"),
    ],
)
def test_unusable_samples_are_refused_and_change_nothing(name, embeddings, labels, match):
    head = learned(name, *draw())
    before = head.state_dict()
    with pytest.raises(InputError, match=match):
        head.update(embeddings, labels)
    after = head.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@each_head
def test_other_embeddings_cannot_be_forgotten(name):
    embeddings, labels = draw()
    head = learned(name, embeddings, labels)
    with pytest.raises(InputError, match="learned from 12"):
        head.forget(1, embeddings[:3])
    with pytest.raises(InputError, match="differ from those"):
        head.forget(1, embeddings[labels == 2])
    with pytest.raises(InputError, match="known are 0, 1, 2, 3"):
        head.forget(9)
    assert head.classes == (0, 1, 2, 3)


@each_head
def test_damaged_states_are_refused_and_change_nothing(name):
    embeddings, labels = draw()
    head = learned(name, embeddings, labels)
    scores, state = head.scores(embeddings), head.state_dict()
    damaged = [
        {**state, "sums": state["sums"][:, :3]},
        {**state, "counts": state["counts"] * 0},
        {**state, "classes": state["classes"].flip(0)},
        {**state, "gram": torch.full((5,), torch.nan, dtype=torch.float64)},
        {key: value for key, value in state.items() if key != "counts"},
        {**state, "more": state["sums"]},
    ]
    for each in damaged:
        with pytest.raises(FileError, match="the state of the head"):
            head.load_state_dict(each)
    assert torch.equal(head.scores(embeddings), scores)
