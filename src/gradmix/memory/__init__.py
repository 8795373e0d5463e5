"""The replay memory and what it keeps."""

from __future__ import annotations

from gradmix.memory.replay import ReplayMemory, random_priority

__all__ = ["ReplayMemory", "random_priority"]
