"""GDumb, greedy sampler and dumb learner: a new network, trained on the memory alone.

Source: Prabhu et al., "GDumb: A Simple Approach that Questions Our Progress in Continual
Learning", ECCV 2020; reference code drimpossible/GDumb.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradmix._setting_types import Number, setting
from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.memory import random_priority
from gradmix.methods.bounds import FromScratch
from gradmix.methods.components import Options, Stage


class GDumbOptions(Options):
    """With 20 epochs, the default makes the reference's 128 passes."""

    passes: Number = setting(6.4, "Passes over the memory, as a multiple of the epochs.", gt=0)


class GDumb(FromScratch):
    """At every task, the memory takes its share of the new classes and a new network learns it.

    The network starts from the initial weights. Samples that are not in memory are never used. The
    optimizer, its schedule and the batch size are those of other methods, not the reference's.

    Mixing: as in ordinary training, within batches of exemplars; partners are exemplars, too. The
    memory is all there is to learn, so gradient partners have no meaning and are refused.
    """

    options: GDumbOptions = GDumbOptions()

    @classmethod
    def check_memory(cls, exemplars_per_class: int | None) -> None:
        """Raise InputError for an empty memory."""
        if exemplars_per_class == 0:
            raise InputError(
                "exemplars_per_class is 0, and GDumb learns nothing but exemplars; give 1 or more"
            )

    @property
    def replay_size(self) -> int:
        """A step replays nothing beside its batch of exemplars."""
        return 0

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Store exemplars first; they are the data of the task."""
        new = pool.parts[0]
        self.memory.add(new, random_priority(len(new.y), self.streams.device("memory")))
        super().begin_task(pool.with_samples(self.memory.samples), seen)

    def set_pool(self, pool: Pool) -> None:
        """Take the memory as the data of the task: the exemplars are its new samples."""
        super().set_pool(pool.with_samples(self.memory.samples))

    def stages(self) -> Sequence[Stage]:
        """Return one stage of many passes, because the memory is small."""
        return [self.new_stage("train", self.options.passes)]
