"""The configuration of a run; each data set has defaults, which are the paper's protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any, TypeVar

from pydantic import model_validator

from gradmix._setting_types import Settings
from gradmix.data import Benchmark, check_dataset_name, dataset_version
from gradmix.data.augment import TRANSFORMS
from gradmix.diagnostics import ANALYSES
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import METHODS, find_method
from gradmix.methods.optimizer import check_optimizer
from gradmix.mixing import Recipe, parse_recipe
from gradmix.mixing.recipe import with_partners
from gradmix.models import MODELS
from gradmix.models.pretrained import PRETRAINED, is_pretrained
from gradmix.models.weights import weights_version
from gradmix.plugins import explain, load_entry_points
from gradmix.settings import (
    FOLDER_PRESET,
    PRESETS,
    PRETRAINED_PRESET,
    CriterionSettings,
    MemorySettings,
    MixSettings,
    RunSettings,
    TrainingSettings,
    check,
    task_scenario,
)
from gradmix.training.build import Design

G = TypeVar("G", bound=Settings)


class RunConfig(RunSettings):
    """Everything that decides the result of a run; `gradmix.settings` declares the fields.

    Raises:
        InputError: If a value is invalid or does not fit the others.
    """

    def __init__(self, **given: Any) -> None:
        load_entry_points()
        try:
            super().__init__(**given)
        except UnknownNameError as error:
            raise explain(error) from None

    @model_validator(mode="after")
    def _check_names(self) -> RunConfig:
        check_dataset_name(self.data)
        if self.model not in MODELS and not is_pretrained(self.model):
            raise UnknownNameError("network", self.model, [*MODELS, *PRETRAINED, "timm/NAME"])
        if self.finetune != "none" and not self.pretrained:
            known = ", ".join([*PRETRAINED, "timm/NAME"])
            raise InputError(
                f"finetune is {self.finetune!r}, but {self.model} is not pretrained; give {known}"
            )
        if self.frozen and self.transforms:
            raise InputError(
                f"transforms is {list(self.transforms)}; photos pass a frozen network only once: "
                "give none, or finetune=last"
            )
        for transform in self.transforms:
            if transform not in TRANSFORMS:
                raise UnknownNameError("transform", transform, TRANSFORMS)
        if len(set(self.analyses)) < len(self.analyses):
            raise InputError(f"analyses is {list(self.analyses)}; name each only once")
        for analysis in self.analyses:
            if analysis not in ANALYSES:
                raise UnknownNameError("analysis", analysis, ANALYSES)
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> RunConfig:
        if self.evaluate_on == "validation" and not self.validation:
            raise InputError("evaluate_on is 'validation' and validation is 0; hold out samples")
        if self.alpha is not None and self.recipe is None:
            raise InputError(f"alpha is {self.alpha}, but mix 'none' has no mixing ratio")
        method = find_method(self.method)
        method.check_mix(self.recipe)
        method.check_selection(self.exemplar_selection)
        method.check_memory(self.exemplars_per_class)
        method.check_scenario(self.scenario)
        method.check_adjustment(self.logit_adjustment)
        method.read_options(dict(self.options))
        check_optimizer(self.optimizer)
        return self

    @model_validator(mode="after")
    def _check_online(self) -> RunConfig:
        if not self.online:
            return self
        if self.epochs != 1:
            raise InputError(f"epochs is {self.epochs}; an online stream is seen once; give 1")
        if self.finetune != "none":
            raise InputError(
                f"finetune is {self.finetune!r} and scenario is {self.scenario!r}; every task of a "
                "fine-tuned network starts from a head that needs all its data: give finetune none"
            )
        if self.exemplar_selection not in (None, "random"):
            raise InputError(
                f"exemplar_selection is {self.exemplar_selection!r}, which compares all samples of "
                f"a class, and scenario is {self.scenario!r}; give random"
            )
        if self.reservoir == "plain" and self.memory_total is None:
            raise InputError(
                "reservoir is 'plain', which has no budget per class; give memory_total"
            )
        return self

    def check_tasks(self, benchmark: Benchmark) -> None:
        """Raise InputError unless the tasks of a caller are as the configuration says."""
        scenario, wanted = task_scenario(self.scenario), self.increments
        if scenario != benchmark.scenario:
            raise InputError(
                f"benchmark is {benchmark.scenario}, but scenario in the configuration is "
                f"{self.scenario!r}; make them equal"
            )
        sizes = tuple(len(task.classes) for task in benchmark.tasks)
        if scenario == "class-incremental" and sizes not in (wanted, wanted * len(sizes)):
            raise InputError(
                f"benchmark has tasks of {list(sizes)} classes, but increments in the "
                f"configuration is {list(wanted)}; make them equal"
            )

    def check_memory(self, num_classes: int) -> None:
        """Raise InputError if the memory is too small for the classes of the data set."""
        total = self.memory_total
        if total is not None and self.design.balanced and total < num_classes:
            raise InputError(
                f"memory_total is {total}; {self.data} has {num_classes} classes, and each needs "
                "at least one exemplar"
            )

    @property
    def design(self) -> Design:
        """The parts of the method: how it mixes, trains and remembers."""
        return Design(
            self.method,
            self.recipe,
            self.part(TrainingSettings),
            self.options,
            self.part(MemorySettings),
            self.part(CriterionSettings),
            self.reservoir == "class-balanced",
        )

    @property
    def recipe(self) -> Recipe | None:
        """The mix with its α, τ and number of tables; None for the mix "none"."""
        return parse_recipe(**dict(self.part(MixSettings)))

    @property
    def pretrained(self) -> bool:
        """Whether the network is a pretrained backbone, frozen or fine-tuned."""
        return self.model not in MODELS

    @property
    def frozen(self) -> bool:
        """Whether the network is a frozen backbone, whose embeddings are the samples."""
        return self.pretrained and self.finetune == "none"

    def with_changes(self, **changes: Any) -> RunConfig:
        """Return a configuration with some settings changed.

        >>> config_for("mnist").with_changes(mix="none").mix
        'none'
        """
        return RunConfig(**{**dict(self), **changes})

    def part(self, group: type[G]) -> G:
        """Return one group of the settings."""
        return group(**{name: getattr(self, name) for name in group.model_fields})


def recipe_of(config: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of a stored run; None without mixing and for an unknown mix."""
    settings: dict[str, Any] = {name: config.get(name) for name in MixSettings.model_fields}
    try:
        return parse_recipe(**settings)
    except InputError:  # a mix of another version
        return None


SMALLER_ALPHA = ("tiny-imagenet", "imagenet")
"""Data sets with a smaller α: Tiny ImageNet in the paper; ImageNet, which it omits, likewise."""


def alpha_for(data: str, mix: str) -> float | None:
    """Return the α that the paper uses for a mix on a data set; None is the mix's own.

    The axes of the recipe decide, so a named mix and its spelled-out form get the same α.

    >>> alpha_for("tiny-imagenet", "gradmix+"), alpha_for("tiny-imagenet", "gradient:linear:remix")
    (0.4, 0.4)
    """
    recipe = parse_recipe(mix)
    if data not in SMALLER_ALPHA or recipe is None:
        return None
    if recipe.blend == "cutmix" or recipe.partners == "class-balanced":
        return None
    return 0.2 if recipe.blend == "manifold" else 0.4


def config_for(data: str, **overrides: Any) -> RunConfig:
    """Return the protocol of a data set with the given settings changed.

    Args:
        data: A name from `gradmix list`, or `folder:PATH` or `folder:PATH@SIZE` for photos in
            one folder per class.
        **overrides: Settings by name; None keeps the default.

    Raises:
        InputError: If a setting is unknown or invalid.

    >>> config_for("mnist", epochs=5).validation
    10000
    """
    load_entry_points()
    try:
        check_dataset_name(check("data", data))
        given = {name: value for name, value in overrides.items() if value is not None}
        if "data_version" not in given:
            given["data_version"] = dataset_version(data)
        if "weights" in given and "weights_version" not in given:
            given["weights_version"] = weights_version(str(given["weights"]))
        return RunConfig(data=data, **_with_defaults(data, given))
    except UnknownNameError as error:
        raise explain(error) from None


def _with_defaults(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given settings with the defaults of the data set, and α of the mix."""
    if "exemplars_per_class" in given and "memory_total" in given:
        raise InputError(
            f"exemplars_per_class is {given['exemplars_per_class']} and memory_total "
            f"{given['memory_total']}; give one of them"
        )
    values = {**PRESETS.get(data, FOLDER_PRESET), **given}
    if given.get("schedule", "steps") != "steps" and "lr_steps" not in given:
        values["lr_steps"] = ()
    if values.get("model", "mlp") not in MODELS and is_pretrained(values["model"]):
        values = {**PRETRAINED_PRESET, **given}
        if values.get("finetune", "none") == "none" and "transforms" not in given:
            values["transforms"] = ()
    method = METHODS.get(str(values.get("method")))
    if method is not None and not method.build.trains:  # it fits a layer, and has no steps to mix
        values = {**values, "mix": "none", "model": "linear", **given}
    if str(values.get("scenario")).startswith("online"):
        values = {**values, "epochs": 1, "lr_steps": (), **given}
    if "alpha" not in values:
        mix = check("mix", values.get("mix", RunConfig.model_fields["mix"].default))
        values["alpha"] = alpha_for(data, mix)
    return values


Grid = Mapping[str, list[Any]]
"""The values of each setting that does not keep the default of the data set."""


def expand(
    grids: Iterable[Grid], skip_impossible: bool = False, *, remedy: str = ""
) -> tuple[list[RunConfig], dict[str, str]]:
    """Return the configurations of all grids, each once, and why others were skipped.

    Combinations are skipped, if wanted, that make no sense or name something unknown.

    Raises:
        InputError: If a setting is unknown, nothing remains, or a combination makes no sense and
            is not to be skipped; `remedy` then tells how to skip it.
    """
    configs: dict[RunConfig, None] = {}
    skipped: dict[str, str] = {}
    of_data, of_weights = cache(dataset_version), cache(weights_version)  # many runs share files
    for grid in grids:
        if not grid.get("data"):
            raise InputError("a grid has no data; name at least one data set")
        order = ["data", "method", "mix", *RunConfig.model_fields, *grid]  # the last varies fastest
        names = sorted(grid, key=lambda name: (name == "seed", order.index(name)))
        varying = [name for name in names if len(grid[name]) > 1 and name != "seed"]
        for values in product(*(grid[name] for name in names)):
            settings = dict(zip(names, values, strict=True))
            shown = (name for name in names if name in order[:3] or name in varying)
            name = ", ".join(f"{name} {settings[name]}" for name in shown)
            versions = {"data_version": of_data(str(settings["data"]))}
            if "weights" in settings:
                versions["weights_version"] = of_weights(str(settings["weights"]))
            try:
                configs[config_for(**{**versions, **settings})] = None
            except UnknownNameError as error:
                if error.kind == "setting" or not skip_impossible:
                    raise
                skipped[name] = str(error)
            except InputError as error:
                if not skip_impossible:
                    raise InputError(f"{name}: {error}{remedy}") from error
                skipped[name] = str(error)
    if skipped and not configs:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"no combination is possible; {name}: {reason}")
    return list(configs), skipped


CONTROL_PARTNERS = ("class-balanced", "shuffle")
"""Partners that need no gradients: the controls of a mix with gradient partners."""


def controls_of(config: RunConfig) -> list[RunConfig]:
    """Return the gradient-free controls of a run; empty if its mix uses no gradients.

    A control has class-balanced or shuffled partners. Its blend, labels, α, τ and all settings
    outside the mix are the same, so the difference to it is what gradients add.

    >>> [control.mix for control in controls_of(config_for("mnist", mix="gradmix+"))]
    ['balanced-remix', 'shuffle:linear:remix']
    """
    if config.recipe is None or not config.recipe.uses_gradients:
        return []
    mix = dict(config.part(MixSettings))
    unused = dict(config_for(config.data).part(CriterionSettings))  # a control has no criterion
    return [
        config.with_changes(**unused, **with_partners(partners, **mix), analyses=())
        for partners in CONTROL_PARTNERS
    ]
