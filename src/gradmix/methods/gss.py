"""GSS, gradient-based sample selection: store exemplars with diverse gradients.

Source: Aljundi et al., "Gradient Based Sample Selection for Online Continual Learning",
NeurIPS 2019, the greedy form; reference code rahafaljundi/Gradient-based-Sample-Selection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmix.criterion import embed
from gradmix.criterion.scores import residuals
from gradmix.errors import InputError
from gradmix.memory import GreedyBuffer, gradient_directions
from gradmix.methods.components import Stage
from gradmix.methods.er import ER
from gradmix.mixing.plan import check_rows
from gradmix.types import MixedBatch, Samples

OFFER_BATCH = 1024


class GSS(ER):
    """ER whose exemplars are chosen at the end of a task by the greedy rule of GSS.

    Three things differ from the reference, because the memory holds N exemplars per class and is
    filled at the end of a task. Each class has its own buffer of size N, which its samples pass
    once, in random order. Gradients concern the last layer, at the end of the task. A sample
    need not differ from the whole buffer to compete: within a class, gradients hardly ever point
    apart, and that test would keep the first N. `GSSStream` chooses during training instead.

    Mixing and criterion: as in ER; only storage differs.
    """

    selection = None
    online = False

    def end_task(self, new: Samples) -> None:
        """Pass the task's samples through the buffers of their classes and store the survivors."""
        generator = self.streams.device("memory")
        order = torch.randperm(len(new.y), generator=generator, device=new.y.device)
        buffers: dict[int, GreedyBuffer] = {}
        for index in order.split(OFFER_BATCH):
            self.offer(buffers, index)
        self.keep(new, buffers)

    def offer(self, buffers: dict[int, GreedyBuffer], index: Tensor) -> None:
        """Let samples of the task compete for places in the buffers of their classes."""
        y = self.pool.y[index]
        seen = embed(self.model, self.head, self.pool.inputs(index), y)
        delta, bias = residuals(seen.logits, seen.labels), self.head.bias is not None
        directions = gradient_directions(seen.embeddings, delta, bias=bias)
        capacity = int(self.memory.quota(self.pool.y.unique()).max())  # exemplars of a class
        for label in y.unique().tolist():
            rows = (y == label).nonzero().squeeze(1)
            buffer = buffers.setdefault(label, GreedyBuffer(capacity))
            buffer.offer(index[rows], directions.rows(rows), self.streams.device("memory"))

    def keep(self, new: Samples, buffers: dict[int, GreedyBuffer]) -> None:
        """Store the samples in the buffers; if the quota shrinks, the most diverse stay longest."""
        index = torch.cat([buffer.index for buffer in buffers.values()])
        scores = torch.cat([buffer.scores for buffer in buffers.values()])
        self.memory.add(Samples(new.x[index], new.y[index]), scores.double())


class GSSStream(GSS):
    """GSS that chooses during training, as the reference does.

    Every new sample competes when a step of the first epoch uses it, with its gradient at that
    time. The buffers enter the memory at the end of the task.
    """

    other_state = ("first_epoch",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers: dict[int, GreedyBuffer] = {}
        self.first_epoch = False  # whether the current epoch fills them

    def begin_epoch(self, epoch: int, new: Tensor) -> None:
        """Start new buffers in the first epoch."""
        super().begin_epoch(epoch, new)
        self.first_epoch = epoch == 0
        if self.first_epoch:
            self._buffers = {}

    def mixed_batch(self, step: int) -> MixedBatch:
        """Let the new samples compete before the step trains on them; call it once per step."""
        if self.first_epoch:
            self.offer(self._buffers, self.new[step])
        return super().mixed_batch(step)

    def end_task(self, new: Samples) -> None:
        """Store what the stream left in the buffers."""
        self.keep(new, self._buffers)

    def forget(self, label: int) -> None:
        """Empty the buffers, too."""
        super().forget(label)
        self._buffers = {}

    def drop_samples(self) -> None:
        """Empty the buffers, too: they contain embeddings."""
        super().drop_samples()
        self._buffers = {}

    def state_dict(self) -> dict[str, Any]:
        """Add the buffers of the current task."""
        buffers = {str(label): buffer.state_dict() for label, buffer in self._buffers.items()}
        return {**super().state_dict(), "buffers": buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the buffers of the current task, too."""
        super().load_state_dict(state)
        self._buffers = {}
        for label, saved in state["buffers"].items():
            if not label.isdecimal() or int(label) >= self.seen:
                raise InputError(f"buffers has the class {label!r}; {self.seen} classes are known")
            self._buffers[int(label)] = GreedyBuffer(saved["capacity"])
            self._buffers[int(label)].load_state_dict(saved)

    def load_stage_state_dict(self, state: dict[str, Any], stage: Stage) -> None:
        """Check the buffers against the data of the task, too."""
        super().load_stage_state_dict(state, stage)
        for label, buffer in self._buffers.items():
            check_rows(f"buffers.{label}.index", buffer.index, self.pool.num_new)
