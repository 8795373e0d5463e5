"""The replay memory and its rules of selection."""

from __future__ import annotations

from gradmix.memory.diversity import GreedyBuffer, gradient_directions
from gradmix.memory.replay import ReplayMemory, random_priority
from gradmix.memory.selection import class_priorities, herding_ranks

__all__ = [
    "GreedyBuffer",
    "ReplayMemory",
    "class_priorities",
    "gradient_directions",
    "herding_ranks",
    "random_priority",
]
