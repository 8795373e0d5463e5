"""One step on many ranks: the loop calls these functions only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor, nn

from gradmix.errors import InputError, RankError
from gradmix.methods import Method
from gradmix.models.sync_batch_norm import BATCH_NORMS

if TYPE_CHECKING:
    from gradmix.training.loop import Training


def own_part(loss: Tensor, method: Method) -> Tensor:
    """Return this rank's part of the loss of a batch; the parts of all ranks add up to its mean.

    Args:
        loss: The mean over this rank's rows. They may be more or fewer than those of other ranks.
        method: The method, whose plan knows the number of rows.
    """
    return loss * method.ranks.share(method.step_rows)


@torch.no_grad()
def sum_over_ranks(loss: Tensor, method: Method) -> None:
    """Sum the loss and its gradients over all ranks, in one exchange.

    The statistics of BatchNorm are averaged with them, so that all ranks hold the same network.

    Args:
        loss: This rank's part of the loss; it becomes the sum.
        method: The method, whose optimizer knows the trained parameters.
    """
    ranks, optimizer = method.ranks, method.optimizer
    assert optimizer is not None
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in trained if p.grad is not None]
    statistics = [s for network in method.networks().values() for s in _statistics(network)]
    for values in statistics:
        values.mul_(ranks.share(method.step_rows))
    ranks.all_sum([*gradients, loss.detach(), *statistics])


def _statistics(network: nn.Module) -> Iterator[Tensor]:
    """Yield the running statistics that training changes."""
    for module in network.modules():
        if isinstance(module, BATCH_NORMS) and module.training and module.running_mean is not None:
            assert module.running_var is not None
            yield from (module.running_mean, module.running_var)


def check_ranks(method: Method) -> None:
    """Check that all ranks hold the same networks, memory, plan and random streams.

    Raises:
        InputError: If there are fewer rows than ranks.
        RankError: If the ranks differ.
    """
    _check_rows(method)
    weights = [p for network in method.networks().values() for p in network.parameters()]
    memory, streams = method.memory.y, method.streams.state_dict()
    state = [weights, memory, streams, method.stage_state_dict()]
    if not method.ranks.all_equal(_digest(state)):
        raise RankError(
            "the processes of this job differ in weights, memory, plan or random streams; start "
            "all of them with the same command, data and checkpoint, on machines of the same type"
        )


def _check_rows(method: Method) -> None:
    """Raise InputError unless every rank has rows; BatchNorm on all ranks needs replayed ones."""
    ranks, rows = method.ranks, method.step_rows
    if ranks.sync_batchnorm and method.replay_size:
        rows = min(rows, method.replay_size)
    if rows < ranks.size:
        raise InputError(
            f"{rows} rows of a batch cannot be shared by {ranks.size} devices; give fewer devices "
            "or larger batches"
        )


def check_resumed(training: Training, resumed: bool) -> None:
    """Check that all ranks resumed at the same place.

    Raises:
        RankError: If they did not.
    """
    where = _digest([resumed, vars(training.position)])
    if not training.method.ranks.all_equal(where):
        raise RankError(
            "the processes of this job found different checkpoints; put the checkpoint on a file "
            "system that all of them share"
        )


def _digest(tree: Any) -> int:
    """Return a number below 2**63 that depends on every value of a tree."""
    digest = xxhash.xxh3_64()
    for leaf in _leaves(tree):
        if isinstance(leaf, Tensor):
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(repr(leaf).encode())
    return digest.intdigest() >> 1


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for name in tree:
            yield name
            yield from _leaves(tree[name])
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree
