"""Domain-incremental streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradmix.data import (
    DataSet,
    digits,
    from_arrays,
    make_benchmark,
    split_into_domains,
    split_into_tasks,
)
from gradmix.data.domains import rotate
from gradmix.errors import InputError, UnknownNameError
from gradmix.settings import StreamSettings


@pytest.fixture
def images() -> DataSet:
    """Two classes of ten images that all differ, 3 × 4 × 5."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (30, 3, 4, 5)).astype("uint8")
    y = [0, 1] * 15
    return from_arrays(x[:20], y[:20], x[20:], y[20:])


def test_every_domain_has_an_equal_share_of_other_samples(images: DataSet) -> None:
    benchmark = split_into_domains(images, 3)
    assert benchmark.scenario == "domain-incremental"
    for part in ("train", "test"):
        whole = getattr(images, part)
        dealt = [getattr(task, part) for task in benchmark.tasks]
        counts = torch.stack([samples.y.bincount() for samples in dealt])  # (tasks, classes)
        assert (counts.amax(dim=0) - counts.amin(dim=0)).max() <= 1
        rows = {x.numpy().tobytes(): int(y) for s in dealt for x, y in zip(*s, strict=True)}
        assert rows == {x.numpy().tobytes(): int(y) for x, y in zip(*whole, strict=True)}
    assert all(task.classes == (0, 1) for task in benchmark.tasks)


def test_permuted_pixels_are_the_same_places_in_all_images_of_a_task(images: DataSet) -> None:
    first, second, third = split_into_domains(images, 3, "permuted").tasks
    assert torch.equal(first.train.x, images.train.x)  # the first as it is
    places = []
    for task in (second, third):
        channel = images.train.x[:, 0].flatten(1)  # (N, 20): no two places alike in all images
        moved = task.train.x[:, 0].flatten(1)
        matches = (moved.T[:, None] == channel.T[None]).all(dim=2)  # (20, 20)
        assert (matches.sum(dim=1) == 1).all()
        places.append(matches.long().argmax(dim=1))
        for part in ("train", "test"):
            whole = getattr(images, part).x.flatten(2)
            assert torch.equal(getattr(task, part).x.flatten(2), whole[:, :, places[-1]])
    assert not torch.equal(*places)


def test_rotated_images_are_those_of_one_angle(images: DataSet) -> None:
    first, second = split_into_domains(images, 2, "rotated").tasks
    assert torch.equal(first.test.x, images.test.x)
    assert not torch.equal(second.test.x, images.test.x)
    assert torch.equal(second.test.y, images.test.y)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_rotation_by_half_a_turn_and_none(shape: tuple[int, int]) -> None:
    x = torch.randint(256, (2, 1, *shape), dtype=torch.uint8)
    assert torch.equal(rotate(x, 0), x)
    assert torch.equal(rotate(x, 180), x.flip(2, 3))


@pytest.mark.parametrize("shift", ["samples", "permuted", "rotated"])
def test_the_seed_decides(images: DataSet, shift: str) -> None:
    one, same, other = (
        split_into_domains(images, 2, shift, seed=seed).tasks[1].train.x  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_bad_requests_are_refused(images: DataSet) -> None:
    with pytest.raises(InputError, match="tasks is 1; it must be an integer of 2 or more"):
        split_into_domains(images, 1)
    with pytest.raises(UnknownNameError, match="did you mean 'rotated'"):
        split_into_domains(images, 2, "rotatd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="class 0 has 5 test samples, too few for 6 tasks"):
        split_into_domains(images, 6)
    rows = from_arrays(np.zeros((4, 3)), [0, 1] * 2, np.zeros((4, 3)), [0, 1] * 2)
    with pytest.raises(InputError, match="'permuted', which needs images; these are rows of 3"):
        split_into_domains(rows, 2, "permuted")


def test_settings_make_the_stream() -> None:
    data = digits()
    plain = make_benchmark(data, StreamSettings(increments=(5,)))
    for task, expected in zip(plain.tasks, split_into_tasks(data, 5).tasks, strict=True):
        assert task.classes == expected.classes
        assert torch.equal(task.train.x, expected.train.x)
    blurry = make_benchmark(data, StreamSettings(scenario="blurry", blur=0.3))
    assert (blurry.scenario, len(blurry.tasks)) == ("blurry", 5)
    domains = make_benchmark(data, StreamSettings(scenario="domain-incremental", domains=4))
    assert (domains.scenario, len(domains.tasks)) == ("domain-incremental", 4)


@pytest.mark.parametrize(
    "given", [{"blur": 0.2}, {"domains": 3}, {"domain_shift": "rotated", "scenario": "blurry"}]
)
def test_settings_of_another_scenario_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match="belongs to the scenario"):
        StreamSettings(**given)  # type: ignore[arg-type]
