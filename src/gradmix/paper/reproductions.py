"""The paper's tables and figures by name: their lines, and what they read from each run.

A line has a label and the runs that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradmix.errors import UnknownNameError
from gradmix.paper.numbers import ACCURACY, Setting, paper_tables
from gradmix.runs import measures
from gradmix.runs.comparisons import uses_gradients
from gradmix.runs.config import CONTROL_PARTNERS, RunConfig, config_for, controls_of
from gradmix.runs.groups import display, format_setting
from gradmix.runs.tables import Chart

LABELS = {
    "none": "",
    "mixup": "+ Mixup",
    "manifold-mixup": "+ Manifold Mixup",
    "cutmix": "+ CutMix",
    "remix": "+ Remix",
    "balanced-mixup": "+ Balanced-MixUp",
    "randaugment": "+ RandAugment",
    "gradmix": "+ GradMix (Algorithm 1)",
    "gradmix+": "+ gradmix+",
}
CONTROLS = {"class-balanced": "balanced control of", "shuffle": "shuffled control of"}
"""The gradient-free controls of a mix by their partners."""

SCALES = ("full", "small")
SMALL_EPOCHS = 12
SMALL_MODELS = {
    "mlp": "mlp-small",
    "resnet18": "resnet18-tiny",
    "resnet18-imagenet": "resnet18-tiny",
    "vit": "vit-small",
}
"""The networks of `scale="small"`, which fit one core."""


@dataclass(frozen=True)
class Line:
    """A row of a table or a curve of a figure: the settings of its runs and the paper's row.

    The settings are those of `config_for`, with two additions from the paper's tables: the mix
    `randaugment`, and `partners` that replace the partners of GradMix.
    """

    label: str
    settings: Mapping[str, Any]
    paper: Setting | None = None
    varied: str = ""  # the settings in the label besides method and mix


def line_for(settings: Mapping[str, Any], paper: Setting | None = None) -> Line:
    """Return a line whose label has the method, the mix or control, and the other settings.

    >>> line_for({"method": "mir", "mix": "gradmix+", "partners": "shuffle", "epochs": 5}).label
    'MIR + shuffled control of gradmix+, epochs 5'
    """
    mix, partners = settings["mix"], settings.get("partners")
    what = LABELS.get(mix, f"+ {mix}")
    if partners:
        what = f"+ {CONTROLS[partners]} {'GradMix' if mix == 'gradmix' else mix}"
    label = f"{display(settings['method'])} {what}".strip()
    others = (name for name in settings if name not in ("method", "mix", "partners"))
    varied = ", ".join(format_setting(name, settings[name]) for name in others)
    return Line(f"{label}, {varied}" if varied else label, settings, paper, varied)


def with_controls(
    settings: Mapping[str, Any], paper: Setting | None = None, others: Sequence[Setting] = ()
) -> list[Line]:
    """Return a line, followed by the gradient-free controls of its mix.

    If the other rows of the table have Mixup, that is the shuffled control of gradmix.
    """
    controls = list(CONTROLS) if uses_gradients(settings) else []
    if settings["mix"] == "gradmix" and {**settings, "mix": "mixup"} in others:
        controls.remove("shuffle")
    lines = (line_for({**settings, "partners": partners}) for partners in controls)
    return [line_for(settings, paper), *lines]


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
        # Everything but the partners is as in gradmix+.
        assert usual.recipe is not None
        settings |= {"mix": f"{partners}:linear:remix", **usual.recipe.own_settings}
    recipe = config_for(data, mix=settings["mix"]).recipe
    if recipe is not None and settings.get("alpha") == recipe.alpha:
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


# --- tables and figures ---------------------------------------------------------------------------

CPU_DATA = ("mnist", "fashion-mnist")
"""The data sets that a CPU can run at the paper's scale."""

ABLATION = {
    "gradient-keep-original": "Original: the sample itself",
    "shuffle": "Random: the drawn pair",
    "gradient": "gradmix+: the best class",
}
"""Labels of the ablation by partners."""


@dataclass(frozen=True)
class Panel:
    """What is read from a run, and how it is shown."""

    title: str
    read: measures.Read
    chart: Chart = "table"
    across: str = ""  # what the names of the numbers are
    paper: Setting | None = None  # the paper's row, where the line has none


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper."""

    name: str
    about: str
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    data: tuple[str, ...] = CPU_DATA  # the default data sets
    digits: int = 3
    scale: str = "full"

    @property
    def title(self) -> str:
        """The name, with every scale other than the paper's."""
        return self.name if self.scale == "full" else f"{self.name} ({self.scale} scale)"

    @property
    def kind(self) -> str:
        """Whether it is a table or a figure."""
        return "table" if all(panel.chart == "table" for panel in self.panels) else "figure"


def reproductions() -> dict[str, Reproduction]:
    """Return all reproductions by name."""
    accuracy = [_accuracy_table(key) for key, t in paper_tables().items() if t.quantity == ACCURACY]
    return {one.name: one for one in (*accuracy, *_measured_tables(), *_figures())}


def find_reproduction(name: str, scale: str = "full") -> Reproduction:
    """Return a reproduction by name; UnknownNameError suggests the nearest name."""
    known = reproductions()
    if name not in known:
        raise UnknownNameError("reproduction", name, known)
    return replace(known[name], scale=scale)


def _accuracy_table(key: str) -> Reproduction:
    table = paper_tables()[key]
    rows = [row.setting for row in table.rows]
    lines = tuple(line for row in rows for line in _lines_of(row, rows))
    on_cpu = tuple(data for data in CPU_DATA if data in table.rows[0].values)
    data = CPU_DATA if key == "compatibility" else on_cpu or tuple(table.rows[0].values)
    panel = Panel(ACCURACY, measures.metrics("average_accuracy"))
    return Reproduction(key, table.caption, lines, (panel,), data)


def _lines_of(paper: Setting, rows: Sequence[Setting]) -> list[Line]:
    """Return our lines for a row of the paper.

    Its GradMix gets several: gradmix and gradmix+, each with its gradient-free controls. In the
    ablation, the shuffled control is a row of the paper.
    """
    if "partners" in paper:
        settings = {**paper, "mix": "gradmix+"}
        line = Line(ABLATION[str(paper["partners"])], settings, paper)
        controls = [line_for({**settings, "partners": "class-balanced"})]
        return [line, *controls] if paper["partners"] == "gradient" else [line]
    mixes = ("gradmix", "gradmix+") if paper["mix"] == "gradmix" else (paper["mix"],)
    return [line for mix in mixes for line in with_controls({**paper, "mix": mix}, paper, rows)]


PLAIN, MIXUP, ALGORITHM_1, GRADMIX_PLUS = (
    line_for({"method": "er", "mix": mix}) for mix in ("none", "mixup", "gradmix", "gradmix+")
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
    rate_panels = tuple(
        Panel(
            f"rate, {key.replace('_', ' ')}",
            measures.diagnostics({key: (rate.key, key)}),
            paper=MIXUP.settings,
        )
        for key in ("whole_network", "last_layer")
    )
    agreement_panels = tuple(
        Panel(
            name,
            measures.diagnostics({name: (agreement.key, name)}),
            paper={"mix": "gradmix", "measure": name},
        )
        for name in ("precision", "recall")
    )
    return [
        Reproduction(rate.key, rate.caption, (rates,), rate_panels),
        Reproduction(agreement.key, agreement.caption, ANALYSED, agreement_panels),
        Reproduction(
            "runtime",
            "Seconds of training per task, with the criterion; the paper used a GPU.",
            (
                replace(PLAIN, paper=PLAIN.settings),
                MIXUP,
                replace(GRADMIX_PLUS, paper=ALGORITHM_1.settings),
            ),
            (Panel("seconds per task", measures.seconds_per_task),),
            digits=1,
        ),
    ]


def _figures() -> list[Reproduction]:
    every = tuple(replace(line, paper=None) for line in _accuracy_table("main-er").lines)
    after = Panel("accuracy after each task", measures.accuracy_by_task, "lines", "task")
    classes = "accuracy of each class after the last task"
    error = paper_tables()["approximation-error"]
    mean_error = {"mean": (error.key, "mean_of_samples")}
    distances = {
        "within a class": ("class-distance", "within"),
        "between classes": ("class-distance", "between"),
    }
    pairs = "samples mixed in the last task"
    return [
        Reproduction(
            "forgetting",
            "Accuracy after each task, and of each class after the last.",
            (PLAIN, MIXUP, *with_controls(GRADMIX_PLUS.settings)),
            (after, Panel(classes, measures.class_accuracy, "bars", "class")),
        ),
        Reproduction("sequential", "Accuracy of every mix after each task.", every, (after,)),
        Reproduction(
            "heatmap",
            "How often each pair of classes was mixed in the last task.",
            (GRADMIX_PLUS,),
            (Panel(pairs, measures.pair_counts, "heatmap", "class → partner"),),
            digits=0,
        ),
        Reproduction(
            error.key,
            error.caption,
            ANALYSED,
            (
                Panel("RMSE against λ", measures.approximation_curve, "lines", "λ"),
                Panel("mean over λ", measures.diagnostics(mean_error), paper={"mix": "gradmix"}),
            ),
        ),
        Reproduction(
            "class-distance",
            "Cosine distance between the gradients of two samples, within and between classes.",
            ANALYSED,
            (Panel("mean cosine distance", measures.diagnostics(distances), "bars", "samples"),),
        ),
        Reproduction(
            "runtime-per-epoch",
            "Time per epoch of the criterion and of planning the batches.",
            (GRADMIX_PLUS,),
            (Panel("milliseconds per epoch", measures.criterion_milliseconds, "lines", "task"),),
            digits=1,
        ),
    ]


def select_lines(
    reproduction: Reproduction, mixes: Iterable[str] | None, methods: Iterable[str] = ()
) -> Reproduction:
    """Return a reproduction with the lines of some mixes, or all, and with lines of other methods.

    A table of accuracies gets new lines for a mix that the paper does not have, such as a plugin,
    and for its controls; and for each of the other methods, with the same mixes.
    """
    lines = list(reproduction.lines)
    own = dict(lines[0].settings)
    extends = reproduction.panels[0].title == ACCURACY and own.keys() == {"method", "mix"}
    if mixes is not None:
        mixes = list(mixes)
        lines = [line for line in lines if line.settings["mix"] in mixes]
        others = [mix for mix in mixes if mix not in LABELS] if extends else []
        lines += [line for mix in others for line in with_controls({**own, "mix": mix})]
    first = [line.settings for line in lines if line.settings["method"] == own["method"]]
    for method in methods if extends else ():
        lines += [line_for({**settings, "method": method}) for settings in first]
    return replace(reproduction, lines=tuple(lines))
