"""Runs with a pretrained backbone: photos as embeddings, and fine-tuned networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from gradmix.data import Benchmark, DataSet
from gradmix.errors import InputError
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import fold_batch_norms, load_pretrained
from gradmix.ranks import Ranks
from gradmix.runs.config import RunConfig
from gradmix.training.build import pick_device
from gradmix.types import Samples

EMBED_BATCH = 32  # photos per pass: more do not fit a CPU's caches

OnPhoto = Callable[[int, int], object]
"""Receives the number of photos that have been embedded, and of all."""

_last: dict[tuple[object, ...], DataSet] = {}  # the last data set that was embedded


def embed_dataset(
    data: DataSet, config: RunConfig, on_photo: OnPhoto | None, ranks: Ranks
) -> DataSet:
    """Return a data set of photos as embeddings of a run's frozen backbone; the last one is kept.

    Raises:
        InputError: If the samples are not photos, or the backbone cannot be loaded.
    """
    network = config.model, config.weights, config.weights_version
    key = data, network, pick_device(config.device)
    if not ranks.all_true(key in _last):
        train, test = _embed([data.train, data.test], config, on_photo, ranks)
        mean, std = _statistics(train)
        _last.clear()
        _last[key] = replace(data, train=train, test=test, mean=mean, std=std)
    return _last[key]


def embed_benchmark(benchmark: Benchmark, config: RunConfig, ranks: Ranks) -> Benchmark:
    """Return the tasks of a caller as the embeddings of the frozen backbone of a run."""
    photos = [part for task in benchmark.tasks for part in (task.train, task.test)]
    parts = iter(_embed(photos, config, None, ranks))
    tasks = tuple(replace(task, train=next(parts), test=next(parts)) for task in benchmark.tasks)
    mean, std = _statistics(tasks[0].train)
    return replace(benchmark, tasks=tasks, mean=mean, std=std)


def _embed(
    parts: Sequence[Samples], config: RunConfig, on_photo: OnPhoto | None, ranks: Ranks
) -> list[Samples]:
    """Return the embeddings of several sets of photos; each rank computes its rows."""
    device = pick_device(config.device) if ranks.alone else ranks.device
    _check_photos(parts[0].x.shape[1:], config.model)
    loaded = load_pretrained(config.model, weights=config.weights)
    backbone = replace(loaded, module=fold_batch_norms(loaded.module).to(device))
    done, total = 0, sum(len(range(len(s.y))[ranks.rows(len(s.y))]) for s in parts)
    embedded = []
    for samples in parts:
        own = samples.x[ranks.rows(len(samples.y))]
        rows = [torch.empty(0, backbone.embedding_size)]
        for photos in own.split(EMBED_BATCH) if len(own) else ():
            rows.append(backbone.embed(photos.to(device)).cpu())
            done += len(photos)
            if on_photo is not None:
                on_photo(done, total)
        embedded.append(Samples(ranks.gather(torch.cat(rows), len(samples.y)), samples.y))
    return embedded


def _statistics(samples: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each column; 1 for columns that do not vary."""
    spread = samples.x.std(dim=0)
    spread = spread.where(spread > 0, torch.ones(()))
    return tuple(samples.x.mean(dim=0).tolist()), tuple(spread.tolist())


def fine_tuned_network(
    config: RunConfig, shape: Sequence[int], outputs: int, generator: torch.Generator
) -> nn.Module:
    """Return the fine-tuned network of a run, for photos of a shape.

    Raises:
        InputError: If the samples are not photos, or the backbone cannot be loaded.
    """
    _check_photos(shape, config.model)
    backbone = load_pretrained(config.model, weights=config.weights)
    assert config.finetune != "none"
    return fine_tune(backbone, outputs, config.finetune, generator=generator)


def _check_photos(shape: Sequence[int], model: str) -> None:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"model is {model!r}, which takes photos; the samples have shape {tuple(shape)}"
        )
