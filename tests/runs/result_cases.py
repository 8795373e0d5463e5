"""Results made by hand."""

from gradmix.runs.config import config_for
from gradmix.runs.results import RunResult


def example(accuracy=1.0, **config):
    """A result with this average accuracy, and forgetting of a tenth of it."""
    return RunResult(
        config=config_for(**{"data": "digits", **config}).to_json(),
        versions={"gradmix": "0"},
        class_names=["a", "b"],
        class_order=[1, 0],
        tasks=[],
        accuracy=[[1.0]],
        initial_accuracy=[0.5],
        class_accuracy=[[1.0, 0.5]],
        metrics={"average_accuracy": accuracy, "forgetting_from_best": accuracy / 10},
        variants={},
        epochs=[{"task": 0, "stage": "train", "loss": [0.5], "negative_rate": [None]}],
        pair_counts=[[[1, 2], [3, 4]]],
        seconds={"total": 1.0},
    )
