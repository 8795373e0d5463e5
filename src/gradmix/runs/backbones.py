"""Pretrained backbones in runs: embeddings in place of photos, or a network that fine-tunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from gradmix.data import Benchmark, DataSet
from gradmix.errors import InputError
from gradmix.models import build_model
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import Backbone, fold_batch_norms, load_pretrained
from gradmix.runs.config import RunConfig
from gradmix.training.build import NetworkFactory, pick_device
from gradmix.types import Samples

EMBED_BATCH = 32  # photos per pass: more do not fit a CPU's caches
BYTES = 255.0  # a fine-tuned network takes values from 0 to 1


@lru_cache(maxsize=1)
def embed_dataset(data: DataSet, model: str, weights: str | None, device: str) -> DataSet:
    """Return a data set of photos as the embeddings of a frozen backbone; the last one is kept.

    Raises:
        InputError: If the samples are not photos, or the backbone cannot be loaded.
    """
    backbone = _frozen(data.train.x.shape[1:], model, weights, device)
    train, test = (_embed(samples, backbone, device) for samples in (data.train, data.test))
    mean, std = _statistics(train)
    return replace(data, train=train, test=test, mean=mean, std=std)


def embed_benchmark(benchmark: Benchmark, config: RunConfig) -> Benchmark:
    """Return the tasks of a caller as the embeddings of the frozen backbone of a run."""
    device, shape = str(pick_device(config.device)), benchmark.tasks[0].train.x.shape[1:]
    backbone = _frozen(shape, config.model, config.weights, device)
    tasks = tuple(
        replace(
            task,
            train=_embed(task.train, backbone, device),
            test=_embed(task.test, backbone, device),
        )
        for task in benchmark.tasks
    )
    mean, std = _statistics(tasks[0].train)
    return replace(benchmark, tasks=tasks, mean=mean, std=std)


def _frozen(shape: Sequence[int], model: str, weights: str | None, device: str) -> Backbone:
    _check_photos(shape, model)
    loaded = load_pretrained(model, weights=weights)
    return replace(loaded, module=fold_batch_norms(loaded.module).to(device))


def _embed(samples: Samples, backbone: Backbone, device: str) -> Samples:
    parts = [backbone.embed(part.to(device)).cpu() for part in samples.x.split(EMBED_BATCH)]
    empty = torch.empty(0, backbone.embedding_size)
    return Samples(torch.cat(parts) if len(samples.y) else empty, samples.y)


def _statistics(samples: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each column; 1 for columns that do not vary."""
    spread = samples.x.std(dim=0)
    spread = spread.where(spread > 0, torch.ones(()))
    return tuple(samples.x.mean(dim=0).tolist()), tuple(spread.tolist())


def network_of(config: RunConfig, shape: Sequence[int], outputs: int) -> NetworkFactory:
    """Return a function that makes the network of a run with a pretrained backbone.

    Args:
        config: The run.
        shape: Shape of one sample: of embeddings for a frozen backbone.
        outputs: Outputs of the network.
    """
    if config.frozen:
        return lambda generator: build_model("linear", shape, outputs, generator=generator)
    assert config.finetune != "none"
    _check_photos(shape, config.model)
    backbone, layers = load_pretrained(config.model, weights=config.weights), config.finetune
    return lambda generator: fine_tune(backbone, outputs, layers, generator=generator)


def statistics_of(
    config: RunConfig, mean: Sequence[float], std: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation per channel; a fine-tuned network has its own."""
    return (mean, std) if config.frozen else ([0.0] * len(mean), [BYTES] * len(std))


def _check_photos(shape: Sequence[int], model: str) -> None:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"model is {model!r}, which takes photos; the samples have shape {tuple(shape)}"
        )
