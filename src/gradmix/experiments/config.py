"""What a run is: one typed record, with the paper's protocol as the default of each data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from gradmix.criterion import PAIRINGS
from gradmix.data import DATASETS
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import METHODS, Settings, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import Recipe, parse_recipe
from gradmix.models import MODELS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")

AT_LEAST = {
    "seed": 0,
    "threads": 1,
    "exemplars_per_class": 1,
    "memory_total": 1,
    "criterion_exemplars": 1,
    "validation": 0,
}
"""The smallest values that make sense; `Settings` has those of training."""


@dataclass(frozen=True)
class RunConfig:
    """All that decides the result of a run, and where it is computed."""

    data: str  # name of a data set
    method: str = "er"  # name of a basis method
    mix: str = "gradmix+"  # name of a mix, or partners:blend:labels, or none
    seed: int = 0  # of weights, batches, memory and mixing; not of the class order
    model: str = "mlp"  # name of a network
    epochs: int = 20  # per task
    lr: float = 0.01  # learning rate of SGD
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0  # of SGD
    lr_steps: tuple[int, ...] = ()  # epochs at which the learning rate falls to a tenth
    batch_size: int = 64  # new samples per step
    replay_batch_size: int = 64  # replayed samples per step
    head: str = "fixed"  # all outputs from the start, or growing with the classes
    options: tuple[tuple[str, float], ...] = ()  # the method's own settings, by name
    exemplars_per_class: int | None = 32  # memory that grows with the classes …
    memory_total: int | None = None  # … or a fixed total, shared by the classes
    alpha: float | None = None  # of the mix; None is the mix's own
    tables: int | None = None  # pair tables over λ, for gradient partners; None is the mix's own
    increments: tuple[int, ...] = (2,)  # classes per task; a single number is for every task
    class_order: str | tuple[int, ...] = "natural"  # or seed:N, or the classes in order
    validation: int = 0  # how many of the last training samples are held out
    evaluate_on: Literal["test", "validation"] = "test"  # or validation
    criterion_exemplars: int = 32  # drawn of every new class for the criterion
    pairing: str = "one-to-one"  # or all-pairs
    average: str = "sample"  # of the memory's gradient: sample (Algorithm 1) or class (Eq. 5)
    threads: int = 1  # of PyTorch on the CPU; results depend on it in the last bits
    device: str = "auto"  # auto, cpu, cuda, mps, cuda:1 …
    precision: str = "32-true"  # or bf16-mixed, 16-mixed

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("data set", self.data, DATASETS),
            ("method", self.method, METHODS),
            ("model", self.model, MODELS),
            ("precision", self.precision, PRECISIONS),
            ("evaluate_on", self.evaluate_on, ("test", "validation")),
            ("pairing", self.pairing, PAIRINGS),
            ("average", self.average, ("sample", "class")),
        ):
            if name not in known:
                raise UnknownNameError(kind, name, known)
        for name, least in AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; give {least} or more")
        if self.memory_total is not None and self.exemplars_per_class is not None:
            # A total replaces the number per class, which has a default.
            object.__setattr__(self, "exemplars_per_class", None)
        if self.evaluate_on == "validation" and not self.validation:
            raise InputError("evaluate_on is 'validation' and validation is 0; hold some out")
        recipe = self.recipe  # also checks mix and alpha
        if self.alpha is not None and recipe is None:
            raise InputError(f"alpha is {self.alpha}, but mix 'none' has no mixing ratio")
        self.settings.__post_init__()
        read_options(find_method(self.method).options_type, dict(self.options))

    @property
    def recipe(self) -> Recipe | None:
        """The mix with its α; None for none."""
        return parse_recipe(self.mix, self.alpha, self.tables)

    @property
    def settings(self) -> Settings:
        """The part that a method needs."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    def to_json(self) -> dict[str, Any]:
        """As result files have it."""
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        return {**plain, "options": dict(self.options)}


PRESETS: dict[str, dict[str, Any]] = {
    "mnist": {"validation": 10_000},  # the paper's 50K training images
    "fashion-mnist": {},
    "digits": {
        # Ours: the paper has no such small set. See docs/protocol.md for how it was chosen.
        "model": "mlp-small",
        "epochs": 20,
        "batch_size": 16,
        "replay_batch_size": 16,
        "exemplars_per_class": 4,
        "criterion_exemplars": 4,
    },
}
"""What differs from the defaults above, which are the paper's, for each data set."""


def config_for(data: str, **overrides: Any) -> RunConfig:
    """The protocol of a data set, with the given fields changed; None leaves a field as it is."""
    if data not in DATASETS:
        raise UnknownNameError("data set", data, DATASETS)
    known = {f.name for f in fields(RunConfig)}
    for name in overrides:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    given = {name: value for name, value in overrides.items() if value is not None}
    return replace(RunConfig(data, **PRESETS[data]), **given)


def configs_for_seeds(data: str, seeds: Sequence[int], **overrides: Any) -> list[RunConfig]:
    """One configuration for every seed."""
    if not seeds:
        raise InputError("seeds is empty; give at least one")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {list(seeds)}; each may stand there only once")
    return [config_for(data, seed=seed, **overrides) for seed in seeds]
