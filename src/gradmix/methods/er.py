"""ER, experience replay: each batch of new data is joined by one from the memory.

Source: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from __future__ import annotations

from gradmix.methods.base import Method


class ER(Method):
    """Uniform replay, random exemplars, one mean loss over new and replayed rows.

    Mixing: B1 ∪ B2 is mixed as one batch and trained on by cross-entropy with the soft labels.
    Criterion: the embedding is the input of the network's head, its last layer that head.
    """
