"""The replay memory and its rules of selection."""

from __future__ import annotations

from gradmix.memory.diversity import GreedyBuffer, gradient_directions
from gradmix.memory.herding import herding_ranks
from gradmix.memory.replay import ReplayMemory, random_priority

__all__ = [
    "GreedyBuffer",
    "ReplayMemory",
    "gradient_directions",
    "herding_ranks",
    "random_priority",
]
