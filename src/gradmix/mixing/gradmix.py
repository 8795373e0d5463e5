"""GradMix as a drop-in for anybody's own training loop."""

from __future__ import annotations

import json
from functools import partial
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion import find_head
from gradmix.criterion.selector import Judging
from gradmix.errors import InputError
from gradmix.mixing.mixer import Mixer
from gradmix.mixing.recipe import BY_SAMPLES, RECIPES, Recipe
from gradmix.types import PairTable


class _TensorPool:
    """A pool of inputs in the form that batches have."""

    def __init__(self, current: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor]) -> None:
        self.num_new, self.input_shape = len(current[1]), tuple(current[0].shape[1:])
        self.x = torch.cat([current[0], memory[0]]) if len(memory[1]) else current[0]
        self.y = torch.cat([current[1], memory[1]]) if len(memory[1]) else current[1]

    one_gather = False  # a batch may hold other views of the samples

    def images(self, index: Tensor) -> Tensor:
        return self.x.index_select(0, index)

    views = images


class GradMix:
    """Gradient-based selective mixup for your own training loop.

    >>> mixer = GradMix(alpha=1.0, labels="remix")
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> old, new = torch.rand(6, 4), torch.rand(8, 4)
    >>> y_old, y_new = torch.tensor([0, 0, 0, 1, 1, 1]), torch.full((8,), 2)
    >>> mixer.refresh(model, memory=(old, y_old), current=(new, y_new))  # each epoch
    >>> x, targets = mixer(torch.cat([new[:4], old]), torch.cat([y_new[:4], y_old]))  # each batch
    >>> x.shape, targets.shape
    (torch.Size([10, 4]), torch.Size([10, 3]))

    `refresh` receives the memory and the whole current task in the form batches have: they
    are the pool that replacements come from and give Remix its class counts; exemplars for
    the criterion are drawn inside. A batch is paired by the pair table nearest its λ among
    `tables` that cover 0 to 1; `tables=1` draws one λ per refresh, as Algorithm 1 has it. The
    model's last `nn.Linear` is found, or given as `head`; it may have more outputs than classes
    seen. With an empty memory batches come back unmixed, their labels one-hot. `criterion` says how
    pairs are judged where classes are many: "exact" by tables of all of them, "clusters" and
    "neighbours" only those that batches meet; "auto" goes by their number (docs/performance.md).

    `tau` says how far Remix's labels lean to rare classes: 0.5 is Remix's own. The 0.75 of
    `gradmix+` is better in long training (`gradmix run` on MNIST: 0.932 over five seeds, with 0.5
    0.919 over four) and worse where a task has few steps: `examples/own_loop.py`, seeds 5 to 9,
    mean accuracy over the tasks 0.775; with 0.5 0.917, without mixing 0.890. The default was
    changed to 0.5 after seeds 0 to 4 of the example had been seen.

    As with `torchvision.transforms.v2.MixUp`, a call takes inputs and integer labels and
    returns mixed inputs and soft targets. Randomness comes from `generator` (on the device of
    the data), or from PyTorch's global one. `blend="manifold"` needs a model that mixes hidden
    states and is refused here.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        labels: str = "remix",
        *,
        tables: int = RECIPES["gradmix+"].tables,
        tau: float = 0.5,
        partners: str = "gradient",
        blend: str = "linear",
        head: nn.Linear | None = None,
        exemplars_per_class: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
        criterion: str = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        if blend == "manifold":
            raise InputError(
                "blend is 'manifold', which mixes hidden states inside the model and cannot be "
                "done on a batch from outside; use 'linear' or 'cutmix', or gradmix's own loop"
            )
        if partners in BY_SAMPLES:
            raise InputError(
                f"partners is {partners!r}, which needs to know where the batch stands in the "
                "pool; use 'gradient' or 'gradient-keep-original', or gradmix's own loop"
            )
        _check_kind((int, float), "a number", alpha=alpha, tau=tau)
        _check_kind(
            (int,), "a whole number", tables=tables, exemplars_per_class=exemplars_per_class
        )
        _check_kind((nn.Linear, NoneType), "the model's last nn.Linear", head=head)
        _check_kind((torch.Generator, NoneType), "a torch.Generator", generator=generator)
        self._head = head
        self._generator = generator
        device = "cpu" if generator is None else generator.device
        seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
        self._host = np.random.default_rng(int(seed))
        recipe = Recipe(partners, blend, labels, alpha, tables, tau)
        self._new_mixer = partial(
            Mixer,
            recipe,
            host=self._host,
            generator=generator,
            judging=Judging(exemplars_per_class, pairing, average, criterion),
        )
        self._mixer: Mixer | None = None

    @property
    def pairs(self) -> PairTable | None:
        """The pair table of the last batch's λ, or of the middle one after a refresh.

        None before a first refresh, with an empty memory, and where classes are too many for one
        (see `criterion`).
        """
        return None if self._mixer is None else self._mixer.pairs

    def refresh(
        self,
        model: nn.Module,
        *,
        memory: tuple[Tensor, Tensor] | None,
        current: tuple[Tensor, Tensor],
    ) -> None:
        """Compute the pair table with the model as it is now; call it once per epoch.

        In a first task `memory` is None, or empty tensors.
        """
        _check_kind((nn.Module,), "a network", model=model)
        head = find_head(model) if self._head is None else self._head
        _check_pair("current", current)
        _check_samples("current", *current, head.out_features, may_be_empty=False)
        if memory is None:
            memory = current[0][:0], current[1][:0]
        _check_pair("memory", memory)
        _check_samples("memory", *memory, head.out_features, may_be_empty=True)
        if len(memory[1]):
            _check_form("memory", memory[0], current[0])
        mixer = self._new_mixer(head.out_features)
        mixer.begin_task(_TensorPool(current, memory))
        if mixer.recipe is not None and mixer.recipe.blend == "cutmix" and current[0].ndim != 4:
            raise InputError(
                f"blend is 'cutmix', which needs images (N, C, H, W); current's inputs have shape "
                f"{tuple(current[0].shape)}"
            )
        generator = torch.default_generator if self._generator is None else self._generator
        before = generator.get_state()
        try:
            mixer.refresh(model, head)
        except BaseException:
            generator.set_state(before)
            raise
        self._mixer, self._current = mixer, current[0]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed inputs and soft targets (B, outputs of the head) of one batch."""
        mixer = self._mixer
        if mixer is None:
            raise InputError("call refresh(model, memory=…, current=…) before mixing a batch")
        _check_samples("batch", x, y, mixer.num_outputs, may_be_empty=False)
        _check_form("batch", x, self._current)
        unknown = set(y.tolist()) - set(mixer.classes.tolist())
        if unknown:
            raise InputError(
                f"the batch has classes {sorted(unknown)}, which were in neither memory nor "
                f"current at the last refresh (classes {mixer.classes.tolist()}); refresh with "
                "the data you train on"
            )
        mixed = mixer.mix(mixer.plan(y[None]), 0, x)
        if mixed.targets.ndim == 1:
            return x, nn.functional.one_hot(y, mixer.num_outputs).to(torch.float32)
        return mixed.x, mixed.targets

    def state_dict(self) -> dict[str, Any]:
        """The state of the draws of λ; a given `generator` is saved by its owner.

        Save between epochs, and `refresh` after loading: the pair table and the pool are
        made anew each epoch and are not part of it.
        """
        return {"host": json.dumps(self._host.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the draws of λ where they stood."""
        self._host.bit_generator.state = json.loads(state["host"])


def _check_kind(kinds: tuple[type, ...], right: str, **given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; give {right}")


def _check_pair(name: str, given: Any) -> None:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InputError(f"{name} is a {type(given).__name__}; give a pair: inputs and labels")


def _check_samples(name: str, x: Tensor, y: Tensor, num_outputs: int, may_be_empty: bool) -> None:
    for part, value in (("inputs", x), ("labels", y)):
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise InputError(f"{name} {part} are {type(value).__name__}; give a tensor of N rows")
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


def _check_form(name: str, x: Tensor, current: Tensor) -> None:
    if x.shape[1:] != current.shape[1:] or x.dtype != current.dtype:
        raise InputError(
            f"{name} inputs are {x.dtype} of shape {tuple(x.shape)}, current's are "
            f"{current.dtype} of shape {tuple(current.shape)}; give all in the form batches have"
        )
