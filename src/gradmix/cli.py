"""The command line: parse, call, print. PyTorch is imported only when something is computed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gradmix import __version__
from gradmix.arguments import (
    ManyValues,
    parse_class_order,
    parse_options,
    parse_seeds,
    parse_transforms,
)
from gradmix.errors import GradMixError

if TYPE_CHECKING:
    from gradmix.data import Benchmark
    from gradmix.experiments.config import RunConfig
    from gradmix.experiments.results import ResultFolder, RunResult

app = typer.Typer(
    help="Class-incremental learning with gradient-based selective mixup.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
output = Console(highlight=False)


def main() -> None:
    """Entry point: known errors become one line and exit code 2, Ctrl-C exit code 130."""
    from gradmix.terminal import messages

    try:
        app(standalone_mode=True)
    except GradMixError as error:
        messages.print(f"[bold red]error:[/] {error}", soft_wrap=True, markup=True)
        sys.exit(2)
    except KeyboardInterrupt:
        messages.print("stopped")
        sys.exit(130)


def _show_version(value: bool) -> None:
    if value:
        output.print(f"gradmix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Class-incremental learning with gradient-based selective mixup."""


@app.command(cls=ManyValues)
def run(
    data: Annotated[str, typer.Option(help="Data set: see `gradmix list`.")],
    method: Annotated[str, typer.Option(help="Basis method.")] = "er",
    mix: Annotated[
        str, typer.Option(help="Mix by name, or partners:blend:labels, or none.")
    ] = "gradmix+",
    seeds: Annotated[list[str] | None, typer.Option(help="Like 0 1 2 or 0-4. [default: 0]")] = None,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    again: Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    model: Annotated[str | None, typer.Option(help="Network.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Per task.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of SGD.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    lr_steps: Annotated[
        list[int] | None, typer.Option(help="Epochs at which lr falls to a tenth.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="New samples per step.")] = None,
    replay_batch_size: Annotated[int | None, typer.Option(help="Replayed ones.")] = None,
    exemplars: Annotated[int | None, typer.Option(help="Memory per class.")] = None,
    memory_total: Annotated[int | None, typer.Option(help="Or memory in all.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Of the mix's Beta distribution.")] = None,
    head: Annotated[str | None, typer.Option(help="fixed or growing.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="The method's own settings, like alpha=0.3.")
    ] = None,
    tau: Annotated[float | None, typer.Option(help="Of Remix's label rule.")] = None,
    tables: Annotated[
        int | None, typer.Option(help="Pair tables over λ; 1 is Algorithm 1's.")
    ] = None,
    increments: Annotated[
        list[int] | None, typer.Option(help="Classes per task: one number, or one for each.")
    ] = None,
    class_order: Annotated[
        str | None, typer.Option(help="natural, seed:1993, or classes like 3,1,0,2.")
    ] = None,
    transforms: Annotated[
        list[str] | None, typer.Option(help="Of training images: crop, flip, randaugment; none.")
    ] = None,
    validation: Annotated[int | None, typer.Option(help="Training samples to hold out.")] = None,
    evaluate_on: Annotated[str | None, typer.Option(help="test or validation.")] = None,
    criterion_exemplars: Annotated[int | None, typer.Option(help="Per new class.")] = None,
    pairing: Annotated[str | None, typer.Option(help="one-to-one or all-pairs.")] = None,
    average: Annotated[str | None, typer.Option(help="sample or class.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of PyTorch. [default: 1]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed or 16-mixed.")] = None,
) -> None:
    """Learn a data set class by class, once for every seed, and write a result file for each.

    Defaults are the paper's protocol for the data set. Finished runs are kept: what OUT
    already has is not repeated, and Ctrl-C loses only the run it interrupts.
    """
    from gradmix.experiments.config import configs_for_seeds
    from gradmix.experiments.results import ResultFolder
    from gradmix.experiments.run import load_benchmark

    configs = configs_for_seeds(
        data,
        parse_seeds(seeds or ["0"]),
        method=method,
        mix=mix,
        model=model,
        epochs=epochs,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        lr_steps=None if lr_steps is None else tuple(lr_steps),
        batch_size=batch_size,
        replay_batch_size=replay_batch_size,
        exemplars_per_class=exemplars,
        memory_total=memory_total,
        alpha=alpha,
        tables=tables,
        tau=tau,
        head=head,
        options=parse_options(option),
        increments=None if increments is None else tuple(increments),
        class_order=parse_class_order(class_order),
        transforms=parse_transforms(transforms),
        validation=validation,
        evaluate_on=evaluate_on,
        criterion_exemplars=criterion_exemplars,
        pairing=pairing,
        average=average,
        threads=threads,
        device=device,
        precision=precision,
    )
    benchmark = load_benchmark(configs[0])
    folder = ResultFolder(out)
    results, finished = _run_all(configs, benchmark, folder, again=again)
    if as_json:
        print(json.dumps([_summary(result, folder) for result in results], indent=2))  # noqa: T201
    elif results:
        from gradmix.terminal import results_table

        output.print(results_table({f"{data} {method} {mix}": results}))
        output.print(f"results in {folder.path}", soft_wrap=True)
    if not finished:
        raise typer.Exit(130)


def _run_all(
    configs: list[RunConfig],
    benchmark: Benchmark,
    folder: ResultFolder | None,
    *,
    again: bool = False,
) -> tuple[list[RunResult], bool]:
    """Run what is not there yet; results so far, and whether all of them."""
    from gradmix.experiments.run import run as run_one
    from gradmix.terminal import follow, messages, showing_progress

    results: list[RunResult] = []
    try:
        with showing_progress() as progress:
            for config in configs:
                known = None if folder is None or again else folder.find(config.to_json())
                if known is not None:
                    messages.print(f"seed {config.seed}: kept from before (--again repeats it)")
                    results.append(known)
                    continue
                observe = follow(progress, config, every_task=folder is not None)
                result = run_one(config, observe, benchmark)
                if folder is not None:
                    folder.save(result)
                results.append(result)
    except KeyboardInterrupt:
        messages.print(f"stopped: {len(results)} of {len(configs)} runs are finished and kept")
        return results, False
    return results, True


def _summary(result: RunResult, folder: ResultFolder) -> dict[str, Any]:
    from gradmix.experiments.results import result_name

    path = folder.path / result_name(result.config)
    return {
        "file": str(path),
        "config": result.config,
        "metrics": result.metrics,
        "seconds": result.seconds,
    }


@app.command()
def demo() -> None:
    """Show in under a minute what GradMix buys over plain replay, Mixup and Remix."""
    from gradmix.experiments.demo import MIXES, SEEDS, demo_configs
    from gradmix.experiments.run import load_benchmark
    from gradmix.terminal import forgetting_chart, results_table

    configs = demo_configs()
    c = configs[0]
    output.print(
        f"Learning 1,797 handwritten digits two classes at a time, with {c.exemplars_per_class} "
        f"examples of each old class in memory.\nSettings: {c.model}, {c.epochs} epochs per task, "
        f"SGD lr {c.lr} momentum {c.momentum}, {c.batch_size} new + {c.replay_batch_size} replayed "
        f"samples per step.\nThey were fixed on seeds 0 to 4; these are seeds "
        f"{SEEDS[0]} to {SEEDS[-1]}, whichever row wins.",
        soft_wrap=True,
    )
    results, finished = _run_all(configs, load_benchmark(configs[0]), folder=None)
    rows = {
        "ER" if mix == "none" else f"ER + {mix}": [r for r in results if r.config["mix"] == mix]
        for mix in MIXES
    }
    rows = {label: found for label, found in rows.items() if found}
    if rows:
        output.print(results_table(rows))
        output.print(forgetting_chart(rows))
    if not finished:
        raise typer.Exit(130)


@app.command(name="list")
def list_all() -> None:
    """What there is: data sets, methods, mixes and networks, each with its source."""
    from gradmix.data import DATASETS
    from gradmix.methods import METHODS
    from gradmix.mixing import ABOUT
    from gradmix.models import MODELS

    kinds: dict[str, dict[str, tuple[str, str]]] = {
        "data sets": {name: (info.summary, info.source) for name, info in DATASETS.items()},
        "methods": {name: (info.summary, info.source) for name, info in METHODS.items()},
        "mixes": ABOUT,
        "models": {name: (info.summary, info.source) for name, info in MODELS.items()},
    }
    for kind, entries in kinds.items():
        table = Table("name", "what", "source", title=kind, title_justify="left", box=None)
        for name, (summary, source) in entries.items():
            table.add_row(name, summary, source)
        output.print(table)
        output.print()
    output.print("any mix of your own: partners:blend:labels, like gradient:cutmix:remix")
