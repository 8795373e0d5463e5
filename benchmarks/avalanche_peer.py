"""Measure Avalanche in its own environment: `python avalanche_peer.py NAME …`.

The arguments are a method, the number of past tasks, and "images" or "ready". The program prints
"ready". For each line of input, it trains one epoch on the next experience and prints the processor
seconds of this epoch. It does not import gradmix.
"""

import contextlib
import sys
import time
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
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402
from avalanche.training.supervised import MIR, GSS_greedy, Replay  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision.transforms import Compose, Normalize, ToTensor  # noqa: E402

PER_CLASS, FEW = 5000, 64


class Rows(torch.utils.data.Dataset):
    """Images as torchvision's MNIST returns them to SplitMNIST, or network inputs ("ready")."""

    def __init__(self, counts, ready):
        self.targets = torch.repeat_interleave(torch.tensor(counts)).tolist()
        shape, generator = (len(self.targets), 28, 28), torch.Generator().manual_seed(0)
        self.images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        self.x = torch.randn(len(self.targets), 1, 28, 28) if ready else None
        self.transform = Compose([ToTensor(), Normalize((0.1307,), (0.3081,))])

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        if self.x is not None:
            return self.x[index], self.targets[index]
        image = Image.fromarray(self.images[index].numpy(), mode=None)
        return self.transform(image), self.targets[index]


def strategy(name):
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    common = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 64,
        "train_epochs": 1,
        "evaluator": EvaluationPlugin(),
    }
    if name == "er":
        return Replay(mem_size=256, **common)
    if name == "mir":
        return MIR(mem_size=256, subsample=128, batch_size_mem=64, **common)
    return GSS_greedy(mem_size=256, mem_strength=5, input_size=[1, 28, 28], **common)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, before, ready = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ready"
    # Its GSS fails on smaller tasks, and its MIR retrieves nothing from fewer exemplars.
    few = {"gss": PER_CLASS, "mir": FEW}.get(name, FEW // 2)
    counts = [few] * 2 * before + [PER_CLASS] * 2 * (5 - before)
    rows, order = Rows(counts, ready), list(range(10))
    stream = nc_benchmark(rows, rows, 5, task_labels=False, fixed_class_order=order).train_stream
    learner = strategy(name)
    for experience in stream[:before]:
        learner.train(experience)
    print("ready", flush=True)
    for experience, _ in zip(stream[before:], sys.stdin, strict=False):
        started = time.process_time()
        learner.train(experience)
        print(time.process_time() - started, flush=True)


main()
