"""What the head of a model sees: embeddings and logits; checks of the samples that users pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.criterion.scores import Exemplars
from gradmix.errors import InputError
from gradmix.ranks import ALONE, Ranks
from gradmix.types import Samples

FETCH_BATCH = 1024  # samples fetched at a time
EMBED_BATCH = 128  # samples per forward pass; as much memory as a training step


def find_head(model: nn.Module) -> nn.Linear:
    """Return the model's attribute `head`, or its last registered `nn.Linear`.

    Raises:
        InputError: If the model has no `nn.Linear`.
    """
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear):
        return head
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise InputError(
            f"model is a {type(model).__name__} without any nn.Linear; "
            "the criterion needs a final linear layer: pass it as head="
        )
    return linears[-1]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; afterwards every module has its previous mode."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def embed(model: nn.Module, head: nn.Linear, x: Tensor, y: Tensor) -> Exemplars:
    """Return the head's inputs and outputs for some samples.

    The model runs in evaluation mode and is left unchanged.

    Args:
        model: The network.
        head: Its last linear layer.
        x: Network inputs, (n, …).
        y: Labels, (n,), which the result contains.

    Raises:
        InputError: If the head is not the last layer, or logits are not finite.
    """
    embeddings, logits = _run(model, head, x)
    return Exemplars(embeddings.float(), logits.float(), y)


@torch.no_grad()
def embed_rows(
    model: nn.Module,
    head: nn.Linear,
    fetch: Callable[[Tensor], Tensor],
    index: Tensor,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return the head's inputs for some samples, (n, d), fetched part by part.

    Every rank computes its rows and receives all of them.

    Args:
        model: The network.
        head: Its last linear layer.
        fetch: Returns the network inputs of the samples at some rows.
        index: Rows of the samples, (n,).
        ranks: The processes that embed the samples together.
    """
    own = index[ranks.equal_rows(len(index))]
    parts = [_run(model, head, fetch(part))[0].float() for part in own.split(FETCH_BATCH)]
    return ranks.gather(torch.cat(parts), len(index))


def _run(model: nn.Module, head: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head's inputs and outputs; the outputs must be finite and the model's own."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with evaluating(model):
            outputs = torch.cat([model(part) for part in x.split(EMBED_BATCH)])
    finally:
        hook.remove()
    embeddings = torch.cat(seen) if seen else outputs.new_empty(0, head.in_features)
    if embeddings.shape != (len(x), head.in_features):
        raise InputError(
            f"head {head} saw inputs of shape {tuple(embeddings.shape)} for {len(x)} samples; "
            "pass as head= the layer that is used once per sample"
        )
    logits: Tensor = head(embeddings)
    if not bool(torch.isfinite(logits).all()):
        raise InputError("model gives NaN or infinite logits; its training has diverged")
    if logits.shape != outputs.shape or not torch.allclose(logits, outputs, atol=1e-4, rtol=1e-3):
        raise InputError(
            f"head {head} does not give the model's output; pass the final linear layer as head="
        )
    return embeddings, logits


def check_samples(
    name: str, samples: Any, num_outputs: int, *, may_be_empty: bool = False
) -> Samples:
    """Return a pair of network inputs (N, …) and int64 labels (N,) as samples.

    Args:
        name: The argument, for the message.
        samples: The pair.
        num_outputs: Outputs of the head; labels are below it.
        may_be_empty: Whether there may be no sample.

    Raises:
        InputError: If the pair cannot be used.
    """
    if not isinstance(samples, (tuple, list)) or len(samples) != 2:
        raise InputError(f"{name} is a {type(samples).__name__}; give a pair: inputs and labels")
    x, y = samples
    for part, value in (("inputs", x), ("labels", y)):
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise InputError(f"{name} {part} are {type(value).__name__}; give a tensor of N rows")
        if value.layout != torch.strided or value.is_meta:
            raise InputError(f"{name} {part} are {value.layout} on {value.device}; give dense data")
    if len(x) != len(y) or (len(y) == 0 and not may_be_empty):
        raise InputError(f"{name} has {len(x)} inputs and {len(y)} labels; give as many, above 0")
    if y.dtype != torch.int64 or y.ndim != 1:
        raise InputError(f"{name} labels are {y.dtype} of {y.ndim} dimensions; give int64 (N,)")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_outputs:
        raise InputError(
            f"{name} labels run from {int(y.min())} to {int(y.max())}; "
            f"the head has outputs 0 to {num_outputs - 1}"
        )
    if not x.is_floating_point():
        raise InputError(f"{name} inputs are {x.dtype}; give floating-point network inputs")
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{name} inputs have NaN or infinite values")
    return Samples(x, y)
