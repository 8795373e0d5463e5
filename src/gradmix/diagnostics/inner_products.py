"""The arguments of a diagnostic, and inner products ⟨ḡ_buf, g⟩ of gradients.

By Eq. 1, a step of size η along the gradient g of a sample changes the memory's mean loss by
−η ⟨ḡ_buf, g⟩. All diagnostics use these inner products. No gradient of a single sample is computed:

- whole network: ⟨ḡ_buf, g_i⟩ is the derivative of the loss of sample i along ḡ_buf. One
  forward-mode pass gives it for a whole batch.
- last layer: the closed form δ_i · s_i of `gradmix.criterion`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradmix.criterion import embed, evaluating, find_head
from gradmix.criterion.embedding import check_samples
from gradmix.criterion.scores import mean_gradient, projections, sample_weights
from gradmix.data.datasets import check_alike
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.methods.losses import as_soft
from gradmix.settings import check as check_setting
from gradmix.types import Samples

BATCH = 128  # samples per forward-mode pass; needs as much memory as a training step
Pair = tuple[Tensor, Tensor]  # network inputs (N, …) and their labels (N,)


class Given(NamedTuple):
    """Checked arguments of a diagnostic."""

    head: nn.Linear
    memory: Samples
    current: Samples


def check(
    model: nn.Module, memory: Pair, current: Pair, average: str, head: nn.Linear | None
) -> Given:
    """Check all arguments and find the head if it is not given."""
    check_setting("average", average)
    head = find_head(model) if head is None else head
    old = check_samples("memory", memory, head.out_features)
    new = check_samples("current", current, head.out_features)
    check_alike("memory", old.x, "current", new.x)
    return Given(head, old, new)


def check_counts(**given: int | None) -> None:
    """Raise InputError for numbers below 1; None is left alone."""
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; give 1 or more")


def check_ratios(name: str, ratios: Sequence[float]) -> None:
    """Raise InputError for an empty list and for values outside 0 to 1."""
    if len(ratios) == 0:
        raise InputError(f"{name} is empty; give at least one mixing ratio")
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"{name} has {lam}; a mixing ratio lies between 0 and 1")


def draw_per_class(
    labels: Tensor, most: int, generator: torch.Generator | None, outputs: int
) -> Tensor:
    """Draw the rows of up to `most` samples of every class uniformly, class by class."""
    index = ClassIndex(labels, outputs)
    return torch.cat([index.draw(label, most, generator) for label in index.classes.tolist()])


class Seen(NamedTuple):
    """What the inner products of the last layer need, both (N, C)."""

    logits: Tensor
    projections: Tensor  # s = ḡ_b + Ḡ_w X

    def products(self, targets: Tensor) -> Tensor:
        """Return ⟨ḡ_buf, g⟩ of every sample with these soft targets, (N,)."""
        return ((self.logits.softmax(dim=1) - targets) * self.projections).sum(dim=1)


class LastLayer:
    """Inner products with the memory's mean gradient, for the last layer."""

    def __init__(self, model: nn.Module, head: nn.Linear, memory: Samples, average: str) -> None:
        self._model, self._head = model, head
        remembered = embed(model, head, *memory)
        self._gradient = mean_gradient(
            remembered, bias=head.bias is not None, by_class=average == "class"
        )

    def see(self, x: Tensor) -> Seen:
        """Return logits and projections of inputs."""
        labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)  # unused
        exemplars = embed(self._model, self._head, x, labels)
        return Seen(exemplars.logits, projections(exemplars.embeddings, self._gradient))

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return ⟨ḡ_buf, g⟩ of inputs (N, …) with soft targets (N, C)."""
        return self.see(x).products(targets)


class WholeNetwork:
    """Inner products with the memory's mean gradient, for all trainable parameters."""

    def __init__(self, model: nn.Module, memory: Samples, average: str, outputs: int) -> None:
        self._model = model
        self._parameters = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        if not self._parameters:
            raise InputError("model has no parameter that requires a gradient; unfreeze some")
        leaves = {name: value.detach().requires_grad_() for name, value in self._parameters.items()}
        every = (memory.x, as_soft(memory.y, outputs), sample_weights(memory.y, average == "class"))
        for x, targets, weights in zip(*(part.split(BATCH) for part in every), strict=True):
            with torch.enable_grad(), evaluating(self._model):
                loss = (self._losses(leaves, x, targets) * weights).sum()
                loss.backward(inputs=list(leaves.values()))
        self._direction = {  # ḡ_buf by parameter name, summed over batches
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for name, leaf in leaves.items()
        }

    def _losses(self, parameters: dict[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every sample, (N,)."""
        with _plain_attention():
            logits: Tensor = torch.func.functional_call(self._model, parameters, (x,))
        if logits.shape != targets.shape:
            raise InputError(
                f"model gives outputs of shape {tuple(logits.shape)} for {len(x)} samples; "
                f"its head has {targets.shape[1]} outputs"
            )
        return -(targets * logits.log_softmax(dim=1)).sum(dim=1)

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return ⟨ḡ_buf, g⟩ of inputs (N, …) with soft targets (N, C)."""
        slopes = []
        with torch.no_grad(), evaluating(self._model), warnings.catch_warnings():
            # The first use of forward mode loads deprecated parts of PyTorch.
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            for part in zip(x.split(BATCH), targets.split(BATCH), strict=True):
                losses = partial(self._losses, x=part[0], targets=part[1])
                try:
                    jvp = torch.func.jvp(losses, (self._parameters,), (self._direction,))
                except NotImplementedError as error:
                    raise InputError(
                        "model has an operation without forward-mode derivative; use the last "
                        f"layer (whole_network=False). PyTorch: {error}"
                    ) from error
                slopes.append(jvp[1])
        return torch.cat(slopes)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Compute attention in the form that has a forward-mode derivative."""
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)
