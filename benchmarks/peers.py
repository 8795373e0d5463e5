"""Compare gradmix with Avalanche 0.6, in a separate environment, and with the machine's limit."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.loop import STEPS, _minimal_steps, last_task, mnist_like, steps_of
from benchmarks.timing import seconds, spread

ROOT = Path(__file__).parent.parent
PEER = Path(__file__).with_name("avalanche_peer.py")
NEW = STEPS * 64  # new samples of an epoch
ROUNDS = 3  # processes of the peer, each with three experiences


def environment() -> Path:
    """Return Avalanche's Python; `GRADMIX_AVALANCHE` may name an environment that has Avalanche."""
    folder = Path(os.environ.get("GRADMIX_AVALANCHE", ROOT / ".avalanche"))
    python = folder / "bin" / "python"
    there = any(folder.glob("lib/*/site-packages/avalanche"))
    if not there and "GRADMIX_AVALANCHE" not in os.environ:
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "avalanche-lib==0.6.0"]
        subprocess.run([*install, "-c", ROOT / "constraints.txt"], check=True)
    return python


def peer_epochs(method: str, before: int, data: str) -> Iterator[float]:
    """Yield the processor seconds of Avalanche's epochs on the tasks after `before`."""
    command = [environment(), PEER, method, str(before), data]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, text=True, env=one_thread, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        for _ in range(5 - before):
            process.stdin.write("go\n")
            process.stdin.flush()
            yield float(process.stdout.readline())


def epoch_seconds(steps: Iterator[object]) -> Callable[[], float]:
    def epoch() -> float:
        return seconds(lambda: [next(steps) for _ in range(STEPS)])

    epoch()  # warms up
    return epoch


def limit() -> Callable[[], float]:
    """Compute only the matrix products of an epoch, on existing tensors."""
    shapes = [(784, 256), (256, 256), (256, 10)]
    products = []
    for first, (inputs, outputs) in enumerate(shapes):
        x, w, g = torch.rand(128, inputs), torch.rand(outputs, inputs), torch.rand(128, outputs)
        products += [(x, w.T), (g.T, x)] + ([(g, w)] if first else [])
    out = [a @ b for a, b in products]

    def epoch() -> float:
        def work() -> None:
            for _ in range(STEPS):
                for (a, b), result in zip(products, out, strict=True):
                    torch.mm(a, b, out=result)

        return seconds(work)

    epoch()
    return epoch


def compared(ours: Callable[[int], float], method: str, before: int, data: str, rounds: int) -> str:
    """Return our throughput over theirs, and both throughputs; the epochs take turns."""
    ratios, mine, its = [], [], []
    for _ in range(rounds):
        for task, theirs in enumerate(peer_epochs(method, before, data)):
            own = ours(before + task)
            ratios.append(theirs / own)
            mine.append(NEW / own)
            its.append(2 * 5000 / theirs)
            if method != "er":
                break  # the task named
    return (
        f"{spread(ratios)} "
        f"({statistics.median(mine):.0f} over {statistics.median(its):.0f} new samples/s)"
    )


def er_over_avalanche() -> str:
    tasks = mnist_like()
    epochs = {t: epoch_seconds(steps_of(last_task(tasks[: t + 1]))) for t in (2, 3, 4)}
    parts = []
    for data, what in (("images", "as SplitMNIST has it"), ("ready", "inputs ready made")):
        found = compared(lambda task: epochs[task](), "er", 2, data, ROUNDS)
        parts.append(f"{what}: {found}")
    return "ER over Avalanche's, tasks 3 to 5 (at least 7): " + "; ".join(parts)


def er_over_limit() -> str:
    """Compare ER with the limit, epochs in turn: the median and the fastest tenth."""
    tasks = mnist_like()
    ours, minimal = (
        epoch_seconds(steps) for steps in (steps_of(last_task(tasks)), _minimal_steps(tasks))
    )
    bound = limit()
    rounds = [(bound(), ours(), minimal()) for _ in range(40)]
    least, *loops = (statistics.quantiles(times, n=10)[0] for times in zip(*rounds, strict=True))
    quiet_ours, quiet_minimal = (least / loop for loop in loops)
    return (
        "throughput over that of the matrix products alone: ER (at least 0.70) "
        f"{spread([b / o for b, o, _ in rounds])}, fastest tenth {quiet_ours:.3f}; minimal loop "
        f"{spread([b / m for b, _, m in rounds])}, fastest tenth {quiet_minimal:.3f}; "
        f"limit {NEW / statistics.median(b for b, _, _ in rounds):.0f} new samples/s"
    )


def mir_over_avalanche() -> str:
    """Compare MIR on task 3, because Avalanche's MIR retrieves nothing on task 2."""
    tasks = mnist_like()
    ours = epoch_seconds(
        steps_of(
            last_task(
                tasks[:3], method="mir", few=128, criterion_exemplars=64, options={"candidates": 2}
            )
        )
    )
    parts = [
        f"{what}: {compared(lambda task: ours(), 'mir', 2, data, ROUNDS)}"
        for data, what in (("images", "as SplitMNIST has it"), ("ready", "inputs ready made"))
    ]
    return "MIR over Avalanche's, task 3 (at least 1.5): " + "; ".join(parts)


def gss_over_avalanche() -> str:
    """Compare GSS in the epoch of task 2 in which samples compete, selection included."""
    tasks = mnist_like()[:2]

    def ours(task: int) -> float:
        training = last_task(tasks, method="gss-stream", criterion_exemplars=128)
        steps = steps_of(training)

        def epoch() -> None:
            for _ in range(STEPS):
                next(steps)
            training.method.end_task(training._tasks[-1].train)

        return seconds(epoch)

    parts = [
        f"{what}: {compared(ours, 'gss', 1, data, ROUNDS)}"
        for data, what in (("images", "as SplitMNIST has it"), ("ready", "inputs ready made"))
    ]
    return "GSS over Avalanche's, task 2 (at least 5): " + "; ".join(parts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = {
        "er": er_over_avalanche,
        "limit": er_over_limit,
        "mir": mir_over_avalanche,
        "gss": gss_over_avalanche,
    }
    for name in sys.argv[1:] or names:
        print(names[name](), flush=True)
