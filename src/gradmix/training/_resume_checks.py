"""Check that a saved state fits the training that loads it: its tasks, data and method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradmix.errors import InputError
from gradmix.methods import Stage
from gradmix.types import Task

if TYPE_CHECKING:
    from gradmix.training.loop import Training


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
    """Refuse batches that do not belong to this pool, or another number of losses.

    Args:
        training: The training, whose method has loaded its batches.
        losses: Number of saved losses.
        steps: Steps of an epoch.
    """
    method, new, step = training.method, training.method.new, training.position.step
    samples = method.epoch_samples()
    batch_size = min(method.settings.batch_size, samples)
    shape = (samples // batch_size, batch_size)
    if new is None or tuple(new.shape) != shape:
        raise InputError(f"stage.new does not have {shape[0]} batches of {shape[1]} samples")
    if int(new.min()) < 0 or int(new.max()) >= samples:
        raise InputError(f"stage.new has rows outside the {samples} samples of an epoch")
    if (method.plan is not None) != method.plans:
        raise InputError("stage.plan: it is missing, or this method does not plan")
    if method.plan is not None and len(method.plan.y) != shape[0]:
        raise InputError(f"stage.plan does not have {shape[0]} batches")
    if step > steps or losses not in (step, steps):
        raise InputError(f"position.step is {step} with {losses} losses, of {steps} steps")
