"""Checks before a training continues: a saved state fits it, and all ranks agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor

from gradmix.errors import InputError, RankError
from gradmix.methods import Method, Stage
from gradmix.types import Task

if TYPE_CHECKING:
    from gradmix.training.loop import Training

SHARDABLE = ("er", "er-ace", "er-ridge", "der", "der++", "aser", "gss", "gss-stream", "finetune")
"""Methods whose weights can be split over the ranks: they neither copy nor change the network, and
all gradients come from the backward pass of a step."""

# --- a saved state fits the training's tasks, data and method -----------------------------------


def check_samples(training: Training, first: Task) -> None:
    """Refuse stored samples that do not have the form of the task's samples."""
    x, own = training.method.stored_samples().x, first.train.x
    if len(x) and (x.shape[1:] != own.shape[1:] or x.dtype != own.dtype):
        raise InputError(
            f"memory.x has samples of {x.dtype} {tuple(x.shape[1:])}, not of {own.dtype} "
            f"{tuple(own.shape[1:])}"
        )


def check_stage(training: Training, task: Task) -> Stage:
    """Return the stage in the middle of which the training was saved; refuse impossible ones."""
    at, method = training.position, training.method
    seen, outputs, stages = method.seen, method.head.out_features, method.stages()
    if not max(task.classes) < seen <= outputs or (method.head_grows and seen != outputs):
        raise InputError(f"structure.seen is {seen}, with {outputs} outputs")
    if at.stage >= len(stages):
        raise InputError(f"position.stage is {at.stage}; this task has {len(stages)} stages")
    if at.epoch > stages[at.stage].epochs:
        raise InputError(f"position.epoch is {at.epoch} of {stages[at.stage].epochs}")
    return stages[at.stage]


def check_batches(training: Training, losses: int, steps: int) -> None:
    """Refuse batches that do not belong to this pool, or another number of losses than steps."""
    method, new, step = training.method, training.method.new, training.position.step
    samples = method.epoch_samples()
    batch_size = min(method.settings.batch_size, samples)
    shape = (samples // batch_size, batch_size)
    if tuple(new.shape) != shape:
        raise InputError(f"stage.new does not have {shape[0]} batches of {shape[1]} samples")
    if int(new.min()) < 0 or int(new.max()) >= samples:
        raise InputError(f"stage.new has rows outside the {samples} samples of an epoch")
    if (method.plan is not None) != method.plans:
        raise InputError("stage.plan: it is missing, or this method does not plan")
    if method.plan is not None and len(method.plan.y) != shape[0]:
        raise InputError(f"stage.plan does not have {shape[0]} batches")
    if step > steps or losses not in (step, steps):
        raise InputError(f"position.step is {step} with {losses} losses, of {steps} steps")


# --- several ranks ------------------------------------------------------------------------------


def check_sharding(method: str, head: str, precision: str, analyses: Sequence[str]) -> None:
    """Raise InputError for a run whose weights cannot be split over the ranks; see SHARDABLE."""
    reason = ""
    if method not in SHARDABLE:
        reason = f"method is {method!r}, which needs whole weights; give one of "
        reason += ", ".join(SHARDABLE)
    elif head == "growing":
        reason = "head is 'growing', which replaces weights; give head 'fixed'"
    elif precision == "16-mixed":
        reason = "precision is '16-mixed', which is untested with it; give 'bf16-mixed'"
    elif analyses:
        reason = f"analyses is {list(analyses)}, which may need whole gradients; omit them"
    if reason:
        raise InputError(
            f"shard_weights (--shard-weights) is on, but {reason}, or omit shard_weights"
        )


def check_rows(method: Method) -> None:
    """Raise InputError if a step has fewer rows than ranks."""
    ranks, rows = method.ranks, method.step_rows
    exchanges = ranks.sync_batchnorm or ranks.shard_weights  # in every forward pass
    if exchanges and method.replay_size:
        rows = min(rows, method.replay_size)
    if rows < ranks.size:
        raise InputError(
            f"{rows} rows of a batch cannot be shared by {ranks.size} devices; give fewer devices "
            "or larger batches"
        )


def check_ranks(method: Method) -> None:
    """Raise RankError unless all ranks have the same networks, memory, plan and random streams."""
    weights = [p for network in method.networks().values() for p in network.parameters()]
    memory, streams = method.memory.y, method.streams.state_dict()
    if not method.ranks.all_equal(_digest([weights, memory, streams, method.stage_state_dict()])):
        raise RankError(
            "the processes of this job differ in weights, memory, plan or random streams; start "
            "all of them with the same command, data and checkpoint, on machines of the same type"
        )


def check_resumed(training: Training, resumed: bool) -> None:
    """Raise RankError unless all ranks resumed at the same place."""
    where = _digest([resumed, vars(training.position)])
    if not training.method.ranks.all_equal(where):
        raise RankError(
            "the processes of this job found different checkpoints; put the checkpoint on a file "
            "system that all of them share"
        )


def _digest(tree: Any) -> int:
    """Return a number below 2**63 that depends on every value of a tree, except split weights."""
    digest = xxhash.xxh3_64()

    def add(part: Any) -> None:
        if hasattr(part, "full_tensor"):
            return  # the ranks hold different parts of it
        if isinstance(part, Tensor):
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(part, (dict, list, tuple)):
            for item in part.items() if isinstance(part, dict) else part:
                add(item)
        else:
            digest.update(repr(part).encode())

    add(tree)
    return digest.intdigest() >> 1
