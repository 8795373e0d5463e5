"""What a run is: one typed record, with the paper's protocol as the default of each data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from gradmix.diagnostics import ANALYSES
from gradmix.criterion import PAIRINGS, SEARCHES
from gradmix.data import check_dataset_name
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, UnknownNameError
from gradmix.runs.forms import in_one_form
from gradmix.methods import METHODS, Settings, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import Recipe, parse_recipe
from gradmix.models import MODELS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
MOST_THREADS = 1024

AT_LEAST = {
    "seed": 0,
    "threads": 1,
    "exemplars_per_class": 1,
    "memory_total": 1,
    "criterion_exemplars": 1,
    "validation": 0,
    "rolling": 1,
    "criterion_block": 1,
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
    tau: float | None = None  # of Remix's labels; None is the mix's own
    level: str = "class"  # what gradient partners judge: pairs of classes, or of samples
    tables: int | None = None  # pair tables over λ, for gradient partners; None is the mix's own
    increments: tuple[int, ...] = (2,)  # classes per task; a single number is for every task
    class_order: str | tuple[int, ...] = "natural"  # or seed:N, or the classes in order
    transforms: tuple[str, ...] = ()  # of training images: crop, flip, randaugment
    validation: int = 0  # how many of the last training samples are held out
    evaluate_on: Literal["test", "validation"] = "test"  # or validation
    criterion_exemplars: int = 32  # drawn of every new class for the criterion
    pairing: str = "one-to-one"  # or all-pairs
    average: str = "sample"  # of the memory's gradient: sample (Algorithm 1) or class (Eq. 5)
    criterion: str = "auto"  # exact, or for many classes clusters or neighbours; auto: by number
    rolling: int = 1  # parts in which exemplars are embedded, one each epoch; 1: all of them
    criterion_block: int | None = None  # numbers the criterion computes at once; bounds its memory
    threads: int = 1  # of PyTorch on the CPU; results depend on it in the last bits
    device: str = "auto"  # auto, cpu, cuda, mps, cuda:1 …
    precision: str = "32-true"  # or bf16-mixed, 16-mixed
    analyses: tuple[str, ...] = ()  # names of measurements to take along

    def __post_init__(self) -> None:
        for f in fields(self):
            value = in_one_form(f.name, str(f.type), getattr(self, f.name))
            object.__setattr__(self, f.name, value)
        for kind, name, known in (
            ("method", self.method, METHODS),
            ("model", self.model, MODELS),
            ("precision", self.precision, PRECISIONS),
            ("evaluate_on", self.evaluate_on, ("test", "validation")),
            ("pairing", self.pairing, PAIRINGS),
            ("average", self.average, ("sample", "class")),
            ("criterion", self.criterion, SEARCHES),
        ):
            if name not in known:
                raise UnknownNameError(kind, name, known)
        check_dataset_name(self.data)
        for transform in self.transforms:
            if transform not in TRANSFORMS:
                raise UnknownNameError("transform", transform, TRANSFORMS)
        if len(set(self.analyses)) < len(self.analyses):
            raise InputError(f"analyses is {list(self.analyses)}; name each only once")
        for analysis in self.analyses:
            if analysis not in ANALYSES:
                raise UnknownNameError("analysis", analysis, ANALYSES)
        for name, least in AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; give {least} or more")
        if self.threads > MOST_THREADS:
            raise InputError(f"threads is {self.threads}; give {MOST_THREADS} or fewer")
        if self.memory_total is not None and self.exemplars_per_class is not None:
            # A total replaces the number per class, which has a default.
            object.__setattr__(self, "exemplars_per_class", None)
        if self.evaluate_on == "validation" and not self.validation:
            raise InputError("evaluate_on is 'validation' and validation is 0; hold some out")
        recipe = self.recipe  # also checks mix and alpha
        if self.alpha is not None and recipe is None:
            raise InputError(f"alpha is {self.alpha}, but mix 'none' has no mixing ratio")
        self.settings.__post_init__()
        method = find_method(self.method)
        method.check_mix(recipe)
        read_options(method.options_type, dict(self.options))

    @property
    def recipe(self) -> Recipe | None:
        """The mix with its α; None for none."""
        return parse_recipe(self.mix, self.alpha, self.tables, self.tau, self.level)

    @property
    def settings(self) -> Settings:
        """The part that a method needs."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    def to_json(self) -> dict[str, Any]:
        """As result files have it."""
        return {f.name: _plain(f.name, getattr(self, f.name)) for f in fields(self)}


def _plain(name: str, value: Any) -> Any:
    """A setting in the types of JSON."""
    if name == "options":
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


DEFAULTS: dict[str, Any] = {
    f.name: _plain(f.name, f.default) for f in fields(RunConfig) if f.default is not MISSING
}
"""What a setting is, in the types of JSON, where nothing else is said."""


def changed_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Those settings of a configuration in JSON form that are not `RunConfig`'s defaults."""
    return {
        name: value
        for name, value in config.items()
        if name not in DEFAULTS or value != DEFAULTS[name]
    }


_PHOTOS: dict[str, Any] = {"model": "resnet18", "lr": 0.1, "transforms": ("crop", "flip")}

PRESETS: dict[str, dict[str, Any]] = {
    "mnist": {"validation": 10_000},  # the paper's 50K training images
    "fashion-mnist": {},
    "cifar-10": {**_PHOTOS, "epochs": 50},
    "cifar-100": {**_PHOTOS, "epochs": 250, "lr_steps": (100, 150, 200), "increments": (10,)},
    "tiny-imagenet": {**_PHOTOS, "epochs": 100, "lr_steps": (30, 60, 90), "increments": (20,)},
    "imagenet": {
        # Of this the paper states only the 10 tasks; the rest is our choice, as Tiny ImageNet's.
        **_PHOTOS,
        "model": "resnet18-imagenet",
        "epochs": 100,
        "lr_steps": (30, 60, 90),
        "increments": (100,),
    },
    "digits": {
        # Ours: the paper has no such small set. See docs/protocol.md for how it was chosen.
        "model": "mlp-small",
        "epochs": 30,
        "batch_size": 32,
        "replay_batch_size": 32,
        "exemplars_per_class": 4,
        "criterion_exemplars": 4,
        "tau": 0.5,  # with so few steps gradmix+'s own leaves the new classes unlearned
    },
}
"""What differs from the defaults above, which are the paper's, for each data set.

The paper is silent on transforms; crops and flips for photos are our choice.
"""

FOLDER_PRESET: dict[str, Any] = {**_PHOTOS, "epochs": 50}
"""For image folders: as CIFAR-10."""

SMALLER_ALPHAS = {
    "mixup": 0.4,
    "remix": 0.4,
    "gradmix": 0.4,
    "gradmix+": 0.4,
    "manifold-mixup": 0.2,
}
ALPHAS: dict[str, dict[str, float]] = {
    "tiny-imagenet": SMALLER_ALPHAS,
    "imagenet": SMALLER_ALPHAS,  # not stated in the paper; as Tiny ImageNet's
}
"""The paper's α where a data set has others than the recipes' own."""


def config_for(data: str, **overrides: Any) -> RunConfig:
    """The protocol of a data set, with the given fields changed; None leaves a field as it is.

    `data` is a name of `gradmix list`, or `folder:PATH` or `folder:PATH@SIZE` for images in
    folders by class.
    """
    check_dataset_name(in_one_form("data", "str", data))
    known = {f.name for f in fields(RunConfig)}
    for name in overrides:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    given = {name: value for name, value in overrides.items() if value is not None}
    if "exemplars_per_class" in given and "memory_total" in given:
        raise InputError(
            f"exemplars_per_class is {given['exemplars_per_class']} and memory_total "
            f"{given['memory_total']}; give one of them"
        )
    preset = {**PRESETS.get(data, FOLDER_PRESET), **given}
    usual = ALPHAS.get(data, {}).get(preset.get("mix", RunConfig.mix))
    return RunConfig(data, **{"alpha": usual, **preset})


def configs_for_seeds(data: str, seeds: Sequence[int], **overrides: Any) -> list[RunConfig]:
    """One configuration for every seed."""
    if not seeds:
        raise InputError("seeds is empty; give at least one")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {list(seeds)}; each may stand there only once")
    return [config_for(data, seed=seed, **overrides) for seed in seeds]
