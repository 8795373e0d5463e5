"""The paper's tables and figures by name: which runs each needs and what it reads from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradmix.errors import UnknownNameError
from gradmix.paper import measures
from gradmix.paper.numbers import ACCURACY, paper_tables
from gradmix.runs.config import CONTROL_PARTNERS, RunConfig, config_for, controls_of
from gradmix.runs.tables import display

CPU_DATA = ("mnist", "fashion-mnist")
"""The data sets that a CPU can run at the paper's scale."""

LABELS = {
    "mixup": "+ Mixup",
    "manifold-mixup": "+ Manifold Mixup",
    "cutmix": "+ CutMix",
    "remix": "+ Remix",
    "balanced-mixup": "+ Balanced-MixUp",
    "randaugment": "+ RandAugment",
    "gradmix": "+ GradMix (Algorithm 1)",
    "gradmix+": "+ gradmix+",
}
CONTROLS = {
    "gradmix": {"class-balanced": "+ balanced control of GradMix"},
    "gradmix+": {
        "class-balanced": "+ balanced control of gradmix+",
        "shuffle": "+ shuffled control of gradmix+",
    },
}
"""The gradient-free controls of each GradMix row: partners and label."""

ABLATION = {
    "gradient-keep-original": "Original: the sample itself",
    "shuffle": "Random: the drawn pair",
    "gradient": "gradmix+: the best class",
}
VARIED = {"exemplars_per_class": "N=", "alpha": "α=", "model": ""}
"""Settings that a label mentions, with their prefix."""

SCALES = ("full", "small")
SMALL_EPOCHS = 12
SMALL_MODELS = {
    "mlp": "mlp-small",
    "resnet18": "resnet18-tiny",
    "resnet18-imagenet": "resnet18-tiny",
    "vit": "vit-small",
}
"""The networks of `scale="small"`, which fit one core."""

Chart = Literal["table", "lines", "bars", "heatmap"]


@dataclass(frozen=True)
class Line:
    """A row of a table or a curve of a figure: the settings of its runs and the paper's row.

    The settings are those of `config_for`, with two additions from the paper's tables: the mix
    `randaugment`, and `partners` that replace the partners of GradMix.
    """

    label: str
    settings: Mapping[str, Any]
    paper: Mapping[str, str | float] | None = None


@dataclass(frozen=True)
class Panel:
    """What is read from a run, and how it is shown."""

    title: str
    read: measures.Read
    chart: Chart = "table"
    across: str = ""  # what the names of the numbers are
    paper: Mapping[str, str | float] | None = None  # the paper's row, where the line has none


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper."""

    name: str
    kind: Literal["table", "figure"]
    about: str
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    data: tuple[str, ...] = CPU_DATA  # the default data sets
    digits: int = 3


def reproductions() -> dict[str, Reproduction]:
    """Return all reproductions by name."""
    accuracy = [_accuracy_table(key) for key, t in paper_tables().items() if t.quantity == ACCURACY]
    return {one.name: one for one in (*accuracy, *_measured_tables(), *_figures())}


def find_reproduction(name: str) -> Reproduction:
    """Return a reproduction by name; UnknownNameError suggests the nearest name."""
    known = reproductions()
    if name not in known:
        raise UnknownNameError("reproduction", name, known)
    return known[name]


def _accuracy_table(key: str) -> Reproduction:
    table = paper_tables()[key]
    lines = tuple(line for row in table.rows for line in _lines_of(row.setting))
    on_cpu = tuple(data for data in CPU_DATA if data in table.rows[0].values)
    data = CPU_DATA if key == "compatibility" else on_cpu or tuple(table.rows[0].values)
    panel = Panel(ACCURACY, measures.metric("average_accuracy"))
    return Reproduction(key, "table", table.caption, lines, (panel,), data)


def _lines_of(paper: Mapping[str, str | float]) -> list[Line]:
    """Return our lines for a row of the paper.

    Its GradMix gets several: gradmix and gradmix+, each with its gradient-free controls. Mixup is
    the shuffled control of gradmix, and has a row of its own.
    """
    if "partners" in paper:
        return [Line(ABLATION[str(paper["partners"])], {**paper, "mix": "gradmix+"}, paper)]
    varied = "".join(f", {VARIED[name]}{paper[name]}" for name in VARIED if name in paper)
    method = display(str(paper["method"]))
    mixes = ("gradmix", "gradmix+") if paper["mix"] == "gradmix" else (str(paper["mix"]),)
    lines = []
    for mix in mixes:
        settings = {**paper, "mix": mix}
        label = f"{method} {LABELS.get(mix, '')}".strip() + varied
        lines.append(Line(label, settings, paper))
        lines += [
            Line(f"{method} {name}{varied}", {**settings, "partners": partners})
            for partners, name in CONTROLS.get(mix, {}).items()
        ]
    return lines


PLAIN, MIXUP, ALGORITHM_1, GRADMIX_PLUS = (
    Line(f"ER {LABELS.get(mix, '')}".strip(), {"method": "er", "mix": mix})
    for mix in ("none", "mixup", "gradmix", "gradmix+")
)
GRADMIX_ANALYSES = ("approximation-error", "class-distance", "precision-recall")
ANALYSED = tuple(
    replace(line, settings={**line.settings, "analyses": GRADMIX_ANALYSES})
    for line in (ALGORITHM_1, GRADMIX_PLUS)
)
"""Both forms of GradMix, with every diagnostic of its criterion."""


def _measured_tables() -> list[Reproduction]:
    """Return the tables that read something other than accuracy."""
    tables = paper_tables()
    rate, agreement = tables["detrimental-rate"], tables["precision-recall"]
    rates = replace(MIXUP, settings={**MIXUP.settings, "analyses": (rate.key,)})
    plain, gradmix = ({"method": "er", "mix": mix} for mix in ("none", "gradmix"))
    rate_panels = tuple(
        Panel(f"rate, {key.replace('_', ' ')}", measures.diagnostic(rate.key, key), paper=row)
        for row in (rate.rows[0].setting,)
        for key in ("whole_network", "last_layer")
    )
    agreement_panels = tuple(
        Panel(
            name,
            measures.diagnostic(agreement.key, name),
            paper={"mix": "gradmix", "measure": name},
        )
        for name in ("precision", "recall")
    )
    return [
        Reproduction(rate.key, "table", rate.caption, (rates,), rate_panels),
        Reproduction(agreement.key, "table", agreement.caption, ANALYSED, agreement_panels),
        Reproduction(
            "runtime",
            "table",
            "Seconds of training per task, with the criterion; the paper used a GPU.",
            (replace(PLAIN, paper=plain), MIXUP, replace(GRADMIX_PLUS, paper=gradmix)),
            (Panel("seconds per task", measures.seconds_per_task),),
            digits=1,
        ),
    ]


def _figures() -> list[Reproduction]:
    every = tuple(replace(line, paper=None) for line in _accuracy_table("main-er").lines)
    after = Panel("accuracy after each task", measures.accuracy_by_task, "lines", "task")
    classes = "accuracy of each class after the last task"
    error = paper_tables()["approximation-error"]
    mean_error = measures.diagnostic(error.key, "mean_of_samples")
    return [
        Reproduction(
            "forgetting",
            "figure",
            "Accuracy after each task, and of each class after the last.",
            (PLAIN, MIXUP, GRADMIX_PLUS),
            (after, Panel(classes, measures.class_accuracy, "bars", "class")),
        ),
        Reproduction(
            "sequential", "figure", "Accuracy of every mix after each task.", every, (after,)
        ),
        Reproduction(
            "heatmap",
            "figure",
            "How often each pair of classes was mixed in the last task.",
            (GRADMIX_PLUS,),
            (
                Panel(
                    "samples mixed in the last task",
                    measures.pair_counts,
                    "heatmap",
                    "class → partner",
                ),
            ),
            digits=0,
        ),
        Reproduction(
            error.key,
            "figure",
            error.caption,
            ANALYSED,
            (
                Panel("RMSE against λ", measures.approximation_curve, "lines", "λ"),
                Panel("mean over λ", mean_error, paper={"mix": "gradmix"}),
            ),
        ),
        Reproduction(
            "class-distance",
            "figure",
            "Cosine distance between the gradients of two samples, within and between classes.",
            ANALYSED,
            (Panel("mean cosine distance", measures.class_distances, "bars", "samples"),),
        ),
        Reproduction(
            "runtime-per-epoch",
            "figure",
            "Time per epoch of the criterion and of planning the batches.",
            (GRADMIX_PLUS,),
            (Panel("milliseconds per epoch", measures.criterion_milliseconds, "lines", "task"),),
            digits=1,
        ),
    ]


# --- runs ---------------------------------------------------------------------------------------


def configs_of(line: Line, data: str, seeds: Sequence[int], scale: str = "full") -> list[RunConfig]:
    """Return the configuration of a line for every seed.

    Raises:
        UnknownNameError: `scale` is neither `full` nor `small`.
    """
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)
    settings = dict(line.settings)
    usual = config_for(data, mix="gradmix+")
    if settings["mix"] == "randaugment":
        settings |= {"mix": "none", "transforms": (*usual.transforms, "randaugment")}
    partners = settings.pop("partners", "gradient")
    if partners == "gradient-keep-original":
        assert usual.recipe is not None
        settings |= {"mix": f"{partners}:linear:remix", **usual.recipe.own_settings}
    if settings.get("alpha") == _own_alpha(data, settings["mix"]):
        del settings["alpha"]  # the default gives the same run
    if scale == "small":
        model = settings.get("model", usual.model)
        settings |= {"model": SMALL_MODELS.get(model, model), "lr_steps": ()}
        settings["epochs"] = min(usual.epochs, SMALL_EPOCHS)
    configs = [config_for(data, seed=seed, **settings) for seed in seeds]
    if partners in CONTROL_PARTNERS:
        place = CONTROL_PARTNERS.index(partners)
        return [controls_of(config)[place] for config in configs]
    return configs


def _own_alpha(data: str, mix: str) -> float | None:
    recipe = config_for(data, mix=mix).recipe
    return recipe.alpha if recipe is not None else -1.0


def select_lines(
    reproduction: Reproduction, mixes: Iterable[str] | None, methods: Iterable[str] = ()
) -> Reproduction:
    """Return a reproduction with the lines of some mixes, and with lines of other methods.

    Args:
        reproduction: A table or figure of the paper.
        mixes: Keep the lines of these mixes only; None keeps all. A table of accuracies gets a new
            line for a mix that the paper does not have, such as a plugin.
        methods: Methods whose accuracies are added, with the same mixes.
    """
    lines = reproduction.lines
    own = dict(lines[0].settings)
    extends = reproduction.panels[0].title == ACCURACY and own.keys() == {"method", "mix"}
    if mixes is not None:
        mixes = list(mixes)
        others = [mix for mix in mixes if mix not in LABELS and mix != "none"] if extends else []
        lines = tuple(line for line in lines if line.settings["mix"] in mixes)
        lines += tuple(_line(own["method"], f"+ {mix}", {**own, "mix": mix}) for mix in others)
    for method in methods if extends else ():
        lines += tuple(
            _line(method, line.label.partition(" ")[2], {**line.settings, "method": method})
            for line in lines
            if line.settings["method"] == own["method"]
        )
    return replace(reproduction, lines=lines)


def _line(method: Any, rest: str, settings: Mapping[str, Any]) -> Line:
    return Line(f"{display(str(method))} {rest}".strip(), settings)
