"""GradMix in a plain PyTorch loop: five tasks of two digits each, four examples kept of a class."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import gradmix

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
is_test = torch.arange(len(labels)) % 5 == 4

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
mixer = gradmix.GradMix(alpha=1.0, labels="remix")
x_mem, y_mem = torch.empty(0, 64), torch.empty(0, dtype=torch.int64)


def accuracy(classes: range) -> float:
    test = is_test & torch.isin(labels, torch.tensor(classes))
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


def step(optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    x, targets = mixer(x, y)
    loss = F.cross_entropy(model(x), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for task in range(5):
    train = ~is_test & torch.isin(labels, torch.tensor([2 * task, 2 * task + 1]))
    x_new, y_new = images[train], labels[train]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(30):
        mixer.refresh(model, memory=(x_mem, y_mem), current=(x_new, y_new))
        for batch in torch.randperm(len(y_new)).split(32):
            replay = torch.randperm(len(y_mem))[:32]
            x, y = (
                torch.cat([x_new[batch], x_mem[replay]]),
                torch.cat([y_new[batch], y_mem[replay]]),
            )
            step(optimizer, x, y)
    kept = torch.cat([(y_new == c).nonzero()[:4, 0] for c in (2 * task, 2 * task + 1)])
    x_mem, y_mem = torch.cat([x_mem, x_new[kept]]), torch.cat([y_mem, y_new[kept]])
    print(f"after task {task + 1}: accuracy {accuracy(range(2 * task + 2)):.3f} on classes seen")
