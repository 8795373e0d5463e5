"""Run trainings on one, two and three gloo ranks, as a program: python rank_job.py FOLDER.

Each case is trained on every number of ranks, and its final state is saved to a file of its own.
The processes are forked after the imports, so that all of them together start in one second.
"""

import json
import math
import multiprocessing
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import distributed as dist
from torch import nn

from gradmix.data import benchmark_from_tasks
from gradmix.data.augment import random_crop, random_flip
from gradmix.data.pool import Normalise
from gradmix.mixing import parse_recipe
from gradmix.models import adapt, build_model
from gradmix.models.finetune import fine_tune
from gradmix.models.network import MLP
from gradmix.models.parallel import whole_state
from gradmix.models.pretrained import Backbone
from gradmix.randomness import RandomStreams
from gradmix.ranks import Ranks
from gradmix.settings import CriterionSettings, MemorySettings, TrainingSettings
from gradmix.training import checkpoint
from gradmix.training.build import Design
from gradmix.training.checkpoint import Checkpoint
from gradmix.training.loop import TaskDone, Training
from gradmix.training.online import OnlineTraining
from gradmix.types import Samples

SIDE = 6


def blobs(sizes=((23, 22), (17, 18))):
    """Return two tasks of images around one random image per class."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randint(60, 196, (4, 1, SIDE, SIDE), generator=generator)

    def samples(first, counts):
        y = torch.cat([torch.full((n,), first + k) for k, n in enumerate(counts)])
        noise = torch.randint(-50, 51, (len(y), 1, SIDE, SIDE), generator=generator)
        return Samples((centres[y] + noise).clamp(0, 255).to(torch.uint8), y)

    tasks = [(samples(2 * t, sizes[t]), samples(2 * t, (7, 6))) for t in range(2)]
    return benchmark_from_tasks("blobs", tasks)


class InDefaultType(Normalise):
    """Returns network inputs in the default type, so that a training can run in float64."""

    def __call__(self, x):
        return super().__call__(x).to(torch.get_default_dtype())


class Nothing:
    """An empty record of a training."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Ignore it."""


def make_training(case, ranks):
    """Return the training of a case on some ranks."""
    benchmark = blobs()
    settings = {
        "epochs": case.get("epochs", 1),
        "batch_size": 10,
        "replay_batch_size": 7,
        "lr": 0.05,
    }
    design = Design(
        case["method"],
        parse_recipe(case["mix"]),
        TrainingSettings(**settings, **case.get("settings", {})),
        tuple(case.get("options", {}).items()),
        MemorySettings(exemplars_per_class=5, exemplar_selection=case.get("selection")),
        criterion=CriterionSettings(criterion_exemplars=4, **case.get("criterion", {})),
    )
    outputs = 2 if design.grows else 4

    def network(generator):
        if "network" in case:
            return build_model(case["network"], shape, outputs, generator=generator)
        if case.get("fine_tuned"):
            return fine_tuned_network(outputs, generator)
        if case.get("batch_norm"):
            return batch_norm_network(outputs, generator)
        made = MLP(SIDE * SIDE, outputs, (16, 12))
        made.initialise(generator)
        return made

    shape = (1, SIDE, SIDE)
    streams = RandomStreams(0)
    method = design.build(network, 4, shape, benchmark.mean, benchmark.std, streams, ranks)
    method.normalise = InDefaultType(benchmark.mean, benchmark.std)
    transforms = (random_crop, random_flip) if case.get("transforms") else ()
    kind = OnlineTraining if case.get("online") else Training
    return kind(benchmark, method, Fabric(accelerator="cpu", devices=1), transforms)


def batch_norm_network(outputs, generator):
    """Return a network with BatchNorm of images and of rows."""
    with torch.random.fork_rng([]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
        layers += [nn.Linear(48, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs)]
        return adapt(nn.Sequential(*layers))


def fine_tuned_network(outputs, generator):
    """Return a network that fine-tunes the last layer of a small backbone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8)]
    backbone = Backbone(nn.Sequential(*layers), 8, SIDE, (0.5,) * 3, (0.2,) * 3, "small", "")
    return fine_tune(backbone, outputs, "last", generator=generator)


def train(case, ranks, file=None, stop_at=None):
    """Return everything that must not depend on the number of ranks.

    A training with a file resumes from it. It stops at a task and step, if given, and saves itself.
    """
    torch.set_default_dtype(getattr(torch, case.get("dtype", "float64")))
    training = make_training(case, ranks)
    tables, losses, correct = [], [], []
    if file is not None:
        exists, saved = file.exists(), Checkpoint(file, training, Nothing(), {})
        assert saved.resume() == exists
    for event in training.events():
        if stop_at is not None and (event.task, training.position.step) == stop_at:
            saved.note(event)
            return {}
        tables += [table.negative.clone() for table in training.method.selector.tables]
        tables += [table.optimal.clone() for table in training.method.selector.tables]
        if hasattr(event, "step"):
            losses.append(event.loss)
        if isinstance(event, TaskDone):
            correct.append(event.correct["main"])
    networks = training.method.networks().values()
    states = [whole_state(network.state_dict(), keep=True) for network in networks]
    parts = [part for state in states for part in state.values()]
    momenta = [state.get("momentum_buffer") for state in training.method.optimizer.state.values()]
    return {
        "held": {
            "weights": held(p for network in networks for p in network.parameters()),
            "momentum": held(momentum for momentum in momenta if momentum is not None),
        },
        "weights": torch.cat([part.flatten() for part in parts if part.is_floating_point()]),
        "exemplars": training.method.memory.x,
        "labels": training.method.memory.y,
        "tables": tables,
        "losses": torch.stack(losses),
        "correct": torch.stack(correct),
        "counts": training.method.mixer.counts,
    }


def held(tensors):
    """Return how many numbers of some tensors this rank holds."""
    return sum(getattr(tensor, "_local_tensor", tensor).numel() for tensor in tensors)


def run_rank(rank, size, folder):
    """Train all cases as one of several ranks, and save each."""
    connect(rank, size, f"{folder}/store-{size}")
    cases = json.loads(Path(folder, "cases.json").read_text())
    for name, case in cases.items():
        if size in case["sizes"]:
            synced = size > 1 and case.get("batch_norm", False)
            sharded = size > 1 and case.get("sharded", False)
            ranks = Ranks(rank, size, sync_batchnorm=synced, shard_weights=sharded)
            result = train(case, ranks)
            torch.save(result, Path(folder, f"{name}-{size}-{rank}.pt"))
    disconnect(size)


def move_rank(rank, size, folder, stop_at, name="moved"):
    """Continue the training in a checkpoint on some ranks, until a task and step."""
    connect(rank, size, f"{folder}/store-{name}-{size}")
    checkpoint.EVERY_SECONDS, checkpoint.SHARE = 0.0, math.inf  # in this process: save at once
    ranks = Ranks(rank, size, shard_weights=size > 1 and name == "sharded")
    case = {"method": "er", "mix": "gradmix+", "epochs": 3}
    result = train(case, ranks, Path(folder, f"{name}.checkpoint"), stop_at)
    if stop_at is None:
        torch.save(result, Path(folder, f"{name}-{rank}.pt"))
    disconnect(size)


def connect(rank, size, store):
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def disconnect(size):
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def fork(*jobs):
    """Run functions with arguments in processes of their own, and wait for them."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=given) for function, *given in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)


def main(folder):
    """Train all cases on all numbers of ranks; then two trainings on several numbers in turn."""
    fork(*((run_rank, rank, size, folder) for size in (1, 2, 3) for rank in range(size)))
    for size, stop_at in ((1, (0, 3)), (3, (1, 2)), (2, None)):
        fork(*((move_rank, rank, size, folder, stop_at) for rank in range(size)))
    for size, stop_at in ((1, (0, 3)), (2, (1, 2)), (1, None)):
        fork(*((move_rank, rank, size, folder, stop_at, "sharded") for rank in range(size)))


if __name__ == "__main__":
    main(sys.argv[1])
