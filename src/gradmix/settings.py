"""Every setting, declared once: name, type, default, bounds, one line of help and its source.

Everything else is generated from these declarations: command-line options, the parsing of TOML
files, validation, the parameters of the classifier, the configuration in result files and the
tables in `docs/settings.md`. Pydantic is the validation library because it declares types, bounds
and help in one line, and because it also validates the files that gradmix reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator

from gradmix._setting_types import (
    ClassOrder,
    Counts,
    Names,
    Number,
    Options,
    Seed,
    Settings,
    Text,
    Whole,
    input_error,
    setting,
)
from gradmix.errors import InputError, UnknownNameError

PAPER, PYTORCH, BLURRY = "paper", "PyTorch", "Rainbow Memory"


class ExperimentSettings(Settings):
    """What a run learns, and with which method and network."""

    data: Text = setting(..., "Data set; see `gradmix list`.")
    method: Text = setting("er", "Basis method; see `gradmix list`.", PAPER)
    data_version: Text = setting(
        "", "Digest of the files of an image folder; `config_for` computes it."
    )
    skip_unreadable: Literal["yes", "no"] = setting(
        "no", "Skip photos that cannot be read, instead of raising an error."
    )
    seed: Seed = setting(0, "Seed of weights, batches, memory and mixing.", ge=0)
    model: Text = setting("mlp", "Network; see `gradmix list`.", PAPER)
    finetune: Literal["none", "last", "all"] = setting(
        "none", "Layers of a pretrained network that train: none, last (the last blocks) or all."
    )
    weights: Text | None = setting(None, "File with weights of the network to start from.")
    weights_version: Text = setting("", "Digest of the file of weights; `config_for` computes it.")
    options: Options = setting(
        (), "Settings of the method itself, such as alpha=0.3.", flags=["--option"]
    )


class MixSettings(Settings):
    """How batches are mixed; None means the value that belongs to the mix."""

    mix: Text = setting("balanced-remix", "Mix by name, partners:blend:labels, or none.")
    alpha: Number | None = setting(None, "α of the Beta distribution of λ.", PAPER, short="α", gt=0)
    tau: Number | None = setting(None, "τ of Remix's label rule.", "Remix", short="τ", ge=0, le=1)
    tables: Whole | None = setting(
        None, "Pair tables over λ; 1 is Algorithm 1.", PAPER, ge=1, le=1024
    )
    mix_first_task: Literal["yes", "no"] | None = setting(
        None, "Mix the first task; None: yes, unless gradients choose partners.", PAPER
    )


class MemorySettings(Settings):
    """What the memory keeps; a total replaces the number per class."""

    exemplars_per_class: Whole | None = setting(
        32,
        "Memory per class.",
        PAPER,
        short="exemplars",
        flags=["--exemplars-per-class", "--exemplars"],
        ge=0,
    )
    memory_total: Whole | None = setting(
        None, "Memory in total, instead of per class.", short="memory", ge=1
    )
    exemplar_selection: Literal["random", "herding", "kmeans", "kmeans-inputs"] | None = setting(
        None, "Rule that chooses exemplars; None: the method's own, usually random.", PAPER
    )

    @model_validator(mode="before")
    @classmethod
    def _one_budget(cls, given: Any) -> Any:
        replaced = isinstance(given, dict) and given.get("memory_total") is not None
        return {**given, "exemplars_per_class": None} if replaced else given


class TrainingSettings(Settings):
    """How a method trains on each task; the defaults are the paper's for MNIST."""

    epochs: Whole = setting(20, "Passes over the data of each task.", PAPER, ge=1)
    optimizer: Text = setting("sgd", "Optimizer: sgd, adam or adamw.", PAPER)
    lr: Number = setting(0.01, "Learning rate; the highest of a schedule.", PAPER, gt=0)
    backbone_lr_scale: Number = setting(
        0.1, "Learning rate of pretrained layers, as a multiple of lr.", gt=0, le=1
    )
    momentum: Number = setting(0.9, "Momentum of SGD.", ge=0, lt=1)
    weight_decay: Number = setting(0.0, "Weight decay.", PYTORCH, ge=0)
    schedule: Literal["steps", "constant", "cosine", "one-cycle"] = setting(
        "steps", "Learning rate over the epochs of a task.", PAPER
    )
    lr_steps: Counts = setting((), "Epochs at which the learning rate is divided by 10.", PAPER)
    warmup: Number = setting(0.0, "Epochs in which the learning rate rises to its value.", ge=0)
    clip_norm: Number | None = setting(None, "Largest norm of the gradient of a step.", gt=0)
    label_smoothing: Number = setting(
        0.0, "Share of each label spread over all outputs.", ge=0, lt=1
    )
    logit_adjustment: Number = setting(
        0.0, "τ: the loss adds τ log π to the logits, π the share of each class; 0: off.", ge=0
    )
    batch_size: Whole = setting(64, "New samples per step.", PAPER, short="batch", ge=1)
    replay_batch_size: Whole = setting(
        64, "Replayed samples per step.", PAPER, short="replay batch", ge=1
    )
    head: Literal["fixed", "growing"] = setting(
        "fixed", "Outputs for all classes from the start, or growing with the classes.", PAPER
    )

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainingSettings:
        if self.lr_steps and self.schedule != "steps":
            raise InputError(
                f"lr_steps is {list(self.lr_steps)} and schedule is {self.schedule!r}; give one of "
                "them: lr_steps belongs to the schedule 'steps'"
            )
        if self.warmup > self.epochs:
            raise InputError(f"warmup is {self.warmup}; there are only {self.epochs} epochs")
        return self


class StreamSettings(Settings):
    """How the data set is split into tasks, augmented and evaluated."""

    scenario: Literal[
        "class-incremental",
        "domain-incremental",
        "blurry",
        "online",
        "online-domain-incremental",
        "online-blurry",
    ] = setting(
        "class-incremental",
        "New classes in each task, new data of the same classes, or classes in several tasks; "
        "online: the same in one pass, with a memory that is filled during the stream.",
        PAPER,
    )
    increments: Counts = setting(
        (2,), "Classes per task: one number, or one per task.", PAPER, min_length=1
    )
    blur: Number = setting(
        0.1, "Blurry: share of each class that arrives in other tasks.", BLURRY, gt=0, lt=1
    )
    domains: Whole = setting(5, "Domain-incremental: number of tasks.", ge=2, le=1000)
    domain_shift: Literal["samples", "permuted", "rotated"] = setting(
        "samples", "Domain-incremental: other samples, permuted pixels or rotated images."
    )
    reservoir: Literal["class-balanced", "plain"] = setting(
        "class-balanced", "Online: memory shared equally by the classes, or sampled uniformly."
    )
    scenario_seed: Whole = setting(
        0, "Seed of the blurred samples, permutations and angles; runs of all seeds share it.", ge=0
    )
    class_order: ClassOrder = setting(
        "natural", "natural, seed:1993, or all classes in order, such as 3,1,0,2.", PAPER
    )
    transforms: Names = setting((), "Augmentation: affine, crop, flip, randaugment, or none.")
    validation: Whole = setting(0, "Training samples to hold out.", PAPER, ge=0)
    evaluate_on: Literal["test", "validation"] = setting("test", "Data to evaluate on.", PAPER)

    @model_validator(mode="after")
    def _check_scenario(self) -> StreamSettings:
        for name, owners in _SCENARIOS_OF.items():
            value = getattr(self, name)
            if self.scenario not in owners and value != StreamSettings.model_fields[name].default:
                raise InputError(
                    f"{name} is {value!r} and scenario is {self.scenario!r}; {name} belongs to the "
                    f"scenario {' or '.join(map(repr, owners))}"
                )
        return self

    @property
    def online(self) -> bool:
        """Whether the data pass once and the memory is filled during the stream."""
        return self.scenario.startswith("online")


_DOMAINS = ("domain-incremental", "online-domain-incremental")
_SCENARIOS_OF = {
    "blur": ("blurry", "online-blurry"),
    "domains": _DOMAINS,
    "domain_shift": _DOMAINS,
    "reservoir": ("online", "online-domain-incremental", "online-blurry"),
}


def task_scenario(scenario: str) -> str:
    """Return the scenario of the tasks, which an online stream passes once.

    >>> task_scenario("online"), task_scenario("online-blurry"), task_scenario("blurry")
    ('class-incremental', 'blurry', 'blurry')
    """
    return scenario.removeprefix("online").removeprefix("-") or "class-incremental"


class CriterionSettings(Settings):
    """How the criterion judges class pairs."""

    criterion_exemplars: Whole = setting(32, "Samples per new class for the criterion.", ge=1)
    pairing: Literal["one-to-one", "all-pairs"] = setting(
        "one-to-one", "Which samples of two classes are paired."
    )
    gradient: Literal["memory", "all"] = setting(
        "memory",
        "Whose gradient mixing must not oppose: memory (Algorithm 1) or all classes.",
        PAPER,
    )
    average: Literal["sample", "class"] = setting(
        "sample", "Mean of this gradient over samples (Algorithm 1) or classes.", PAPER
    )
    criterion: Literal["auto", "exact", "clusters"] = setting(
        "auto", "Search for class pairs; auto: exact unless there are many classes."
    )
    criterion_block: Whole | None = setting(
        None, "How many numbers the criterion computes at once; limits its memory.", ge=1
    )


class MachineSettings(Settings):
    """Where and how precisely a run is computed, and what it measures besides accuracy."""

    threads: Whole = setting(1, "CPU threads of PyTorch.", ge=1, le=1024)
    device: Text = setting("auto", "auto, cpu, cuda, cuda:1 or mps.")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = setting(
        "32-true", "Floating-point precision.", PYTORCH
    )
    analyses: Names = setting((), "Measurements during the run; see `gradmix list`.", PAPER)
    evaluate_every_steps: Whole | None = setting(
        None, "Steps between additional evaluations during the run.", ge=1
    )
    evaluate_every_epochs: Whole | None = setting(
        None, "Epochs of a task between additional evaluations.", ge=1
    )


class RunSettings(
    # Pydantic collects the fields of the last base first.
    MachineSettings,
    CriterionSettings,
    StreamSettings,
    TrainingSettings,
    MemorySettings,
    MixSettings,
    ExperimentSettings,
):
    """Every setting of a run."""

    def to_json(self) -> dict[str, Any]:
        """Return the settings in the types of JSON, as result files store them."""
        return self.model_dump(mode="json")


REMOVED: dict[str, Any] = {"level": "class", "rolling": 1}
"""Settings of earlier versions, with their defaults: result files still contain them."""

DEFAULTS: dict[str, Any] = {
    **RunSettings(data="").to_json(),
    **REMOVED,
    "mix": "gradmix+",  # an earlier default, with which the names of result files were made
}
"""The default of every setting that runs have or had, in the types of JSON, for result files."""
del DEFAULTS["data"]  # it has none


def short_name(name: str) -> str:
    """Return the name of a setting in tables; it may be a setting of another version.

    >>> short_name("tau"), short_name("weight_decay")
    ('τ', 'weight decay')
    """
    field = RunSettings.model_fields.get(name)
    declared: Any = {} if field is None else field.json_schema_extra
    return declared.get("short") or name.replace("_", " ")


def changed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration in JSON form that differ from `DEFAULTS`."""
    return {name: value for name, value in config.items() if value != DEFAULTS.get(name, ...)}


class ClassifierSettings(Settings):
    """Parameters of `IncrementalClassifier` that runs do not have."""

    holdout_per_class: Whole | None = setting(
        None,
        "Samples per class for measuring only, part of the memory; None: 10 with a frozen "
        "backbone, else 0.",
        ge=0,
    )
    head_size: Whole | None = setting(
        None, "Outputs of the network; None: they grow with the classes.", ge=1, le=10**7
    )
    image_size: Whole | None = setting(
        None, "Pixels per side of photos; None: chosen from the first photos.", ge=8, le=4096
    )
    keep_images: bool = setting(True, "Store the exemplars' photos beside their embeddings.")
    mean: Any = setting(
        None,
        "Mean per column, or per channel of images for bytes, 0 to 255; None: computed from the "
        "first data.",
    )
    std: Any = setting(None, "Standard deviation, like mean.")
    early_stopping: bool = setting(False, "Stop when the validation accuracy stops improving.")
    patience: Whole = setting(5, "Epochs without improvement before an early stop.", ge=1)
    validation_fraction: Number = setting(
        0.1, "Share of each class used for early stopping.", gt=0, le=0.5
    )
    devices: Whole = setting(1, "Devices of this machine that learn a call together.", ge=1)
    verbose: Whole = setting(0, "Level of output: 1 prints progress.", ge=0)
    random_state: Any = setting(
        None, "Seed; the same seed on the same type of machine gives the same bits."
    )


GROUPS: tuple[type[Settings], ...] = (*reversed(RunSettings.__bases__), ClassifierSettings)
FIELDS: dict[str, Any] = {**RunSettings.model_fields, **ClassifierSettings.model_fields}

CHOSEN_BY_CLASSIFIER: dict[str, tuple[Any, str]] = {
    "method": ("auto", "ridge on the features of a pretrained backbone, er otherwise"),
    "mix": ("auto", "balanced-remix, or remix in image networks, where it measured better"),
    "model": (
        "auto",
        "an MLP for rows and small images; for photos a frozen EfficientNet-Lite0 if the extra "
        "`photos` is installed, and otherwise a CNN, or a ResNet-18 on GPUs",
    ),
    "finetune": (None, "none for a named backbone; a module is then a network, not a backbone"),
    "options": (None, "the method's own"),
    "epochs": (None, "20, or more if there is little data; 5 with a fine-tuned backbone"),
    "lr": (None, "0.05 for CNNs and ResNets, otherwise 0.01"),
    "weight_decay": (None, "5e-4 for CNNs and ResNets, otherwise 0"),
    "schedule": (None, "cosine for CNNs and ResNets, otherwise steps"),
    "transforms": ("auto", "crop and flip for image networks"),
    "threads": (None, "unchanged"),
}
"""Values that a classifier accepts besides a setting's own, and what it then chooses."""

FEW_STEPS_PRESET: dict[str, Any] = {"tau": 0.5}
"""Defaults of balanced-remix and gradmix+ with few steps, where their own τ is too high."""

CONVOLUTIONAL_PRESET: dict[str, Any] = {"lr": 0.05, "weight_decay": 5e-4, "schedule": "cosine"}
"""A classifier's defaults for CNNs and ResNets from scratch; docs/photos.md has measurements."""

_PHOTOS: dict[str, Any] = {"model": "resnet18", "lr": 0.1, "transforms": ("crop", "flip")}
_TINY_IMAGENET: dict[str, Any] = {**_PHOTOS, "epochs": 100, "lr_steps": (30, 60, 90)}

PRESETS: dict[str, dict[str, Any]] = {
    "mnist": {"validation": 10_000},  # the paper trains on 50,000 images
    "fashion-mnist": {},
    "cifar-10": {**_PHOTOS, "epochs": 50},
    "cifar-100": {**_PHOTOS, "epochs": 250, "lr_steps": (100, 150, 200), "increments": (10,)},
    "tiny-imagenet": {**_TINY_IMAGENET, "increments": (20,)},
    # The paper states only the 10 tasks; the rest follows Tiny ImageNet.
    "imagenet": {**_TINY_IMAGENET, "model": "resnet18-imagenet", "increments": (100,)},
    "digits": {
        # Ours: the paper has no data set this small. docs/protocol.md says how it was chosen.
        "model": "mlp-small",
        "epochs": 30,
        "batch_size": 32,
        "replay_batch_size": 32,
        "exemplars_per_class": 4,
        "criterion_exemplars": 4,
        **FEW_STEPS_PRESET,
    },
}
"""Defaults of each data set that differ from the declarations, which are the paper's for MNIST.

The paper does not mention transforms; crops and flips for photos are our choice.
"""

FOLDER_PRESET: dict[str, Any] = {**_PHOTOS, "epochs": 50}
"""Defaults for folders of photos: those of CIFAR-10."""

PRETRAINED_PRESET: dict[str, Any] = {"epochs": 5, "transforms": ("crop", "flip")}
"""Defaults for pretrained networks, in place of those of the data set."""


def check(name: str, value: Any) -> Any:
    """Return the value of one setting in its normal form.

    Args:
        name: A setting of runs or of the classifier.
        value: The value to check.

    Raises:
        InputError: If the value is invalid; UnknownNameError if there is no such setting.

    >>> check("lr", 1)
    1.0
    >>> check("increments", [5, 5])
    (5, 5)
    """
    if name not in FIELDS:
        raise UnknownNameError("setting", name, FIELDS)
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        raise input_error(error, {name: value}, FIELDS, name) from None


def plain_value(name: str, value: Any) -> Any:
    """Return the normal form of a setting in the types of JSON; see `check` for errors."""
    return _adapter(name).dump_python(check(name, value), mode="json")


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = FIELDS[name]
    config = ConfigDict(strict=True, allow_inf_nan=False)
    return TypeAdapter(Annotated[field.annotation, field], config=config)  # type: ignore[arg-type]


def check_classifier(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a classifier in their normal form.

    A value that tells the classifier to choose, such as `mix="auto"`, stays as it is, and so does
    a network that is not a name.

    Raises:
        InputError: If a value is invalid.
    """
    checked = {}
    for name, value in params.items():
        choose, _ = CHOSEN_BY_CLASSIFIER.get(name, (..., ""))
        chosen = value is choose or (isinstance(value, str) and value == choose)
        network = name == "model" and not isinstance(value, str)
        checked[name] = value if chosen or network else check(name, value)
    return checked
