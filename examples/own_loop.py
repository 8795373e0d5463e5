"""GradMix in a plain PyTorch training loop.

The program learns ten digits in five tasks of two classes. It keeps four exemplars per class and
prints the accuracy on all classes seen after each task. It takes a few seconds on one core.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradmix import GradMix

TASKS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
EPOCHS = 30
BATCH_SIZE = 32
EXEMPLARS_PER_CLASS = 4


def split_digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then test images and labels; every fifth is a test."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16  # (N, 64)
    y = torch.tensor(digits.target)  # (N,)
    is_test = torch.arange(len(y)) % 5 == 4
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of samples whose class is predicted."""
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())


def main() -> None:
    """Learn one task after another."""
    torch.manual_seed(0)
    x_train, y_train, x_test, y_test = split_digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    mixer = GradMix(alpha=1.0, labels="remix")
    x_mem, y_mem = x_train[:0], y_train[:0]  # the memory is empty at first
    for number, classes in enumerate(TASKS, start=1):
        is_new = torch.isin(y_train, torch.tensor(classes))
        x_new, y_new = x_train[is_new], y_train[is_new]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(EPOCHS):
            # Once per epoch: find the class pairs that would harm the memory.
            mixer.refresh(model, memory=(x_mem, y_mem), current=(x_new, y_new))
            for rows in torch.randperm(len(y_new)).split(BATCH_SIZE):
                replayed = torch.randperm(len(y_mem))[:BATCH_SIZE]
                x = torch.cat([x_new[rows], x_mem[replayed]])
                y = torch.cat([y_new[rows], y_mem[replayed]])
                # For each batch: mix inputs and labels.
                x, targets = mixer(x, y)
                loss = cross_entropy(model(x), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        kept = [(y_new == c).nonzero()[:EXEMPLARS_PER_CLASS, 0] for c in classes]
        x_mem = torch.cat([x_mem, x_new[torch.cat(kept)]])
        y_mem = torch.cat([y_mem, y_new[torch.cat(kept)]])
        seen = y_test <= max(classes)
        score = accuracy(model, x_test[seen], y_test[seen])
        print(f"after task {number}: accuracy {score:.3f} on the classes seen")


if __name__ == "__main__":
    main()
