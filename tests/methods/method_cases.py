"""A tiny benchmark of separable images, and any method × mix × network on it."""

import torch
from lightning_fabric import Fabric

from gradmix.criterion.selector import Judging
from gradmix.data import benchmark_from_tasks
from gradmix.data.pool import Normalise
from gradmix.memory import ReplayMemory
from gradmix.methods import Settings, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import parse_recipe
from gradmix.mixing.mixer import Mixer
from gradmix.models import MLP, ResNet18
from gradmix.randomness import RandomStreams
from gradmix.training.loop import StepDone, TaskDone, Training
from gradmix.types import Samples

SIDE = 8
SIZES = ((13, 12), (9, 8), (8, 9))  # samples of the two classes of each of three tasks
MIXES = [
    "none",
    "mixup",
    "manifold-mixup",
    "cutmix",
    "remix",
    "balanced-mixup",
    "gradmix",
    "gradmix+",
    "gradient:cutmix:remix",
    "gradient-keep-original:manifold:proportional",
    "gradient-softmax:linear:remix",
    "gradient-refined:linear:remix",
]
NETWORKS = {
    "mlp": lambda channels, outputs: MLP(channels * SIDE * SIDE, outputs, (16, 12)),
    "resnet": lambda channels, outputs: ResNet18(outputs, in_channels=channels, width=4),
}


def blobs(sizes=SIZES, channels=1, noise=20, tests=5, seed=1):
    """Images around one random image per class, well separated unless the noise is great."""
    generator = torch.Generator().manual_seed(seed)
    shape = (channels, SIDE, SIDE)
    centres = torch.randint(60, 196, (sum(map(len, sizes)), *shape), generator=generator)

    def samples(first, counts):
        y = torch.cat([torch.full((n,), first + k) for k, n in enumerate(counts)])
        offsets = torch.randint(-noise, noise + 1, (len(y), *shape), generator=generator)
        return Samples((centres[y] + offsets).clamp(0, 255).to(torch.uint8), y)

    tasks, first = [], 0
    for counts in sizes:
        tasks.append((samples(first, counts), samples(first, [tests] * len(counts))))
        first += len(counts)
    return benchmark_from_tasks("blobs", tasks)


def make_training(
    method="er",
    mix="none",
    network="mlp",
    *,
    benchmark=None,
    seed=0,
    options=None,
    memory=None,
    head="fixed",
    exemplars=3,
    criterion="auto",
    rolling=1,
    level="class",
    **settings,
):
    """A method ready to train; `network` is a name or a function of the number of outputs."""
    benchmark = blobs() if benchmark is None else benchmark
    streams = RandomStreams(seed)
    kind = find_method(method)
    classes = benchmark.num_classes
    growing = kind.grows or head == "growing"
    outputs = len(benchmark.tasks[0].classes) if growing else classes
    channels = benchmark.tasks[0].train.x.shape[1]
    with streams.as_global("weights"):
        model = network(outputs) if callable(network) else NETWORKS[network](channels, outputs)
    mixer = Mixer(
        parse_recipe(mix, level=level),
        classes,
        host=streams.host("mixing"),
        generator=streams.device("mixing"),
        mix_points=model.mix_points,
        judging=Judging(exemplars_per_class=3, criterion=criterion, rolling=rolling),
    )
    given = {"epochs": 1, "batch_size": 8, "replay_batch_size": 6, "lr": 0.05, **settings}
    learner = kind(
        model,
        ReplayMemory(**({"exemplars_per_class": exemplars} if memory is None else memory)),
        mixer,
        Settings(head=head, **given),
        streams,
        Normalise(benchmark.mean, benchmark.std),
        read_options(kind.options_type, {} if options is None else options),
    )
    return Training(benchmark, learner, Fabric(accelerator="cpu", devices=1))


def finish(training):
    """All events from here to the end."""
    return list(training.events())


def run_tasks(training, number):
    """Train until `number` tasks are done; a new `events()` goes on from there."""
    for event in training.events():
        if isinstance(event, TaskDone) and event.task == number - 1:
            return


def stop_in_task(training, task, steps=1, stage=None):
    """Train until `steps` steps of task number `task` (from 0), or of its stage, are done."""
    done = 0
    for event in training.events():
        if isinstance(event, StepDone) and event.task == task:
            done += stage is None or training.method.stage.name == stage
            if done == steps:
                return
    raise AssertionError("there is no such step")


def one_step(method, new):
    """The loss of a step with these new samples, planned now."""
    method.new = new[None]
    method.plan = method.plan_epoch(method.new)
    return method.train_step(0)


def flat(state, prefix=""):
    """Every leaf of a state by its path."""
    if isinstance(state, dict | list | tuple):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for name, value in items for k, v in flat(value, f"{prefix}/{name}").items()}
    return {prefix: state}


def assert_same(one, other):
    """Two structures of tensors and plain values, bit by bit."""
    a, b = flat(one), flat(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if torch.is_tensor(value) else value == b[name]
        assert same, name


def assert_same_events(ours, theirs):
    """Event by event, bit by bit."""
    assert [type(event) for event in ours] == [type(event) for event in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one._asdict(), other._asdict())


def accuracies(training):
    """Share of each task's test samples that are classified right now."""
    correct = training.evaluate()["main"]
    tasks = training.benchmark.tasks
    return [float(correct[list(task.classes)].sum()) / len(task.test.y) for task in tasks]
