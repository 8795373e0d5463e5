"""The replay memory and its rules of selection."""

from gradmix.memory.replay import ReplayMemory, random_priority
from gradmix.memory.selection import GreedyBuffer, class_priorities, gradient_directions

__all__ = [
    "GreedyBuffer",
    "ReplayMemory",
    "class_priorities",
    "gradient_directions",
    "random_priority",
]
