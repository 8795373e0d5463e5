"""Estimate the cost of a run on many devices, from measured constants and a simulation.

    python -m benchmarks.scaling            # prints the tables of docs/scaling.md
    python -m benchmarks.scaling --measure  # measures the constants of this machine first

Nothing here was run on GPUs. `ASSUMED` has the speed of a device and of its connections; change it
to your hardware. The simulation passes the messages of a ring all-reduce from rank to rank. Ranks
start when their own computation is done, which varies, and every link has a latency and a
bandwidth.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import distributed as dist
from torch import multiprocessing

DEVICES = (1, 8, 64, 512)
EMBEDDING = 2048  # of ResNet-50
BACKBONE = 23.5e6  # parameters of ResNet-50 without its head
FORWARD = 8.2e9  # operations for one image of 224 pixels


@dataclass(frozen=True)
class Assumed:
    """Hardware that was not measured."""

    flops: float = 60e12  # operations per second that a device sustains
    inside: float = 200e9  # bytes per second between devices of a node
    between: float = 25e9  # bytes per second between nodes
    latency_inside: float = 5e-6
    latency_between: float = 20e-6
    per_node: int = 8
    jitter: float = 0.05  # relative standard deviation of the computing time of a step


@dataclass(frozen=True)
class Workload:
    """A stream of classes: ten tasks, 32 new and 32 replayed rows per device and step."""

    name: str
    classes: int
    images_per_class: int
    exemplars_per_class: int
    tasks: int = 10
    tests_per_class: int = 50


WORKLOADS = (
    Workload("ImageNet-1K", 1_000, 1_280, 20),
    Workload("10,000 classes", 10_000, 1_000, 20),
    Workload("100,000 classes", 100_000, 100, 5),
)
ROWS = 32  # new rows per device and step; as many are replayed
ASSUMED = Assumed()

SKETCH_AT = {1_000: (0.033, 0.36 + 0.55), 10_000: (2.1, 4.9 + 8.2), 50_000: (52.0, 33.0 + 47.0)}
"""Seconds of one core, measured (docs/performance.md): the logits pass, and everything else of the
criterion for many classes; 64 features and 2 exemplars per class."""


# --- the simulation -------------------------------------------------------------------------


def ring_seconds(bytes_sent: float, ready: np.ndarray, hardware: Assumed) -> float:
    """Return when a ring all-reduce ends, if rank r starts at ready[r].

    The data are cut into as many pieces as there are ranks. In each of 2 (w − 1) rounds, every rank
    sends a piece to the next one, as soon as it has its piece and the last one was sent.
    """
    ranks = len(ready)
    if ranks == 1:
        return float(ready[0])
    crosses = (np.arange(ranks) + 1) % hardware.per_node == 0
    crosses &= ranks > hardware.per_node
    speed = np.where(crosses, hardware.between, hardware.inside)
    latency = np.where(crosses, hardware.latency_between, hardware.latency_inside)
    link = latency + bytes_sent / ranks / speed  # seconds of one piece on the link r → r + 1
    has = ready.astype(float).copy()
    free = has.copy()  # when the link of rank r is free
    for _ in range(2 * (ranks - 1)):
        sent = np.maximum(has, free) + link
        free = sent
        has = np.maximum(has, np.roll(sent, 1))
    return float(has.max())


def step(work: Workload, devices: int, hardware: Assumed, trials: int = 20) -> tuple[float, float]:
    """Return the seconds of a step: computing alone, and with the exchange of gradients."""
    one = 3 * forward_operations(work)  # the backward pass costs twice the forward pass
    computing = 2 * ROWS * one / hardware.flops
    rng = np.random.default_rng(0)
    ends = [
        ring_seconds(
            gradient_bytes(work), computing * rng.normal(1, hardware.jitter, devices), hardware
        )
        for _ in range(trials)
    ]
    return computing, float(np.mean(ends))


# --- what is computed -----------------------------------------------------------------------


def forward_operations(work: Workload) -> float:
    """Return the operations of a forward pass of one image, head included."""
    return FORWARD + 2 * EMBEDDING * work.classes


def gradient_bytes(work: Workload) -> float:
    """Return the size of the gradient in float32."""
    return 4 * (BACKBONE + EMBEDDING * work.classes)


def steps_per_epoch(work: Workload, devices: int) -> float:
    """Return the steps of an epoch of one task."""
    return work.classes / work.tasks * work.images_per_class / (ROWS * devices)


def criterion_core_seconds(work: Workload) -> float:
    """Return the time of the criterion on one core, interpolated or extended by its exponent."""
    sizes = np.array(list(SKETCH_AT))
    total = np.array([sum(parts) for parts in SKETCH_AT.values()])
    slope = np.diff(np.log(total)) / np.diff(np.log(sizes))
    place = min(int(np.searchsorted(sizes, work.classes, side="right")) - 1, len(slope) - 1)
    return float(total[place] * (work.classes / sizes[place]) ** slope[place])


def embedding_seconds(work: Workload, devices: int, hardware: Assumed) -> float:
    """Return the time to embed the exemplars of every class, in slices."""
    images = work.classes * work.exemplars_per_class
    return images * forward_operations(work) / hardware.flops / devices


def evaluation_seconds(work: Workload, devices: int, hardware: Assumed) -> float:
    """Return the time to evaluate the test images of all classes after a task."""
    images = work.classes * work.tests_per_class
    return images * forward_operations(work) / hardware.flops / devices


def table(hardware: Assumed) -> list[str]:
    rows = [
        "| workload | devices | step: computing / with exchange | sent per rank and step | epoch "
        "| embedding the exemplars, per epoch | evaluation, per task |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in WORKLOADS:
        for devices in DEVICES:
            alone, whole = step(work, devices, hardware)
            traffic = 2 * (devices - 1) / devices * gradient_bytes(work)
            rows.append(
                f"| {work.name} | {devices} | {1e3 * alone:.0f} / {1e3 * whole:.0f} ms "
                f"| {traffic / 1e6:,.0f} MB | {duration(whole * steps_per_epoch(work, devices))} "
                f"| {duration(embedding_seconds(work, devices, hardware))} "
                f"| {duration(evaluation_seconds(work, devices, hardware))} |"
            )
    return rows


def memory_table() -> list[str]:
    rows = [
        "| workload | weights, gradient and momentum | exemplars as pixels | as JPEG of 110 KB "
        "| pair table, exact | criterion on one core |",
        "|---|---|---|---|---|---|",
    ]
    for work in WORKLOADS:
        images = work.classes * work.exemplars_per_class
        exact = f"{5 * work.classes**2 / 1e9:,.3g} GB" if work.classes <= 10_000 else "never built"
        rows.append(
            f"| {work.name} | {3 * gradient_bytes(work) / 1e9:.1f} GB "
            f"| {images * 224 * 224 * 3 / 1e9:,.0f} GB | {images * 110e3 / 1e9:,.0f} GB "
            f"| {exact} | {duration(criterion_core_seconds(work))} |"
        )
    return rows


def duration(seconds: float) -> str:
    """Return a time with about two digits, in the unit that reads best."""
    units = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
    unit, size = next((u for u in units if seconds >= u[1]), units[-1])
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


# --- what is measured -----------------------------------------------------------------------


def _exchange(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for numbers in (1, 250_000, 25_000_000):
        values, times = torch.zeros(numbers), []
        for _ in range(7):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            times.append(time.perf_counter() - began)
        if rank == 0:
            print(f"gloo, 2 ranks, {4 * numbers:,} bytes: {1e3 * sorted(times)[3]:.2f} ms")
    dist.destroy_process_group()


def measure() -> None:
    """Print what an all-reduce over loopback and a matrix product take on this machine."""
    multiprocessing.spawn(_exchange, args=(29_531,), nprocs=2)
    torch.set_num_threads(1)
    a, times = torch.rand(1024, 1024), []
    for _ in range(15):
        began = time.process_time()
        torch.mm(a, a)
        times.append(time.process_time() - began)
    print(f"matrix product, one core: {2 * 1024**3 / sorted(times)[7] / 1e9:.0f} GFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--flops", type=float, default=ASSUMED.flops)
    given = parser.parse_args()
    if given.measure:
        measure()
    print("\n".join([*table(replace(ASSUMED, flops=given.flops)), "", *memory_table()]))


if __name__ == "__main__":
    main()
