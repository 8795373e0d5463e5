"""Train on shards with one, two and three gloo ranks: python shards_rank_job.py FOLDER.

Every rank saves the photos that it decodes in each epoch and uses in each step, and the result.
"""

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
from rank_job import InDefaultType, connect, disconnect, fork

from gradmix.data import from_folder, split_into_tasks
from gradmix.data.image_folders.decode import ImageFiles
from gradmix.data.pool import ALL, Pool
from gradmix.mixing import parse_recipe
from gradmix.models.network import MLP
from gradmix.randomness import RandomStreams
from gradmix.ranks import Ranks
from gradmix.settings import CriterionSettings, MemorySettings, TrainingSettings
from gradmix.training.build import Design
from gradmix.training.loop import EpochDone, StepDone, TaskDone, Training

MIXES = ("none", "gradmix+")


def make_training(shards, mix, ranks):
    """Return ER on two tasks of the photos in shards."""
    data = from_folder(shards, mean=(127.0,) * 3, std=(64.0,) * 3)
    benchmark = split_into_tasks(data, 2)
    assert not isinstance(benchmark.tasks[0].train.x, torch.Tensor)
    design = Design(
        "er",
        parse_recipe(mix),
        TrainingSettings(epochs=2, batch_size=8, replay_batch_size=4, lr=0.05),
        (),
        MemorySettings(exemplars_per_class=3),
        criterion=CriterionSettings(criterion_exemplars=3),
    )

    def network(generator):
        made = MLP(data.train.x.shape[1:].numel(), 4, (16, 12))
        made.initialise(generator)
        return made

    shape, streams = tuple(data.train.x.shape[1:]), RandomStreams(0)
    method = design.build(network, 4, shape, benchmark.mean, benchmark.std, streams, ranks)
    method.normalise = InDefaultType(benchmark.mean, benchmark.std)
    return Training(benchmark, method, Fabric(accelerator="cpu", devices=1), ())


def train(shards, mix, ranks):
    """Return the result, the photos decoded in each epoch, and the new samples of each step."""
    torch.set_default_dtype(torch.float64)
    decoded, used = [], []
    decode, augmented = ImageFiles.decode, Pool.augmented

    def counted(files, row, into):
        decoded.append(row)
        decode(files, row, into)

    def noted(pool, index, rows=ALL):
        used.extend(row for row in index[rows].tolist() if row < pool.num_new)
        return augmented(pool, index, rows)

    ImageFiles.decode, Pool.augmented = counted, noted
    training = make_training(shards, mix, ranks)
    epochs, steps, losses = [], [], []
    for event in training.events():
        if isinstance(event, StepDone):
            losses.append(event.loss)
            steps.append(torch.tensor(used, dtype=torch.int64))
            used.clear()
        if isinstance(event, EpochDone):
            epochs.append(torch.tensor(decoded, dtype=torch.int64))
        if isinstance(event, EpochDone | TaskDone):  # a task ends with the choice of exemplars
            decoded.clear()
    ImageFiles.decode, Pool.augmented = decode, augmented
    weights = torch.cat([value.flatten() for value in training.method.parameters()])
    memory = training.method.memory
    return {
        "weights": weights.detach(),
        "losses": torch.stack(losses),
        "exemplars": memory.x,
        "epochs": epochs,
        "steps": steps,
    }


def run_rank(rank, size, folder):
    """Train with all mixes as one of several ranks, and save the results."""
    connect(rank, size, f"{folder}/store-{size}")
    for mix in MIXES:
        result = train(Path(folder, "shards"), mix, Ranks(rank, size))
        torch.save(result, Path(folder, f"{mix}-{size}-{rank}.pt"))
    disconnect(size)


if __name__ == "__main__":
    fork(*((run_rank, rank, size, sys.argv[1]) for size in (1, 2, 3) for rank in range(size)))
