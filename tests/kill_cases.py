"""A small run in a process of its own, which may be killed; it leaves all bits of how it ended."""

import os
from dataclasses import asdict
from multiprocessing import get_context

from gradmix import config_for
from gradmix.files import write_archive
from gradmix.runs import run as runs
from gradmix.training import checkpoint as checkpoints

METHODS = ("er", "der", "mir", "foster", "memo")
SETTINGS = {"exemplars_per_class": 4, "increments": (4, 3, 3), "threads": 1}

context = get_context("forkserver")  # forks from a process that has only imported things
context.set_forkserver_preload(
    [
        *("gradmix.runs.run", "gradmix.classifier.continuing", "gradmix.cli"),
        *("sklearn.datasets", "lightning_fabric"),
    ]
)


def config(method, **changes):
    return config_for("digits", **{"method": method, "mix": "gradmix+", **SETTINGS, **changes})


def ending(result, training):
    """Weights, memory, random state, metrics: everything but the times."""
    state = {"result": {**asdict(result), "seconds": None}, "training": training.state_dict()}
    return in_order(state)


def in_order(value):
    """Dicts by their keys, whatever was first in them."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return value


def whole_run(method, out, checkpoint=None, epochs=3):
    """Run to the end, from a checkpoint if there is one; half of the time goes into saving it."""
    checkpoints.EVERY_SECONDS, checkpoints.SHARE = 0.02, 0.5
    checkpoints.FIRST_GUESS = (0.0, 1e99)
    trainings = []

    def prepare(*given):
        trainings.append(prepared(*given))
        return trainings[0]

    prepared, runs.prepare = runs.prepare, prepare  # this process makes one run
    result = runs.run(config(method, epochs=epochs), checkpoint=checkpoint)
    write_archive(out, "ending", ending(result, trainings[0]))
    if checkpoint is not None:
        os.unlink(checkpoint)


def start(*given):
    """The same in a new process."""
    process = context.Process(target=whole_run, args=given)
    process.start()
    return process
