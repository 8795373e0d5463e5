"""Network, memory, mixer and method, put together; the same for runs and for classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradmix.criterion.selector import Judging
from gradmix.data.pool import Normalise
from gradmix.errors import InputError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method, Settings, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import Recipe
from gradmix.mixing.mixer import Mixer
from gradmix.randomness import RandomStreams

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Design:
    """What a method is made of, whatever it will learn."""

    method: str  # name of a basis method
    recipe: Recipe | None  # how batches are mixed
    settings: Settings  # of training
    options: tuple[tuple[str, float], ...]  # the method's own settings, by name
    exemplars_per_class: int | None  # memory that grows with the classes …
    memory_total: int | None  # … or a fixed total
    judging: Judging = field(default_factory=Judging)

    @property
    def grows(self) -> bool:
        """Whether the head grows with the classes."""
        return find_method(self.method).grows or self.settings.head == "growing"

    def build(
        self,
        network: Callable[[], nn.Module],
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        streams: RandomStreams,
        *,
        empty: bool = False,
    ) -> Method:
        """The method with a new network; `num_classes` are those that its counts are of.

        If `empty`, the network takes no memory before the weights of a saved state are loaded.
        """
        kind, device = find_method(self.method), streams.place
        if empty:
            with torch.device("meta"):
                model = network()
        else:
            with streams.as_global("weights"):
                model = network().to(device)
            if device.type == "cpu":  # where convolutions are faster so; see benchmarks
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mixer = Mixer(
            self.recipe,
            num_classes,
            host=streams.host("mixing"),
            generator=streams.device("mixing"),
            mix_points=int(getattr(model, "mix_points", 1)),
            judging=self.judging,
        )
        memory = ReplayMemory(exemplars_per_class=self.exemplars_per_class, total=self.memory_total)
        options = read_options(kind.options_type, dict(self.options))
        normalise = Normalise(mean, std, device)
        return kind(model, memory, mixer, self.settings, streams, normalise, options)


def make_fabric(device: str, precision: str) -> Fabric:
    """Lightning Fabric on one device, which gives device and precision and wraps nothing."""
    accelerator, _, number = device.partition(":")
    if number and not number.isdecimal():
        raise InputError(f"device is {device!r}; give auto, cpu, cuda, mps or, say, cuda:1")
    from lightning_fabric import Fabric  # takes as long as PyTorch; who only predicts needs none

    try:
        return Fabric(
            accelerator=accelerator,
            devices=[int(number)] if number else 1,
            precision=precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        raise InputError(f"device is {device!r}, which cannot be used here: {error}") from error


def pick_device(name: str) -> torch.device:
    """Where `make_fabric` would compute; at once if that is the CPU."""
    none = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    if name == "cpu" or (name == "auto" and none):
        return torch.device("cpu")
    return make_fabric(name, "32-true").device


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """PyTorch's thread count within; what it was afterwards. None leaves it alone."""
    if number is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
