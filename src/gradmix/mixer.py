"""Criterion and mixing together: `Mixer` for the library's loop, `GradMix` for anybody's."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion import PAIRINGS, Exemplars, embed, find_head, pair_table
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing import blends
from gradmix.mixing.labels import remix_shares, soft_targets
from gradmix.mixing.partners import DRAW, ClassIndex
from gradmix.mixing.recipes import Recipe
from gradmix.ranking import first_of_each_class
from gradmix.types import Batch, MixedBatch, PairTable, Partners


class SamplePool(Protocol):
    """T_l ∪ M: the current task's `num_new` samples, then the memory's."""

    num_new: int
    y: Tensor

    def images(self, index: Tensor) -> Tensor:
        """Network inputs of the samples at `index`."""


class Mixer:
    """Mixes the batches of one task after another by a recipe; `None` leaves them unmixed.

    Per task `begin_task`, per epoch `refresh`, per batch `mix`. `host` draws the scalars that
    steer a batch, `generator` what is drawn per sample.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        num_outputs: int,
        *,
        host: np.random.Generator,
        generator: torch.Generator | None,
        mix_points: int = 1,
        exemplars_per_class: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
    ) -> None:
        if exemplars_per_class < 1:
            raise InputError(
                f"exemplars_per_class is {exemplars_per_class}; the criterion needs at least 1"
            )
        if pairing not in PAIRINGS:
            raise UnknownNameError("pairing", pairing, PAIRINGS)
        if average not in ("sample", "class"):
            raise UnknownNameError("average", average, ("sample", "class"))
        self.recipe = recipe
        self.num_outputs = num_outputs
        self.pairs: PairTable | None = None
        self.counts = torch.zeros(num_outputs, num_outputs, dtype=torch.int64)
        self._host, self._generator = host, generator
        self._mix_points = mix_points
        self._exemplars_per_class = exemplars_per_class
        self._pairing, self._average = pairing, average

    def begin_task(self, pool: SamplePool) -> None:
        """Take the pool that partners come from; forget the last task's pairs and counts."""
        self._pool = pool
        self._index = ClassIndex(pool.y, self.num_outputs)
        self.pairs = None
        self.counts = torch.zeros(
            self.num_outputs, self.num_outputs, dtype=torch.int64, device=pool.y.device
        )

    @property
    def classes(self) -> Tensor:
        """The classes that have samples in the pool."""
        return self._index.classes

    def refresh(self, model: nn.Module, head: nn.Linear | None = None) -> None:
        """Compute the pair table anew (Algorithm 1, steps 3 to 9), if the recipe needs one.

        The exemplars of a class are all it has in memory and up to `exemplars_per_class`
        drawn from the current data. Without a memory there is nothing to protect and no table.
        """
        recipe, pool = self.recipe, self._pool
        if recipe is None or not recipe.uses_gradients or pool.num_new == len(pool.y):
            return
        head = find_head(model) if head is None else head
        index = self._draw_exemplars()
        exemplars = embed(model, head, pool.images(index), pool.y[index])
        memory = Exemplars(*(part[index >= pool.num_new] for part in exemplars))
        self.pairs = pair_table(
            exemplars,
            memory,
            self._draw_ratio(recipe),
            bias=head.bias is not None,
            pairing=self._pairing,
            average=self._average,
        )

    def _draw_exemplars(self) -> Tensor:
        """Pool indices: new samples drawn from every current class, then the whole memory."""
        pool = self._pool
        new = pool.y[: pool.num_new]
        priority = torch.rand(
            len(new), generator=self._generator, device=new.device, dtype=torch.float64
        )
        quota = torch.full((self.num_outputs,), self._exemplars_per_class, device=new.device)
        drawn = first_of_each_class(new, priority, quota)
        return torch.cat([drawn, torch.arange(pool.num_new, len(pool.y), device=new.device)])

    def _draw_ratio(self, recipe: Recipe) -> float:
        return float(self._host.beta(*recipe.ratio))

    def mix(self, batch: Batch) -> MixedBatch:
        """Partners, blend and labels for one batch (Algorithm 1, steps 14 to 22)."""
        recipe = self.recipe
        if recipe is None or (recipe.uses_gradients and self.pairs is None):
            return MixedBatch(batch.x, batch.y)
        lam = self._draw_ratio(recipe)
        partners = DRAW[recipe.partners](batch.y, self._index, self.pairs, self._generator)
        other = self._fetch(batch, partners, with_inputs=recipe.blend != "manifold")
        blended = self._blend(recipe, batch, partners, other, lam)
        shares: Tensor | float = blended.lam
        if recipe.labels == "remix":
            shares = remix_shares(batch.y, other.y, blended.lam, self._index.counts)
        self._count(batch.y, other.y)
        targets = soft_targets(batch.y, other.y, shares, self.num_outputs)
        return MixedBatch(blended.x, targets, blended.mix, blended.at)

    def _fetch(self, batch: Batch, partners: Partners, with_inputs: bool) -> Batch:
        """The partners of a batch, row by row; inputs only if asked for or from outside."""
        rows, replaced, drawn = partners
        y = batch.y.index_select(0, rows)
        if replaced is None or drawn is None:
            return Batch(batch.x.index_select(0, rows) if with_inputs else batch.x, y)
        pool = self._pool
        if batch.index is not None:  # one gather serves both kinds of partners
            index = torch.where(replaced, drawn, batch.index.index_select(0, rows))
            return Batch(pool.images(index), pool.y.index_select(0, index))
        choose = replaced.view(-1, *(1,) * (batch.x.ndim - 1))
        x = torch.where(choose, pool.images(drawn), batch.x.index_select(0, rows))
        return Batch(x, torch.where(replaced, pool.y.index_select(0, drawn), y))

    def _blend(
        self, recipe: Recipe, batch: Batch, partners: Partners, other: Batch, lam: float
    ) -> blends.Blended:
        if recipe.blend == "manifold":
            at = int(self._host.integers(self._mix_points))
            if partners.drawn is None:
                return blends.manifold_in_batch(batch.x, partners.rows, lam, at)
            return blends.manifold_from_outside(batch.x, other.x, lam, at)
        if recipe.blend == "cutmix":
            return blends.cutmix(batch.x, other.x, lam, self._host)
        return blends.linear(batch.x, other.x, lam)

    def _count(self, y: Tensor, partner_y: Tensor) -> None:
        pair = y * self.num_outputs + partner_y
        self.counts.view(-1).index_add_(0, pair, torch.ones_like(pair))

    def state_dict(self) -> dict[str, Any]:
        """The pair table and counts; the generators belong to whoever passed them."""
        pairs = {} if self.pairs is None else vars(self.pairs)
        return {"counts": self.counts.clone(), "pairs": dict(pairs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved table and counts; `begin_task` gave the pool."""
        self.counts = state["counts"].clone()
        self.pairs = PairTable(**state["pairs"]) if state["pairs"] else None


class _TensorPool:
    """A pool of inputs in the form that batches have."""

    def __init__(self, current: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor]) -> None:
        self.num_new = len(current[1])
        self.x = torch.cat([current[0], memory[0]]) if len(memory[1]) else current[0]
        self.y = torch.cat([current[1], memory[1]]) if len(memory[1]) else current[1]

    def images(self, index: Tensor) -> Tensor:
        return self.x.index_select(0, index)


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
    the criterion are drawn inside. The model's last `nn.Linear` is found, or given as `head`;
    it may have more outputs than classes seen. With an empty memory batches come back unmixed,
    their labels one-hot.

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
        partners: str = "gradient",
        blend: str = "linear",
        head: nn.Linear | None = None,
        exemplars_per_class: int = 32,
        pairing: str = "one-to-one",
        average: str = "sample",
        generator: torch.Generator | None = None,
    ) -> None:
        if blend == "manifold":
            raise InputError(
                "blend is 'manifold', which mixes hidden states inside the model and cannot be "
                "done on a batch from outside; use 'linear' or 'cutmix', or gradmix's own loop"
            )
        self._head = head
        device = "cpu" if generator is None else generator.device
        seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
        self._host = np.random.default_rng(int(seed))
        recipe = Recipe(partners, blend, labels, alpha)
        self._new_mixer = partial(
            Mixer,
            recipe,
            host=self._host,
            generator=generator,
            exemplars_per_class=exemplars_per_class,
            pairing=pairing,
            average=average,
        )
        self._new_mixer(1)  # bad settings fail here, not at the first refresh
        self._mixer: Mixer | None = None

    @property
    def pairs(self) -> PairTable | None:
        """The current pair table; None before a first refresh and with an empty memory."""
        return None if self._mixer is None else self._mixer.pairs

    def refresh(
        self,
        model: nn.Module,
        *,
        memory: tuple[Tensor, Tensor],
        current: tuple[Tensor, Tensor],
    ) -> None:
        """Compute the pair table with the model as it is now; call it once per epoch."""
        head = find_head(model) if self._head is None else self._head
        for name, (x, y) in (("memory", memory), ("current", current)):
            _check_samples(name, x, y, head.out_features, may_be_empty=name == "memory")
        if len(memory[1]):
            _check_form("memory", memory[0], current[0])
        mixer = self._new_mixer(head.out_features)
        mixer.begin_task(_TensorPool(current, memory))
        mixer.refresh(model, head)
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
        mixed = mixer.mix(Batch(x, y))
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


def _check_samples(name: str, x: Tensor, y: Tensor, num_outputs: int, may_be_empty: bool) -> None:
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
