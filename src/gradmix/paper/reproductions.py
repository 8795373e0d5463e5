"""The paper's tables and figures by name: the runs that each needs, and what is read from them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradmix.errors import InputError, UnknownNameError
from gradmix.paper.numbers import ACCURACY, paper_tables
from gradmix.runs.config import RunConfig, config_for
from gradmix.runs.results import RunResult

HERE = ("mnist", "fashion-mnist")
"""What a CPU can do at the paper's scale."""

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
ABLATION = {
    "gradient-keep-original": "Original: the sample itself",
    "shuffle": "Random: the pair as drawn",
    "gradient": "gradmix+: the best class's",
}
VARIED = {"exemplars_per_class": "N=", "alpha": "α=", "model": ""}
"""Settings that a label mentions, and how."""

SCALES = ("full", "small")
SMALL_EPOCHS = 12
SMALL_MODELS = {
    "mlp": "mlp-small",
    "resnet18": "resnet18-tiny",
    "resnet18-imagenet": "resnet18-tiny",
    "vit": "vit-small",
}
"""What `scale="small"` has instead, so that one core can do it."""

Form = Literal["table", "lines", "bars", "heatmap"]


@dataclass(frozen=True)
class Line:
    """A row of a table or a curve of a figure: what is run, and the paper's row for it.

    The settings are those of `config_for`, and two more ways to say a mix, as the paper's tables
    do: `randaugment` instead of one, and `partners` that gradmix+ has instead of its own.
    """

    label: str
    settings: Mapping[str, Any]
    paper: Mapping[str, str | float] | None = None


@dataclass(frozen=True)
class Panel:
    """What is read from a run: a number, or several by name."""

    title: str
    read: Callable[[RunResult], Mapping[str, float]]  # a single number has the name ""
    form: Form = "table"
    across: str = ""  # what the names are
    paper: Mapping[str, str | float] | None = None  # the paper's row, where the line has none


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper."""

    name: str
    kind: Literal["table", "figure"]
    about: str
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    data: tuple[str, ...] = HERE  # on which it is run unless told
    digits: int = 3


# --- what there is ------------------------------------------------------------------------------


def reproductions() -> dict[str, Reproduction]:
    """All of them by name."""
    accuracy = [_accuracy_table(key) for key, t in paper_tables().items() if t.quantity == ACCURACY]
    return {one.name: one for one in (*accuracy, *_measured_tables(), *_figures())}


def find_reproduction(name: str) -> Reproduction:
    """By name; a wrong one suggests the nearest."""
    known = reproductions()
    if name not in known:
        raise UnknownNameError("reproduction", name, known)
    return known[name]


def _accuracy_table(key: str) -> Reproduction:
    table = paper_tables()[key]
    lines = tuple(line for row in table.rows for line in _lines_of(row.setting))
    here = tuple(data for data in HERE if data in table.rows[0].values)
    data = HERE if key == "compatibility" else here or tuple(table.rows[0].values)
    panel = Panel("average accuracy", _metric("average_accuracy"))
    return Reproduction(key, "table", table.caption, lines, (panel,), data)


def _lines_of(paper: Mapping[str, str | float]) -> list[Line]:
    """Our lines beside a row of the paper; its GradMix is held against both of ours."""
    if "partners" in paper:
        return [Line(ABLATION[str(paper["partners"])], {**paper, "mix": "gradmix+"}, paper)]
    varied = [f", {VARIED[name]}{paper[name]}" for name in VARIED if name in paper]
    mixes = ("gradmix", "gradmix+") if paper["mix"] == "gradmix" else (str(paper["mix"]),)
    labels = [" ".join([str(paper["method"]).upper(), LABELS.get(mix, "")]) for mix in mixes]
    return [
        Line(label.strip() + "".join(varied), {**paper, "mix": mix}, paper)
        for label, mix in zip(labels, mixes, strict=True)
    ]


PLAIN, MIXUP, LITERAL, GRADMIX = (
    Line(f"ER {LABELS.get(mix, '')}".strip(), {"method": "er", "mix": mix})
    for mix in ("none", "mixup", "gradmix", "gradmix+")
)
RATES = replace(MIXUP, settings={**MIXUP.settings, "analyses": ("detrimental-rate",)})
ALONG = ("approximation-error", "class-distance", "precision-recall")
PAIRS = tuple(
    replace(line, settings={**line.settings, "analyses": ALONG}) for line in (LITERAL, GRADMIX)
)
"""Runs that take along all that is measured of GradMix."""


def _measured_tables() -> list[Reproduction]:
    """Tables of what runs measure beside accuracy."""
    rate, agreement, runtime = (
        paper_tables()[name] for name in ("detrimental-rate", "precision-recall", "runtime")
    )
    of_plain, of_gradmix = ({"method": "er", "mix": mix} for mix in ("none", "gradmix"))
    return [
        Reproduction(
            rate.key,
            "table",
            rate.caption,
            (RATES,),
            tuple(
                Panel(title, _mean(rate.key, key), paper=rate.rows[0].setting)
                for title, key in (
                    ("rate, whole network", "whole_network"),
                    ("rate, last layer", "last_layer"),
                )
            ),
        ),
        Reproduction(
            agreement.key,
            "table",
            agreement.caption,
            PAIRS,
            tuple(
                Panel(name, _mean(agreement.key, name), paper={"mix": "gradmix", "measure": name})
                for name in ("precision", "recall")
            ),
        ),
        Reproduction(
            runtime.key,
            "table",
            "Seconds of training per task, the criterion's included; the paper's are of a GPU.",
            (replace(PLAIN, paper=of_plain), MIXUP, replace(GRADMIX, paper=of_gradmix)),
            (Panel("seconds per task", _seconds_per_task),),
            digits=1,
        ),
    ]


def _figures() -> list[Reproduction]:
    after = Panel("accuracy after each task", _after_tasks, "lines", "task")
    classes = Panel("accuracy of each class after the last task", _of_classes, "bars", "class")
    pairs = Panel("samples mixed in the last task", _pairs, "heatmap", "class → partner")
    every = tuple(replace(line, paper=None) for line in _accuracy_table("main-er").lines)
    error, distance = "approximation-error", "class-distance"
    return [
        Reproduction(
            "forgetting",
            "figure",
            "Accuracy after each task, and of each class after the last.",
            (PLAIN, MIXUP, GRADMIX),
            (after, classes),
        ),
        Reproduction(
            "sequential", "figure", "Accuracy after each task, every mix.", every, (after,)
        ),
        Reproduction(
            "heatmap",
            "figure",
            "How often a class was mixed with another in the last task.",
            (GRADMIX,),
            (pairs,),
            digits=0,
        ),
        Reproduction(
            error,
            "figure",
            paper_tables()[error].caption,
            PAIRS,
            (
                Panel("RMSE against λ", _curve, "lines", "λ"),
                Panel("mean over λ", _mean(error, "mean_of_samples"), paper={"mix": "gradmix"}),
            ),
        ),
        Reproduction(
            distance,
            "figure",
            "Cosine distance between the gradients of two samples, within and between classes.",
            PAIRS,
            (Panel("mean cosine distance", _distances, "bars", "samples"),),
        ),
        Reproduction(
            "runtime-per-epoch",
            "figure",
            "Time of the criterion, and of planning the batches, per epoch.",
            (GRADMIX,),
            (Panel("milliseconds per epoch", _criterion_by_task, "lines", "task"),),
            digits=1,
        ),
    ]


# --- what is read from a run --------------------------------------------------------------------


def _metric(name: str) -> Callable[[RunResult], Mapping[str, float]]:
    return lambda result: {"": result.metrics[name]}


def mean_over_tasks(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of a measurement over tasks, within a task over the epochs it was taken at."""
    by_task = defaultdict(list)
    for entry in entries:
        by_task[entry["task"]].append(entry[key])
    return statistics.fmean(statistics.fmean(values) for values in by_task.values())


def _mean(analysis: str, key: str) -> Callable[[RunResult], Mapping[str, float]]:
    return lambda result: {"": mean_over_tasks(result.analysis[analysis], key)}


def _distances(result: RunResult) -> Mapping[str, float]:
    return {
        name: _mean("class-distance", key)(result)[""]
        for name, key in (("within a class", "within"), ("between classes", "between"))
    }


def _curve(result: RunResult) -> Mapping[str, float]:
    entries = result.analysis["approximation-error"]
    curves = zip(*(entry["of_samples"] for entry in entries), strict=True)
    return {
        f"{lam:g}": statistics.fmean(values)
        for lam, values in zip(entries[0]["lambdas"], curves, strict=True)
    }


def _after_tasks(result: RunResult) -> Mapping[str, float]:
    return {
        str(task + 1): statistics.fmean(row[: task + 1]) for task, row in enumerate(result.accuracy)
    }


def _of_classes(result: RunResult) -> Mapping[str, float]:
    return dict(zip(result.class_names, result.class_accuracy[-1], strict=True))


def _pairs(result: RunResult) -> Mapping[str, float]:
    return {
        f"{own} → {other}": float(count)
        for own, row in zip(result.class_names, result.pair_counts[-1], strict=True)
        for other, count in zip(result.class_names, row, strict=True)
    }


def _seconds_per_task(result: RunResult) -> Mapping[str, float]:
    seconds = result.seconds["train"] + result.seconds["criterion"]
    return {"": seconds / len(result.tasks)}


def _criterion_by_task(result: RunResult) -> Mapping[str, float]:
    epochs, seconds = result.config["epochs"], result.seconds["criterion_by_task"]
    return {str(task + 1): 1000 * total / epochs for task, total in enumerate(seconds)}


# --- runs ---------------------------------------------------------------------------------------


def configs_of(line: Line, data: str, seeds: Sequence[int], scale: str = "full") -> list[RunConfig]:
    """A run for every seed."""
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)
    settings = dict(line.settings)
    usual = config_for(data, mix="gradmix+")
    if settings["mix"] == "randaugment":
        settings |= {"mix": "none", "transforms": (*usual.transforms, "randaugment")}
    partners = settings.pop("partners", "gradient")
    if partners != "gradient":
        assert usual.recipe is not None
        settings |= {"mix": f"{partners}:linear:remix", "tau": usual.recipe.tau}
        settings |= {} if partners == "shuffle" else {"tables": usual.recipe.tables}
    if settings.get("alpha") == _own_alpha(data, settings["mix"]):
        del settings["alpha"]  # so that it is the same run as without
    if scale == "small":
        model = settings.get("model", usual.model)
        settings |= {"model": SMALL_MODELS.get(model, model), "lr_steps": ()}
        settings["epochs"] = min(usual.epochs, SMALL_EPOCHS)
    return [config_for(data, seed=seed, **settings) for seed in seeds]


def _own_alpha(data: str, mix: str) -> float | None:
    recipe = config_for(data, mix=mix).recipe
    return recipe.alpha if recipe is not None else -1.0


def only_mixes(chosen: Sequence[Reproduction], mixes: Iterable[str]) -> list[Reproduction]:
    """With the lines of some mixes only; those without any of them are left out."""
    mixes = set(mixes)
    known = {str(line.settings["mix"]) for one in chosen for line in one.lines}
    for mix in sorted(mixes - known):
        raise InputError(
            f"mix is {mix!r}, which {', '.join(one.name for one in chosen)} does not have; "
            f"there is {', '.join(sorted(known))}"
        )
    kept = [
        replace(one, lines=tuple(line for line in one.lines if line.settings["mix"] in mixes))
        for one in chosen
    ]
    return [one for one in kept if one.lines]
