"""Train with Avalanche's loop and gradmix's plugin on Split-MNIST, in Avalanche's environment.

    .avalanche/bin/python benchmarks/avalanche_gradmix.py --seeds 0 1 2 --epochs 2

The settings are those of `gradmix run --data mnist`: MLP with two hidden layers of 256 units, SGD
with learning rate 0.01 and momentum 0.9, 64 new and 64 replayed samples per step, 32 exemplars per
class. The environment needs gradmix, for example through PYTHONPATH.
"""

import argparse
import contextlib
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
# torchvision's compiled operators do not load beside a CPU build of PyTorch; none is used here.
LIBRARY = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks import nc_benchmark  # noqa: E402
from avalanche.benchmarks.utils import as_classification_dataset  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ClassBalancedBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from gradmix import GradMix  # noqa: E402
from gradmix.avalanche import GradMixPlugin  # noqa: E402


class Rows(TensorDataset):
    """Inputs and labels; Avalanche expects the labels in `targets`."""

    def __init__(self, x, y):
        super().__init__(x, y)
        self.targets = y.tolist()


def split_mnist(samples):
    """Return training and test images; `samples` per class of random data if MNIST is absent."""
    from gradmix.data import load_dataset
    from gradmix.errors import DataNotFoundError

    try:
        data = load_dataset("mnist")
        train, test = (
            ((part.x.float().flatten(1) / 255 - 0.1307) / 0.3081, part.y.long())
            for part in (data.train, data.test)
        )
    except DataNotFoundError:
        y = torch.arange(10).repeat_interleave(samples)
        train = test = (torch.randn(len(y), 784) + y[:, None] / 3, y)
    first = [(train[1] == label).nonzero().flatten()[:samples] for label in range(10)]
    rows = torch.cat(first).sort().values
    return Rows(train[0][rows], train[1][rows]), Rows(*test)


def learn(seed, epochs, samples, mixer):
    """Return the accuracy on all classes seen, after each task."""
    torch.manual_seed(seed)
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers)
    buffer = ClassBalancedBuffer(320, adaptive_size=False, total_num_classes=10)
    replay = ReplayPlugin(320, storage_policy=buffer)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        train_epochs=epochs,
        plugins=[replay, *([] if mixer is None else [GradMixPlugin(mixer)])],
        evaluator=EvaluationPlugin(),
    )
    train, test = split_mnist(samples)
    tasks = nc_benchmark(
        *map(as_classification_dataset, (train, test)), 5, False, fixed_class_order=range(10)
    )
    x, y = test.tensors
    accuracies = []
    for number, experience in enumerate(tasks.train_stream, start=1):
        strategy.train(experience, drop_last=True)
        seen = y < 2 * number
        with torch.no_grad():
            accuracies.append(float((model(x[seen]).argmax(1) == y[seen]).float().mean()))
    return accuracies


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=5000, help="training images per class")
    parser.add_argument("--plain", action="store_true", help="replay without mixing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        generator = torch.Generator().manual_seed(seed)
        mixer = None if given.plain else GradMix(tau=0.75, generator=generator)
        found = learn(seed, given.epochs, given.samples, mixer)
        shown = ", ".join(f"{value:.4f}" for value in found)
        print(f"seed {seed}: average accuracy {sum(found) / len(found):.4f} ({shown})", flush=True)


if __name__ == "__main__":
    main()
