"""Accuracy on samples, and metrics of the accuracy matrix.

`matrix[l, t]` is the accuracy on task t after task l.

>>> matrix = [[1.0, 0.0, 0.0], [0.8, 1.0, 0.0], [0.6, 0.9, 0.9]]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmix.errors import InputError
from gradmix.ranks import ALONE, Ranks
from gradmix.types import Samples

Matrix = npt.ArrayLike
EVALUATION_BATCH = 256  # larger batches are slower on CPUs, for convolutions by half


def count_correct(
    predict: Callable[[Tensor], Tensor],
    samples: Samples,
    normalise: Callable[[Tensor], Tensor],
    num_classes: int,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return the correctly classified samples of each class of a task, (2, C), on the CPU.

    The first row compares all outputs. The second row is task-aware: it compares only the outputs
    of the classes in `samples`.

    Args:
        predict: Returns class scores of network inputs, (B, C).
        samples: Stored samples.
        normalise: Turns stored samples into network inputs.
        num_classes: Number of classes C.
        ranks: The processes that count together; each counts its own rows.
    """
    classes, own = samples.y.unique(), samples.y[ranks.rows(len(samples.y))]
    parts = (part[ranks.equal_rows(len(part))].split(EVALUATION_BATCH) for part in samples)
    right = []
    for x, y in zip(*parts, strict=True):
        scores = predict(normalise(x))
        right.append(torch.stack([scores.argmax(dim=1) == y, _argmax_among(scores, classes) == y]))
    counted = torch.cat(right, dim=1)[:, : len(own)]
    return torch.stack([own[row].bincount(minlength=num_classes) for row in counted]).cpu()


def _argmax_among(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the class with the highest score among some classes, (B,); -1 if none has an output.

    >>> _argmax_among(torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([1, 2, 3])).tolist()
    [2]
    """
    known = classes[classes < scores.shape[1]]  # a head that grows lacks outputs of later classes
    if not len(known):
        return torch.full((len(scores),), -1, device=scores.device)
    return known[scores[:, known].argmax(dim=1)]


def _square(matrix: Matrix) -> npt.NDArray[np.float64]:
    try:
        a = np.asarray(matrix, dtype=np.float64)
    except ValueError as error:
        raise InputError(
            "matrix has rows of unequal length or no numbers; fill the tasks not yet learned"
        ) from error
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.size:
        raise InputError(f"matrix has shape {a.shape}; give a square one, a row per task learned")
    return a


def accuracy_after_each_task(matrix: Matrix) -> list[float]:
    """A_l, the mean accuracy over the tasks seen, after each task.

    >>> accuracy_after_each_task([[1.0, 0.0], [0.5, 1.0]])
    [1.0, 0.75]
    """
    a = _square(matrix)
    return [float(a[task, : task + 1].mean()) for task in range(len(a))]


def average_accuracy(matrix: Matrix) -> float:
    """The paper's headline: the mean of A_l over all tasks (average incremental accuracy).

    >>> average_accuracy([[1.0, 0.0], [0.5, 1.0]])
    0.875
    """
    return float(np.mean(accuracy_after_each_task(matrix)))


def final_accuracy(matrix: Matrix) -> float:
    """A_L, the mean accuracy over all tasks after the last.

    >>> final_accuracy([[1.0, 0.0], [0.5, 1.0]])
    0.75
    """
    return accuracy_after_each_task(matrix)[-1]


def forgetting_from_best(matrix: Matrix) -> float:
    """How far each task but the last fell from its best accuracy before the end, on average.

    Chaudhry et al. (2018): the maximum is over the tasks before the last, so a task that
    is at its best at the very end counts as negative. Mammoth, MIR and PyCIL
    include the end in the maximum, which makes such a task count as 0.

    >>> forgetting_from_best([[0.5, 0.0, 0.0], [0.75, 1.0, 0.0], [0.25, 0.5, 1.0]])
    0.5
    """
    a = _square(matrix)
    last = len(a) - 1
    falls = [a[task:last, task].max() - a[last, task] for task in range(last)]
    return float(np.mean(falls)) if falls else 0.0


def forgetting_from_learned(matrix: Matrix) -> float:
    """How far each task but the last fell from its accuracy when just learned, on average.

    Avalanche's definition, the negative of backward transfer.

    >>> forgetting_from_learned([[0.5, 0.0, 0.0], [0.75, 1.0, 0.0], [0.25, 0.5, 1.0]])
    0.375
    """
    return 0.0 - backward_transfer(matrix)


def backward_transfer(matrix: Matrix) -> float:
    """BWT: what the tasks learned later did to each task, on average (Lopez-Paz 2017).

    >>> backward_transfer([[1.0, 0.0], [0.5, 1.0]])
    -0.5
    """
    a = _square(matrix)
    last = len(a) - 1
    return float((a[last] - a.diagonal())[:last].mean()) if last else 0.0


def forward_transfer(matrix: Matrix, initial: Sequence[float]) -> float:
    """Return FWT: the mean gain on each task before it was learned, from earlier tasks.

    With one head for all classes it is about 0 or below: outputs never trained are never chosen.

    Args:
        matrix: The accuracy matrix.
        initial: Accuracy on each task before any training.

    >>> forward_transfer([[1.0, 0.25], [0.5, 1.0]], [0.5, 0.5])
    -0.25
    """
    a = _square(matrix)
    if len(initial) != len(a):
        raise InputError(f"initial has {len(initial)} accuracies for {len(a)} tasks; give as many")
    gains = [a[task - 1, task] - initial[task] for task in range(1, len(a))]
    return float(np.mean(gains)) if gains else 0.0


METRICS: dict[str, Callable[[Matrix, Sequence[float]], float]] = {
    "average_accuracy": lambda matrix, initial: average_accuracy(matrix),
    "final_accuracy": lambda matrix, initial: final_accuracy(matrix),
    "forgetting_from_best": lambda matrix, initial: forgetting_from_best(matrix),
    "forgetting_from_learned": lambda matrix, initial: forgetting_from_learned(matrix),
    "backward_transfer": lambda matrix, initial: backward_transfer(matrix),
    "forward_transfer": forward_transfer,
}
"""Every metric by name: a function of the accuracy matrix and the accuracies before training."""

OWN_METRICS = tuple(METRICS)
"""The metrics that every result file has; plugins may add others."""

LOWER_IS_BETTER = {"forgetting_from_best", "forgetting_from_learned"}


def all_metrics(matrix: Matrix, initial: Sequence[float]) -> dict[str, float]:
    """Return every metric by its name, as result files have them.

    Args:
        matrix: The accuracy matrix.
        initial: Accuracy on each task before any training.
    """
    square = _square(matrix)
    return {name: float(compute(square, initial)) for name, compute in METRICS.items()}


def task_aware_metrics(matrix: Matrix) -> dict[str, float]:
    """Return the metrics of task-incremental evaluation: only the task's outputs are compared.

    >>> task_aware_metrics([[1.0, 0.0], [0.5, 1.0]])
    {'average_task_aware_accuracy': 0.875, 'final_task_aware_accuracy': 0.75}
    """
    return {
        "average_task_aware_accuracy": average_accuracy(matrix),
        "final_task_aware_accuracy": final_accuracy(matrix),
    }


def anytime_accuracy(evaluations: Sequence[Mapping[str, Any]]) -> float:
    """The mean, over evaluations during training, of the mean accuracy over the tasks seen.

    Args:
        evaluations: Each with the number of its `task`, from 0, and `accuracy`, one per task.

    >>> anytime_accuracy([{"task": 0, "accuracy": [1, 0]}, {"task": 1, "accuracy": [0.5, 1]}])
    0.875
    """
    seen = [np.mean(entry["accuracy"][: entry["task"] + 1]) for entry in evaluations]
    return float(np.mean(seen))


def stream_accuracy(shares: Sequence[float], samples: Sequence[int]) -> float:
    """The share of an online stream that was predicted correctly before it was learned.

    Args:
        shares: This share in each task.
        samples: Training samples of each task.

    >>> stream_accuracy([0.5, 0.25], [100, 300])
    0.3125
    """
    return float(np.average(shares, weights=samples))
