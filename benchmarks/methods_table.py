"""Measure every method, plain and with the default mix: accuracy over seeds, and time over ER's.

    python -m benchmarks.methods_table --out runs/methods --seeds 0-2 --epochs 20 --jobs 2

The default mix is the one of `gradmix run`, `balanced-remix`. With at most 10 epochs its τ is 0.5,
the classifier's value for fewer than 2,000 steps. Methods that replay nothing use `mixup`.

A sweep computes the runs that OUT lacks, so the command can be stopped and started again. The
output is two Markdown tables. The first has the average accuracy, mean ± standard deviation over
the seeds; a run that failed or is missing is "–". The second has the time of a plain run and of one
of its epochs, as multiples of ER's. For times, use --jobs 1 on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from itertools import product

from gradmix import ResultStore, config_for
from gradmix._setting_types import parse_seeds
from gradmix.methods import METHODS
from gradmix.runs.config import RunConfig
from gradmix.runs.groups import display
from gradmix.runs.measures import summarize
from gradmix.runs.results import RunResult
from gradmix.runs.run import Outcome
from gradmix.runs.sweep import Sweep, run_sweep
from gradmix.settings import FEW_STEPS_PRESET

DATA = ("mnist", "fashion-mnist")
TRAINED = tuple(name for name, info in METHODS.items() if info.build.trains)
FEW_EPOCHS = 10  # with which τ = 0.5; 1,870 steps per task of MNIST
PARTS = ("plain", "with the mix")
Results = dict[tuple[str, str, str], list[RunResult]]  # by data set, method and mix


def default_mix(method: str) -> str:
    return str(RunConfig.model_fields["mix"].default) if replays(method) else "mixup"


def replays(method: str) -> bool:
    return METHODS[method].build.replays


def configurations(
    data: Sequence[str], methods: Sequence[str], seeds: Sequence[int], epochs: int | None
) -> list[RunConfig]:
    changes = {} if epochs is None else {"epochs": epochs}
    few = epochs is not None and epochs <= FEW_EPOCHS
    configs = []
    for name, seed, method in product(data, seeds, methods):
        common = {"method": method, "seed": seed, "device": "cpu", **changes}
        preset = FEW_STEPS_PRESET if few and replays(method) else {}
        configs.append(config_for(name, mix="none", **common))
        configs.append(config_for(name, mix=default_mix(method), **preset, **common))
    return configs


def by_kind(results: Sequence[RunResult]) -> Results:
    kinds: Results = {}
    for result in results:
        config = result.config
        kinds.setdefault((config["data"], config["method"], config["mix"]), []).append(result)
    return kinds


def run_seconds(result: RunResult) -> float:
    return float(result.seconds["train"] + result.seconds["criterion"])


def epoch_seconds(result: RunResult) -> float:
    """Return the seconds per epoch of all stages, also FOSTER's compression and GDumb's passes."""
    return run_seconds(result) / sum(len(stage["loss"]) for stage in result.epochs)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def accuracy_table(kinds: Results, data: Sequence[str], methods: Sequence[str]) -> str:
    def cell(name: str, method: str, mix: str) -> str:
        found = kinds.get((name, method, mix), [])
        values = [result.metrics["average_accuracy"] for result in found]
        return summarize(values).text() if values else "–"

    columns = ["Method", "Mix", *(f"{display(n)}, {what}" for n in data for what in PARTS)]
    rows = []
    for method in methods:
        mixes = ("none", default_mix(method))
        cells = [cell(name, method, mix) for name in data for mix in mixes]
        rows.append([f"`{method}`", f"`{mixes[1]}`", *cells])
    return markdown(columns, rows)


def time_table(kinds: Results, data: Sequence[str], methods: Sequence[str]) -> str:
    def cell(name: str, method: str, seconds: Callable[[RunResult], float]) -> str:
        own, base = (kinds.get((name, one, "none"), []) for one in (method, "er"))
        if not own or not base:
            return "–"
        ratio = statistics.fmean(map(seconds, own)) / statistics.fmean(map(seconds, base))
        return f"{ratio:.2f}"

    columns = ["Method", *(f"{display(n)}, {what} / ER" for n in data for what in ("run", "epoch"))]
    kinds_of_time = (run_seconds, epoch_seconds)
    rows = [
        [f"`{method}`", *(cell(name, method, time) for name in data for time in kinds_of_time)]
        for method in methods
    ]
    return markdown(columns, rows)


def report(sweep: Sweep, outcome: Outcome | None) -> None:
    if outcome is not None and outcome.status != "kept":
        config = outcome.config
        what = f"{config.data} {config.method} {config.mix} seed {config.seed}"
        print(f"{sweep.settled} of {sweep.todo}: {what}: {outcome.status}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs/methods", help="folder of the results")
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--methods", nargs="+", default=TRAINED)
    parser.add_argument("--seeds", nargs="+", default=["0-2"])
    parser.add_argument("--epochs", type=int, help="default: the protocol of the data set")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    configs = configurations(given.data, given.methods, parse_seeds(given.seeds), given.epochs)
    sweep = run_sweep(configs, ResultStore(given.out), jobs=given.jobs, on_progress=report)
    kinds = by_kind(sweep.results)
    print("\n" + accuracy_table(kinds, given.data, given.methods))
    print("\n" + time_table(kinds, given.data, given.methods))
    for failure in sweep.failures:
        print(f"failed: {failure}")


if __name__ == "__main__":
    main()
