"""No network may crash, whatever the size, channels and batch size of the images.

Every case runs in a process of its own: two training steps, predict, save, load, predict again.
A crash in PyTorch's native code (SIGSEGV) ends that process and fails the test with its case.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import pytest

from gradmix.models import MODELS

SIZES = (8, 28, 32, 33, 48, 64, 96, 224)
CHANNELS = (1, 3)
BATCHES = (1, 2, 64)
HEAVY = 2_000  # megabytes; such cases run one after another, in one test


class Case(NamedTuple):
    model: str
    size: int
    channels: int
    batch: int

    def megabytes(self) -> int:
        """Estimate the peak memory, from measured kilobytes per pixel of a batch."""
        kilobytes = {"resnet18": 4.5, "resnet18-narrow": 1.5, "resnet18-tiny": 0.6}
        pixels = self.batch * self.size**2
        return 1000 + round(pixels * kilobytes.get(self.model, 0.5) / 1000)


ALL = [Case(*case) for case in product(MODELS, SIZES, CHANNELS, BATCHES)]
LIGHT = [case for case in ALL if case.megabytes() < HEAVY]
SAMPLE = [
    Case("mlp", 28, 1, 64),
    Case("resnet18-tiny", 8, 1, 1),  # one value per channel in the last layer
    Case("cnn", 8, 1, 1),
    Case("cnn", 48, 3, 64),
    Case("cnn", 224, 3, 2),
    Case("resnet18-tiny", 48, 1, 2),
    Case("resnet18-tiny", 48, 3, 64),
    Case("resnet18-tiny", 224, 1, 1),
    Case("resnet18-imagenet", 32, 3, 1),
    Case("vit-small", 33, 1, 2),
]


def failures(train_in_child: Any, cases: Iterable[Case]) -> list[str]:
    """Run the cases and describe those that fail."""
    found = []
    for case in cases:
        result = train_in_child(**case._asdict())
        if result["exit"] != 0:
            code = result["exit"]
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            found.append(f"{case}: {how}\n{result['errors']}")
    return found


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: "-".join(map(str, case)))
def test_a_sample_of_cases(train_in_child: Any, case: Case) -> None:
    assert not failures(train_in_child, [case])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "size"), list(product(MODELS, SIZES)))
def test_every_light_case(train_in_child: Any, model: str, size: int) -> None:
    cases = [case for case in LIGHT if (case.model, case.size) == (model, size)]
    assert not failures(train_in_child, cases)


@pytest.mark.slow
def test_every_heavy_case(train_in_child: Any) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10**6
    heavy = [case for case in ALL if case not in LIGHT]
    fitting = [case for case in heavy if case.megabytes() < 0.9 * memory]
    assert not failures(train_in_child, fitting)
    if fitting != heavy:
        skipped = ", ".join(str(tuple(case)) for case in heavy if case not in fitting)
        pytest.skip(f"{memory} MB of memory are too few for {skipped}")


def test_the_server_survives_a_failed_case(train_in_child: Any) -> None:
    bad = Case("no such model", 8, 1, 1)
    (found,) = failures(train_in_child, [bad])
    assert "exit status 1" in found
    assert "unknown network" in found
    assert not failures(train_in_child, SAMPLE[:1])
