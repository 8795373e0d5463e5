"""Calls with the settings of a run, in processes of their own."""

from kill_cases import context

from gradmix import IncrementalClassifier, config_for
from gradmix.data import load_dataset
from gradmix.files import read_archive
from gradmix.methods import METHODS
from gradmix.runs.run import load_benchmark, prepare

WITHOUT_GRADIENTS = ("finetune", "joint")
SHARED = (
    *("method", "mix", "model", "epochs", "lr", "momentum", "weight_decay", "lr_steps", "alpha"),
    *("tau", "tables", "batch_size", "replay_batch_size", "exemplars_per_class", "memory_total"),
    *("criterion_exemplars", "pairing", "average", "transforms", "threads", "precision"),
)


def configuration(data, method, mix, **changes):
    config = config_for(data, method=method, mix=mix, **changes)
    return (
        config
        if METHODS[method].build.grows
        else config_for(data, method=method, mix=mix, head="fixed", **changes)
    )


def classifier_for(config, data):
    """A classifier with the settings of a run."""
    settings = {name: getattr(config, name) for name in SHARED}
    tau = None if config.recipe is None else config.recipe.tau
    grows = METHODS[config.method].build.grows
    return IncrementalClassifier(
        **{**settings, "tau": tau},
        options=dict(config.options),
        head_size=None if grows else len(data.class_names),
        mean=data.mean,
        std=data.std,
        random_state=config.seed,
        device="cpu",
    )


def one_run(config):
    """How a run in one go ends."""
    training = prepare(config, load_benchmark(config))
    for _ in training.events():
        pass
    state = training.state_dict()
    return {name: state[name] for name in ("method", "streams")}


def one_call(config, task, path):
    """Learn one task from a file, or from nothing, and leave a file."""
    data = load_dataset(config.data)
    samples = load_benchmark(config, data).tasks[task].train
    classifier = classifier_for(config, data)
    if task:
        classifier = IncrementalClassifier.load(path)
    classifier.partial_fit(samples.x, samples.y)
    classifier.save(path)


def in_processes(config, path, tasks):
    for task in range(tasks):
        process = context.Process(target=one_call, args=(config, task, path))
        process.start()
        process.join()
        assert process.exitcode == 0
    state = read_archive(path, "classifier")["training"]
    return {name: state[name] for name in ("method", "streams")}
