"""Exemplars that are embedded a part at a time."""

import pytest
import torch
from torch import nn

from gradmix.criterion import Rolling
from gradmix.errors import InputError

X = torch.arange(14.0).view(7, 2)
Y = torch.arange(7) % 3
INDEX = torch.tensor([6, 0, 2, 3, 5])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        return self.head(x * self.scale)


def see(rolling, model, scale, asked):
    with torch.no_grad():
        model.scale.fill_(scale)
        model.head.weight.fill_(scale)

    def fetch(index):
        asked.append(index.tolist())
        return X[index]

    index = rolling.choose(lambda: INDEX)
    return rolling.exemplars(model, model.head, fetch, index, Y[index])


def test_a_part_is_seen_anew_in_turn_with_the_head_as_it_is():
    rolling, model, asked = Rolling(2), Model(), []
    scales = [[1.0] * 5, [2.0, 1.0, 2.0, 1.0, 2.0], [2.0, 3.0, 2.0, 3.0, 2.0]]
    for scale, each in zip([1.0, 2.0, 3.0], scales, strict=True):
        found = see(rolling, model, scale, asked)
        torch.testing.assert_close(found.embeddings, X[INDEX] * torch.tensor(each)[:, None])
        with torch.no_grad():
            torch.testing.assert_close(found.logits, model.head(found.embeddings))
        assert torch.equal(found.labels, Y[INDEX])
    assert asked == [[6, 0, 2, 3, 5], [6, 2, 5], [0, 3]]


def test_in_one_part_everything_is_new():
    rolling, model, asked = Rolling(), Model(), []
    for scale in (1.0, 2.0):
        found = see(rolling, model, scale, asked)
        torch.testing.assert_close(found.embeddings, X[INDEX] * scale)
    assert asked == [INDEX.tolist()] * 2
    assert rolling.state_dict() == {}


def test_a_new_task_forgets():
    rolling, model, asked = Rolling(3), Model(), []
    see(rolling, model, 1.0, asked)
    rolling.clear()
    see(rolling, model, 2.0, asked)
    assert asked == [INDEX.tolist()] * 2


def test_less_than_one_part_is_refused():
    with pytest.raises(InputError, match="rolling is 0"):
        Rolling(0)
