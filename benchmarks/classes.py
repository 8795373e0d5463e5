"""Measure the criterion over the number of classes: time, memory, agreement with the exact one.

`python -m benchmarks.classes 1000` measures one point in this process and prints it as
JSON; the benchmark runs one process for each point.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion.many_classes.on_demand import PairsOnDemand
from gradmix.criterion.many_classes.sketch import TOP, logits_pass, make_sketch
from gradmix.criterion.scores import HeadGradient, Scored, projections, sample_scores
from gradmix.types import LinearHead

SIZES = (100, 1000, 10_000, 50_000)
FEATURES, EACH = 64, 2
MET = 10  # pairs that batches meet, per class
SAMPLED = 200  # classes whose S* is compared with an exact search
LAM = 0.4
TERMS = {
    "what is beyond the logits pass": ("sketch", "met pairs", "S*"),
    "the logits pass": ("logits pass",),
    "the exact criterion": ("exact all",),
}


STEPS = 300  # of training the head


def synthetic(classes: int) -> tuple[Tensor, Tensor, LinearHead]:
    """Return synthetic exemplars and a trained head.

    Exemplars lie around class centres, and these around √K group centres. The head starts from the
    class centres. Each training step uses 64 samples of new classes, the last tenth of all, and 64
    exemplars of the others.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    groups = max(2, int(classes**0.5))
    centres = normal(groups, FEATURES)[torch.arange(classes) % groups] + normal(classes, FEATURES)
    centres = 3.4 * F.normalize(centres, dim=1)
    y = torch.arange(classes).repeat_interleave(EACH)
    X = centres[y] + 0.5 * normal(len(y), FEATURES)
    head = nn.Linear(FEATURES, classes)
    with torch.no_grad():
        head.weight.copy_(centres)
        head.bias.zero_()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    old = classes - classes // 10
    for _ in range(STEPS):
        new = torch.randint(old, classes, (64,), generator=generator)
        replayed = torch.randint(old * EACH, (64,), generator=generator)
        x = torch.cat([centres[new] + 0.5 * normal(64, FEATURES), X[replayed]])
        optimizer.zero_grad()
        F.cross_entropy(head(x), torch.cat([new, y[replayed]])).backward()
        optimizer.step()
    return X, y, LinearHead(head.weight.detach(), head.bias.detach())


def memory_weights(y: Tensor, classes: int) -> Tensor:
    old = (y < classes - classes // 10).float()
    return old / old.sum()


def like_a_batch(classes: int, number: int, generator: torch.Generator) -> Tensor:
    """Return the classes of the rows of a batch: half of them new, half old."""
    old = classes - classes // 10
    new = torch.randint(old, classes, (number,), generator=generator)
    past = torch.randint(old, (number,), generator=generator)
    return torch.where(torch.rand(number, generator=generator) < 0.5, new, past)


def peak_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def met_pairs(classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    own = like_a_batch(classes, MET * classes, generator)
    return own, own[torch.randperm(len(own), generator=generator)]


def measure(classes: int) -> dict[str, Any]:
    """Return time and memory of an epoch's criterion for this many classes."""
    X, y, head = synthetic(classes)
    weights = memory_weights(y, classes)
    before = peak_megabytes()
    logits, _ = timed(lambda: all_logits(X, head))
    passed, (gradient, _) = timed(lambda: logits_pass(X, y, head, weights, TOP))
    after_pass = peak_megabytes()
    generator = torch.Generator().manual_seed(2)
    sketched, sketch = timed(lambda: make_sketch(X, y, head, weights, generator=generator))
    own, other = met_pairs(classes)
    which = torch.zeros(1, 1, dtype=torch.int64)  # one batch, one pair table
    pairs = PairsOnDemand(sketch, [LAM])
    met, harmful = timed(lambda: pairs.harmful(which, own[None], other[None])[0])
    needy = own[harmful].unique()
    every = torch.ones_like(needy, dtype=torch.bool)[None]
    searched, best = timed(lambda: pairs.best(which, needy[None], every)[0])
    after_all = peak_megabytes()
    chosen = torch.randperm(len(needy), generator=generator)[:SAMPLED]
    spent, exact = timed(lambda: exact_rows(X, head, gradient, needy[chosen]))
    return {
        "classes": classes,
        "logits": logits,
        "logits pass": passed,
        "sketch": max(sketched - passed, 0.0),  # it contains a logits pass
        "met pairs": met,
        "S*": searched,
        "searched": len(needy),
        "negative": float(harmful.float().mean()),
        "MB pass": after_pass - before,
        "MB": after_all - before,
        **agreement(pairs, needy[chosen], best[chosen], exact),
        "exact all": spent / len(chosen) * classes,
    }


def exact_rows(
    X: Tensor, head: LinearHead, gradient: HeadGradient, rows: Tensor, block: int = 2**23
) -> Tensor:
    """Return exact scores of the classes at `rows` with all classes, (rows, K), block by block."""
    classes = len(head.weight)
    exemplars = X.view(classes, EACH, -1)  # in order of their classes
    side = max(1, min(int(block**0.5), block // classes))

    def scored(index: Tensor, k: int) -> Scored:
        own = exemplars[index, k % EACH]
        return Scored(head(own), projections(own, gradient), index)

    total = X.new_zeros(len(rows), classes)
    for place, part in zip(torch.arange(len(rows)).split(side), rows.split(side), strict=True):
        for k in range(EACH):
            left = scored(part, k)
            for columns in torch.arange(classes).split(side):
                scores = sample_scores(left, scored(columns, k + 1), LAM)
                total[place[:, None], columns] += scores / EACH
    return total


def all_logits(X: Tensor, head: LinearHead) -> None:
    for part in X.split(max(1, 2**21 // len(head.weight))):
        head(part)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of a function, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def agreement(pairs: PairsOnDemand, rows: Tensor, best: Tensor, exact: Tensor) -> dict[str, float]:
    """Return the agreement with the exact criterion, on sampled classes that need a replacement."""
    classes, generator = exact.shape[1], torch.Generator().manual_seed(3)
    columns = like_a_batch(classes, 100 * len(rows), generator).view(-1, 100)
    other = columns.flatten()
    found = pairs.score(torch.zeros_like(other), rows.repeat_interleave(100), other)
    truth = exact.gather(1, columns).flatten()
    regret = exact.amax(1) - exact.gather(1, best[:, None]).squeeze(1)
    return {
        "S- agreement": float(((found < 0) == (truth < 0)).float().mean()),
        "error / std": float((found - truth).std() / truth.std()),
        "S* same": float((regret == 0).float().mean()),
        "regret / std": float((regret / exact.std(1)).mean()),
        "regret / range": float((regret / (exact.amax(1) - exact.amin(1))).mean()),
    }


def over_classes() -> str:
    """Return the table of docs/performance.md, and growth exponents."""
    points = {size: point(size) for size in SIZES}
    lines = [json.dumps(found) for found in points.values()]
    few, many = points[1000], points[50_000]
    for name, parts in TERMS.items():
        growth = sum(many[part] for part in parts) / sum(few[part] for part in parts)
        lines.append(f"exponent of {name}: {math.log(growth) / math.log(50):.2f}")
    return "\n" + "\n".join(lines)


def point(classes: int) -> dict[str, Any]:
    """Return medians over three processes; the largest sizes use one process."""
    command = [sys.executable, "-m", "benchmarks.classes", str(classes)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(3 if classes <= 1000 else 1)
    ]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(int(sys.argv[1]))))
