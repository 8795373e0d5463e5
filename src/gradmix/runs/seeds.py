"""Seeds in few letters, and back."""

from __future__ import annotations

from collections.abc import Sequence

from gradmix.errors import InputError


def parse_seeds(texts: Sequence[str | int]) -> list[int]:
    """Numbers and ranges: 0 1 2 and 0-4.

    >>> parse_seeds(["0-2", "7", 9])
    [0, 1, 2, 7, 9]
    """
    seeds: list[int] = []
    for text in map(str, texts):
        first, dash, last = text.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise InputError(f"seeds has {text!r}; give numbers or ranges, like 0 1 2 or 0-4")
        seeds += range(int(first), int(last) + 1)
    return seeds


def seed_range(seeds: Sequence[int]) -> str:
    """The shortest that a person reads at once.

    >>> seed_range([5, 6, 7]), seed_range([0, 2])
    ('5-7', '0 2')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return " ".join(str(seed) for seed in seeds)
