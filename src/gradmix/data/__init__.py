"""Where samples come from: data sets, their cutting into tasks, and reading their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradmix.data.datasets import DataSet, digits, fashion_mnist, from_arrays, mnist
from gradmix.data.idx import read_idx
from gradmix.data.tasks import (
    Benchmark,
    benchmark_from_tasks,
    resolve_class_order,
    split_into_tasks,
)
from gradmix.errors import UnknownNameError

__all__ = [
    "DATASETS",
    "Benchmark",
    "DataSet",
    "DataSetInfo",
    "benchmark_from_tasks",
    "digits",
    "fashion_mnist",
    "from_arrays",
    "load_dataset",
    "mnist",
    "read_idx",
    "resolve_class_order",
    "split_into_tasks",
]


@dataclass(frozen=True)
class DataSetInfo:
    """What is known of a data set before it is loaded."""

    summary: str  # one line
    source: str  # whom to cite
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
}


def load_dataset(name: str) -> DataSet:
    """Load a data set by its name in `DATASETS`; UnknownNameError for another name."""
    if name not in DATASETS:
        raise UnknownNameError("data set", name, DATASETS)
    return DATASETS[name].load()
