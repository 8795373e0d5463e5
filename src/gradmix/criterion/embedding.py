"""What the head of a model sees: its last linear layer, embeddings and logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradmix.criterion.gradients import Exemplars
from gradmix.errors import InputError

FETCH_BATCH = 1024
EMBED_BATCH = 128  # as much memory as a training step; of images, what caches hold


def find_head(model: nn.Module) -> nn.Linear:
    """The model's `head` if it has one, else its last `nn.Linear` in order of registration."""
    if isinstance(getattr(model, "head", None), nn.Linear):
        head: nn.Linear = model.head  # type: ignore[assignment]
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
    """Evaluation mode within, every module's own mode afterwards; BatchNorm statistics rest."""
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
    """The head's inputs and outputs for `x`, in evaluation mode, leaving the model untouched."""
    embeddings, outputs = _run(model, head, x)
    logits = _checked(head, embeddings, outputs)
    return Exemplars(embeddings.float(), logits.float(), y)


@torch.no_grad()
def embeddings_of(
    model: nn.Module, head: nn.Linear, fetch: Callable[[Tensor], Tensor], index: Tensor
) -> Tensor:
    """The head's inputs for the samples at `index`, fetched a part at a time: no more is kept."""
    parts = []
    for part in index.split(FETCH_BATCH):
        embeddings, outputs = _run(model, head, fetch(part))
        _checked(head, embeddings, outputs)
        parts.append(embeddings.float())
    return torch.cat(parts) if parts else head.weight.new_empty(0, head.in_features)


def _run(model: nn.Module, head: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """The head's inputs, and the model's outputs."""
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
            f"pass as head= the layer that is used once per sample"
        )
    return embeddings, outputs


def _checked(head: nn.Linear, embeddings: Tensor, outputs: Tensor) -> Tensor:
    """Logits of the embeddings, which must be finite and what the model said."""
    logits: Tensor = head(embeddings)
    if not bool(torch.isfinite(logits).all()):
        raise InputError("model gives NaN or infinite logits; its training has diverged")
    if logits.shape != outputs.shape or not torch.allclose(logits, outputs, atol=1e-4, rtol=1e-3):
        raise InputError(
            f"head {head} does not give the model's output; pass the final linear layer as head="
        )
    return logits
