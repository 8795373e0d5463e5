"""Build a method from its parts: network, memory, mixer, selector; for runs and classifiers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn

from gradmix.criterion import PairSelector, find_head
from gradmix.data.pool import Normalise
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method, find_method
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Mixer
from gradmix.models import memory_format
from gradmix.models.finetune import FineTuned
from gradmix.models.parallel import shard, synchronise_batch_norms
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import CriterionSettings, MemorySettings, TrainingSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

NetworkFactory = Callable[[torch.Generator], nn.Module]
"""Makes a network whose initial weights come from the given CPU generator."""


@dataclass(frozen=True)
class Design:
    """What a method consists of, apart from network and data."""

    method: str  # name of the method
    recipe: Recipe | None  # how batches are mixed
    settings: TrainingSettings  # how each task is trained
    options: tuple[tuple[str, float], ...]  # the method's own settings, by name
    memory: MemorySettings
    criterion: CriterionSettings = field(default_factory=CriterionSettings)
    balanced: bool = True  # whether classes have equal shares of a fixed total

    @property
    def grows(self) -> bool:
        """Whether the head grows with the classes."""
        return find_method(self.method).grows or self.settings.head == "growing"

    def build(
        self,
        network: NetworkFactory,
        num_classes: int,
        input_shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        streams: RandomStreams,
        ranks: Ranks = ALONE,
    ) -> Method:
        """Return the method with a new network.

        Args:
            network: Makes the network. A network on the meta device stays there until saved
                weights are loaded.
            num_classes: Number of classes whose mixed pairs are counted.
            input_shape: Shape of one sample.
            mean: Mean per channel or column.
            std: Standard deviation per channel or column.
            streams: All randomness, and the device.
            ranks: The processes that compute the run together.
        """
        kind, device = find_method(self.method), streams.place
        model = network(streams.generator("weights"))
        if not ranks.shard_weights and not any(p.is_meta for p in model.parameters()):
            model = model.to(device)
        if ranks.sync_batchnorm:
            model = synchronise_batch_norms(model, ranks)
        layout = memory_format(input_shape, device)
        # A fine-tuned network works at its backbone's size, and FSDP needs contiguous weights.
        if isinstance(model, FineTuned) or ranks.shard_weights:
            layout = torch.contiguous_format
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        if ranks.shard_weights:
            shard(model, find_head(model), ranks)
        recipe = Recipe() if self.recipe is None else self.recipe
        mixer = Mixer(
            self.recipe,
            num_classes,
            host=streams.host("mixing"),
            generator=streams.device("mixing"),
            mix_points=int(getattr(model, "mix_points", 1)),
            ranks=ranks if kind.row_wise else ALONE,
        )
        # With its own stream, the draws of partners equal those of its control, `class-balanced`.
        stream = "criterion" if recipe.partners == "gradient-class-balanced" else "mixing"
        selector = PairSelector(
            self.criterion,
            tables=recipe.tables if recipe.uses_gradients else 0,
            ratio=recipe.ratio,
            host=streams.host(stream),
            generator=streams.device(stream),
            ranks=ranks,
        )
        kind.check_selection(self.memory.exemplar_selection)
        memory = ReplayMemory(
            exemplars_per_class=self.memory.exemplars_per_class,
            total=self.memory.memory_total,
            selection=self.memory.exemplar_selection,
            balanced=self.balanced,
        )
        normalise = Normalise(mean, std, device)
        options = kind.read_options(dict(self.options))
        return kind(
            model, memory, mixer, selector, self.settings, streams, normalise, options, ranks
        )


def make_fabric(device: str, precision: str) -> Fabric:
    """Return a Lightning Fabric for one device; it provides device and precision.

    Args:
        device: auto, cpu, cuda or mps, also with a number, such as cuda:1.
        precision: Precision of Fabric, such as 32-true or bf16-mixed.

    Raises:
        InputError: If the device is unknown or not available, or if this is one of several
            processes that torchrun or srun started: each would compute the whole run by itself.
    """
    if processes_outside() > 1:
        raise InputError(
            f"this is one of {processes_outside()} processes that torchrun or srun started, and "
            "each would compute the run alone; give devices= (and nodes=), or start one process"
        )
    return _one_device(device, precision)


def processes_outside() -> int:
    """Return how many processes torchrun or srun started with this one."""
    if dist.is_torchelastic_launched():
        return int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))


def _one_device(device: str, precision: str) -> Fabric:
    accelerator, _, number = device.partition(":")
    if number and not number.isdecimal():
        raise InputError(f"device is {device!r}; give auto, cpu, cuda, mps or, for example, cuda:1")
    devices = [int(number)] if number else 1
    given = {"accelerator": accelerator, "devices": devices, "precision": precision}
    return new_fabric(f"device is {device!r}", **given)


def new_fabric(wanted: str, **given: Any) -> Fabric:
    """Return a Lightning Fabric.

    Args:
        wanted: What the user asked for, for the message.
        **given: The arguments of Fabric.

    Raises:
        InputError: If there is no such device.
    """
    from lightning_fabric import Fabric  # takes as long to import as PyTorch
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    try:
        return Fabric(**given)
    except (ValueError, RuntimeError, TypeError, ImportError, MisconfigurationException) as error:
        remedy = "give auto, cpu, cuda, cuda:1 or mps"
        raise InputError(f"{wanted}, which cannot be used here ({error}); {remedy}") from error


def pick_device(name: str) -> torch.device:
    """Return the device that `make_fabric` would use; for the CPU without importing Fabric."""
    none = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    if name == "cpu" or (name == "auto" and none):
        return torch.device("cpu")
    return _one_device(name, "32-true").device


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads; restore it at the end. None keeps it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
