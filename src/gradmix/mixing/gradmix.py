"""GradMix for your own training loop."""

from __future__ import annotations

import copy
import json
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion import PairSelector, find_head
from gradmix.criterion.embedding import check_samples
from gradmix.criterion.selector import PairTable
from gradmix.data.datasets import check_alike
from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.mixing.mixer import Mixer
from gradmix.mixing.recipe import RECIPES, Recipe
from gradmix.randomness import parse_numpy_state
from gradmix.settings import CriterionSettings
from gradmix.types import Samples


class TensorPool(Pool):
    """The current task followed by the memory, as network inputs, which stay as they are."""

    def __init__(self, current: Samples, memory: Samples) -> None:
        as_they_are: Any = nn.Identity()
        super().__init__(current, memory, as_they_are)


class GradMix:
    """Gradient-based selective mixup for your own training loop.

    Call `refresh` once per epoch and the mixer itself for each batch. As with
    `torchvision.transforms.v2.MixUp`, a call takes inputs and integer labels and returns mixed
    inputs and soft targets. With an empty memory, batches come back unmixed and their labels
    one-hot; see `mix_first_task`.

    Args:
        alpha: Parameter of the Beta distribution of λ.
        labels: "remix" favours the rarer class, "proportional" weights labels by λ.
        tables: Number of pair tables that cover λ from 0 to 1; each batch uses the nearest. With
            1, one λ is drawn per refresh, as in Algorithm 1.
        tau: How far Remix's labels favour rare classes; 0.5 is Remix's own. The 0.75 of
            `gradmix+` is better in long training and worse if a task has few steps.
        partners: "gradient", "gradient-class-balanced", "gradient-keep-original", "shuffle" or
            "class-balanced".
        blend: "linear" or "cutmix". "manifold" needs a model that mixes hidden states and is
            refused here.
        head: The model's final linear layer; None finds the last `nn.Linear`. It may have more
            outputs than classes seen.
        criterion_exemplars: Samples of each class of the current task that the criterion uses.
        pairing: "one-to-one" or "all-pairs".
        gradient: "memory" protects the memory (Algorithm 1), "all" all classes seen.
        average: "sample" or "class", how this gradient is averaged.
        criterion: "exact" scores all class pairs; "clusters" scores only those that batches
            contain, for many classes; "auto" chooses by their number.
        mix_first_task: Whether batches are mixed while the memory is empty. By default only if no
            gradients choose the partners.
        generator: Draws partners, on the device of the data; None is PyTorch's global generator.
            It also seeds the draws of λ and of the criterion's exemplars.

    >>> mixer = GradMix(alpha=1.0, labels="remix")
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> old, new = torch.rand(6, 4), torch.rand(8, 4)
    >>> y_old, y_new = torch.tensor([0, 0, 0, 1, 1, 1]), torch.full((8,), 2)
    >>> mixer.refresh(model, memory=(old, y_old), current=(new, y_new))  # each epoch
    >>> x, targets = mixer(torch.cat([new[:4], old]), torch.cat([y_new[:4], y_old]))  # each batch
    >>> x.shape, targets.shape
    (torch.Size([10, 4]), torch.Size([10, 3]))
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
        criterion_exemplars: int = 32,
        pairing: str = "one-to-one",
        gradient: str = "memory",
        average: str = "sample",
        criterion: str = "auto",
        mix_first_task: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if blend == "manifold":
            raise InputError(
                "blend is 'manifold', which mixes hidden states inside the model and not a batch; "
                "use 'linear' or 'cutmix', or gradmix's own training loop"
            )
        _check_kind((int, float), "a number", alpha=alpha, tau=tau)
        _check_kind((int,), "an integer", tables=tables)
        _check_kind((nn.Linear, NoneType), "the model's last nn.Linear", head=head)
        _check_kind((torch.Generator, NoneType), "a torch.Generator", generator=generator)
        settings: dict[str, Any] = {
            "criterion_exemplars": criterion_exemplars,
            "pairing": pairing,
            "gradient": gradient,
            "average": average,
            "criterion": criterion,
        }
        self._recipe = Recipe(partners, blend, labels, alpha, tables, tau, mix_first_task)
        self._settings = CriterionSettings(**settings)
        self._head, self._generator = head, generator
        device = "cpu" if generator is None else generator.device
        seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
        self._host = np.random.default_rng(int(seed))
        self._mixer: Mixer | None = None
        self._selector: PairSelector | None = None
        self._latest = 0  # number of the pair table that the last batch used

    @property
    def pairs(self) -> PairTable | None:
        """The pair table of the last batch's λ, or the middle one after a refresh.

        None before the first refresh, with an empty memory, and for too many classes (see
        `criterion`).
        """
        tables = () if self._selector is None else self._selector.tables
        return tables[self._latest] if tables else None

    def refresh(
        self,
        model: nn.Module,
        *,
        memory: tuple[Tensor, Tensor] | None,
        current: tuple[Tensor, Tensor],
    ) -> None:
        """Compute the pair table with the model as it is now; call it once per epoch.

        Args:
            model: Any model with a final linear layer.
            memory: Inputs and labels of the replay memory; None or empty tensors in a first task.
            current: Inputs and labels of the whole current task. Memory and current task are the
                pool that replacements come from, and they give Remix its class counts.

        Raises:
            InputError: If an argument cannot be used; the mixer is then unchanged.
        """
        _check_kind((nn.Module,), "a network", model=model)
        head = find_head(model) if self._head is None else self._head
        new = check_samples("current", current, head.out_features)
        old = Samples(new.x[:0], new.y[:0])
        if memory is not None:
            old = check_samples("memory", memory, head.out_features, may_be_empty=True)
        if len(old.y):
            check_alike("memory", old.x, "current", new.x)
        if self._recipe.blend == "cutmix" and new.x.ndim != 4:
            raise InputError(
                f"blend is 'cutmix', which needs images (N, C, H, W); current's inputs have shape "
                f"{tuple(new.x.shape)}"
            )
        pool = TensorPool(new, old)
        host = copy.deepcopy(self._host)  # a refresh that fails draws nothing
        mixer = Mixer(self._recipe, head.out_features, host=host, generator=self._generator)
        mixer.begin_task(pool)
        # Own streams keep the draws of λ and partners the same with any criterion.
        seed = int(host.integers(2**63))
        selector = PairSelector(
            self._settings,
            tables=self._recipe.tables if self._recipe.uses_gradients else 0,
            ratio=self._recipe.ratio,
            host=np.random.default_rng(seed),
            generator=torch.Generator(pool.y.device).manual_seed(seed),
        )
        selector.begin_task(pool, head.out_features)
        selector.refresh(model, head)
        self._host, self._mixer, self._selector = host, mixer, selector
        self._current = current[0]
        self._latest = self._recipe.tables // 2

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixed inputs and soft targets (B, C) of one batch.

        Args:
            x: Network inputs, in the form of `refresh`.
            y: Labels, int64 (B,), all of classes given to `refresh`.
        """
        mixer, selector = self._mixer, self._selector
        if mixer is None or selector is None:
            raise InputError("call refresh(model, memory=…, current=…) before mixing a batch")
        check_samples("batch", (x, y), mixer.num_outputs)
        check_alike("batch", x, "current", self._current)
        unknown = set(y.tolist()) - set(mixer.classes.tolist())
        if unknown:
            raise InputError(
                f"the batch has classes {sorted(unknown)}, which were in neither memory nor "
                f"current at the last refresh (classes {mixer.classes.tolist()}); refresh with "
                "the data you train on"
            )
        plan = mixer.plan_labels(y[None].contiguous(), selector.pairs)
        mixed = mixer.mix(plan, 0, x)
        if plan.draws is None:
            return x, nn.functional.one_hot(y, mixer.num_outputs).to(torch.float32)
        self._latest = plan.draws.table[0]
        return mixed.x, mixed.targets

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the draws of λ and of the criterion.

        Save between epochs and call `refresh` after loading: the pair table and the pool are
        computed each epoch and not saved. The owner of `generator` saves its state.
        """
        return {"host": json.dumps(self._host.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the draws of λ and of the criterion.

        Raises:
            InputError: If `state` is not what `state_dict` returns; nothing changes then.
        """
        if not isinstance(state, dict) or state.keys() != {"host"}:
            raise InputError(f"state is {str(state)[:80]}; give what state_dict() returned")
        self._host.bit_generator.state = parse_numpy_state(state["host"], "state['host']")


def _check_kind(kinds: tuple[type, ...], right: str, **given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; give {right}")
