"""Data sets, their files, and their splits into tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from gradmix.data.binary import cifar_10, cifar_100, fashion_mnist, mnist, read_idx
from gradmix.data.datasets import DataSet, digits, from_arrays, from_dataset
from gradmix.data.domains import split_into_domains
from gradmix.data.image_folders.read import from_folder
from gradmix.data.imagenet import imagenet, tiny_imagenet_200
from gradmix.data.stream import StreamedImages
from gradmix.data.tasks import (
    Benchmark,
    benchmark_from_tasks,
    resolve_class_order,
    split_into_tasks,
)
from gradmix.errors import InputError, UnknownNameError
from gradmix.paths import checked_path
from gradmix.settings import StreamSettings, task_scenario

__all__ = [
    "DATASETS",
    "Benchmark",
    "DataSet",
    "DataSetInfo",
    "StreamedImages",
    "benchmark_from_tasks",
    "check_dataset_name",
    "cifar_10",
    "cifar_100",
    "dataset_version",
    "digits",
    "fashion_mnist",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "imagenet",
    "load_dataset",
    "make_benchmark",
    "mnist",
    "read_idx",
    "resolve_class_order",
    "split_into_domains",
    "split_into_tasks",
    "tiny_imagenet_200",
]


@dataclass(frozen=True)
class DataSetInfo:
    """A data set by name; known before it is loaded."""

    summary: str  # one line
    source: str  # what to cite
    load: Callable[[], DataSet]


DATASETS: dict[str, DataSetInfo] = {
    "digits": DataSetInfo(
        summary="1,797 handwritten digits of 8x8, 10 classes; comes with scikit-learn",
        source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
        load=digits,
    ),
    "mnist": DataSetInfo(
        summary="70,000 handwritten digits of 28x28, 10 classes",
        source="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-Based Learning Applied "
        "to Document Recognition, Proceedings of the IEEE, 1998",
        load=mnist,
    ),
    "fashion-mnist": DataSetInfo(
        summary="70,000 pictures of clothing of 28x28, 10 classes",
        source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for "
        "Benchmarking Machine Learning Algorithms, arXiv:1708.07747, 2017",
        load=fashion_mnist,
    ),
    "cifar-10": DataSetInfo(
        summary="60,000 photos of 32x32, 10 classes",
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
        "University of Toronto, 2009",
        load=cifar_10,
    ),
    "cifar-100": DataSetInfo(
        summary="60,000 photos of 32x32, 100 classes",
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
        "University of Toronto, 2009",
        load=cifar_100,
    ),
    "tiny-imagenet": DataSetInfo(
        summary="110,000 photos of 64x64, 200 classes; the validation images are the test set",
        source="Y. Le and X. Yang, Tiny ImageNet Visual Recognition Challenge, "
        "Stanford CS 231N, 2015",
        load=tiny_imagenet_200,
    ),
    "imagenet": DataSetInfo(
        summary="1.3 million photos at 224x224, 1,000 classes; never downloaded",
        source="O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, "
        "International Journal of Computer Vision, 2015",
        load=imagenet,
    ),
}

_FOLDER = "folder:"


def load_dataset(name: str, *, skip_unreadable: bool = False) -> DataSet:
    """Return a data set by name.

    Args:
        name: A name in `DATASETS`, or `folder:PATH` for an image folder, a zip file or shards, or
            `folder:PATH@32` for the same with images resized to 32x32. A folder whose name really
            ends in @32 takes precedence.
        skip_unreadable: Skip images of a folder that cannot be read, with a warning.

    Raises:
        UnknownNameError: The name is not known.
        CorruptFileError: Images of a folder cannot be read, and they are not to be skipped.

    Example:
        >>> load_dataset("digits").train.x.shape
        torch.Size([1442, 1, 8, 8])
    """
    check_dataset_name(name)
    if name in DATASETS:
        return DATASETS[name].load()
    path, size = _folder(name)
    return from_folder(path, size=size, corrupt="skip" if skip_unreadable else "refuse")


def _folder(name: str) -> tuple[str, int | None]:
    """Return path and size of `folder:PATH` or `folder:PATH@SIZE`."""
    path = name[len(_FOLDER) :]
    sized = re.fullmatch(r"(.+)@([0-9]{1,9})", path, re.DOTALL)
    if sized and not os.path.exists(checked_path(path)):
        return sized[1], int(sized[2])
    return path, None


def dataset_version(name: str) -> str:
    """Return a digest of the names, sizes and times of the files of an image folder or zip file.

    Returns:
        Twelve characters that differ once a file is added, removed or changed; empty for other
        data sets, and for a folder that does not exist.
    """
    if not name.startswith(_FOLDER):
        return ""
    root = os.fspath(_folder(name)[0])
    paths = (
        [root]
        if os.path.isfile(root)
        else [os.path.join(folder, file) for folder, _, files in os.walk(root) for file in files]
    )
    entries = []
    for path in paths:
        with suppress(OSError):  # a link that points nowhere
            stat = os.stat(path)
            entries.append(f"{os.path.relpath(path, root)}\0{stat.st_size}\0{stat.st_mtime_ns}")
    digest = sha256("\n".join(sorted(entries)).encode(errors="surrogateescape"))
    return digest.hexdigest()[:12] if entries else ""


def check_dataset_name(name: str) -> None:
    """Raise UnknownNameError unless `load_dataset` knows the form of `name`; reads no file."""
    if not isinstance(name, str):
        raise InputError(f"the data set is {name!r}; give its name as text")
    if name.startswith(_FOLDER):
        if name == _FOLDER:
            raise InputError(f"data set {name!r} lacks a path; write folder:PATH or folder:PATH@32")
    elif name not in DATASETS:
        raise UnknownNameError("data set", name, [*DATASETS, "folder:PATH"])


def make_benchmark(data: DataSet, stream: StreamSettings) -> Benchmark:
    """Return a data set as the stream of tasks that the settings describe.

    Raises:
        InputError: The settings do not fit the data set.
    """
    order, part, seed = stream.class_order, stream.evaluate_on, stream.scenario_seed
    scenario = task_scenario(stream.scenario)
    if scenario == "domain-incremental":
        tasks, shift = stream.domains, stream.domain_shift
        return split_into_domains(data, tasks, shift, order, evaluate_on=part, seed=seed)
    sizes = stream.increments[0] if len(stream.increments) == 1 else stream.increments
    blur = stream.blur if scenario == "blurry" else 0.0
    return split_into_tasks(data, sizes, order, evaluate_on=part, blur=blur, seed=seed)
