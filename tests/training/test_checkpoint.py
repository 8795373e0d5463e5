"""Checkpoints: exact from any event on, seldom enough, and only of the run they are of."""

import os
import pickle

import numpy as np
import pytest
import torch

from gradmix.data import from_folder, split_into_tasks
from gradmix.data.image_folders.write_shards import write_shards
from gradmix.errors import FileError
from gradmix.files import read_state_file, write_state_file
from gradmix.methods import METHODS
from gradmix.models import MLP, ResNet18, adapt
from gradmix.training import checkpoint as checkpoints
from gradmix.training.checkpoint import KIND, Checkpoint
from gradmix.training.loop import StepDone, TaskDone

TRAINED = [name for name, info in METHODS.items() if info.build.trains]
SIZES = ((8, 8), (5, 4), (4, 4))  # 2, 1 and 1 steps
MIXES = [
    *("none", "cutmix", "gradmix+", "gradient-class-balanced:linear:remix"),
    "gradient-keep-original:manifold:proportional",
]
ABOUT = {"config": {"epochs": 1, "seed": 0}}


@pytest.fixture
def quickly(monkeypatch):
    """Without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Record:
    """Results so far."""

    def __init__(self):
        self.seen = []

    def note(self, event):
        self.seen.append([type(event).__name__, event.task])

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def keeper(path, training, record=None, about=ABOUT, **settings):
    return Checkpoint(path, training, Record() if record is None else record, about, **settings)


@pytest.fixture(scope="module")
def check_resume(assert_same, assert_same_events):
    """From files written at events, new objects go on to the same events and state."""

    def call(tmp_path, make, stride=1):
        training, record = make(), Record()
        saved, events = [], []
        for number, event in enumerate(training.events()):
            record.note(event)
            saved.append(keeper(tmp_path / str(number), training, record))
            saved[-1].save()
            events.append(event)
        for number in range(0, len(events), stride):
            resumed, again = make(), Record()
            assert keeper(tmp_path / str(number), resumed, again).resume()
            assert_same_events(resumed.finish(), events[number + 1 :])
            assert_same(resumed.state_dict(), training.state_dict())
            assert again.seen == record.seen[: number + 1]
        assert all(
            read_state_file(one.path, KIND)["about"]["config"] == ABOUT["config"] for one in saved
        )

    return call


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("mixed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("method", TRAINED)
def test_resume_is_exact_for_every_method(
    tmp_path, method, mixed, blobs, check_resume, make_training
):
    mix = ("gradmix+" if METHODS[method].build.replays else "mixup") if mixed else "none"
    head = "growing" if mixed or METHODS[method].build.grows else "fixed"
    options = {"passes": 1.0} if method == "gdumb" else None  # for speed
    check_resume(
        tmp_path,
        lambda: make_training(
            method, mix, benchmark=blobs(SIZES), head=head, epochs=2, exemplars=2, options=options
        ),
        stride=7,  # tests/methods/test_resume.py resumes more often
    )


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("mix", MIXES)
def test_resume_is_exact_with_every_mix(tmp_path, mix, blobs, check_resume, make_training):
    check_resume(tmp_path, lambda: make_training("er", mix, benchmark=blobs(SIZES), exemplars=2))


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("method", ["er", "memo"])
def test_resume_is_exact_with_channels_last_weights_and_momentum(
    tmp_path, method, blobs, check_resume, make_training
):
    def network(outputs):  # PyTorch 2.13 crashes with channels-last weights of 4 channels
        net = ResNet18(outputs, in_channels=1, width=8)
        return net.to(memory_format=torch.channels_last)

    def make():
        return make_training(method, "mixup", network, benchmark=blobs(((8, 8), (4, 4))))

    check_resume(tmp_path, make)
    # What an optimizer has is laid out as it was, too: or it would step by other instructions.
    run = make()
    momentum = []
    for event in run.events():
        if isinstance(event, StepDone):
            keeper(tmp_path / "f", run).save()
            momentum = [s["momentum_buffer"] for s in run.method.optimizer.state.values()]
            break
    resumed = make()
    keeper(tmp_path / "f", resumed).resume()
    again = [s["momentum_buffer"] for s in resumed.method.optimizer.state.values()]
    assert [buffer.stride() for buffer in again] == [buffer.stride() for buffer in momentum]
    assert any(not buffer.is_contiguous() for buffer in momentum)


def photos(folder):
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for part, count in (("train", 9), ("test", 2)):
        for name in ["a", "b", "c", "d"]:
            (folder / part / name).mkdir(parents=True)
            for n in range(count):
                pixels = generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                image.fromarray(pixels).save(folder / part / name / f"{n}.png")


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(
    ("method", "mix"), [("er", "gradmix+"), ("mir", "none"), ("der++", "none")]
)
def test_resume_is_exact_with_streamed_images(tmp_path, method, mix, check_resume, make_training):
    photos(tmp_path / "photos")
    (tmp_path / "saved").mkdir()
    if mix == "gradmix+":
        write_shards(tmp_path / "photos", tmp_path / "shards", size=4000)
        benchmark = split_into_tasks(from_folder(tmp_path / "shards"), 2)
    else:
        benchmark = split_into_tasks(from_folder(tmp_path / "photos", stream=True), 2)
    check_resume(
        tmp_path / "saved", lambda: make_training(method, mix, benchmark=benchmark, exemplars=2)
    )


@pytest.mark.usefixtures("quickly")
def test_a_network_that_draws_from_the_global_generator(
    tmp_path, assert_same_events, blobs, make_training
):
    """Dropout, in a network of the user's own."""

    def make():
        torch.manual_seed(5)
        net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Dropout(), torch.nn.Linear(16, 6)
        )
        return make_training("er", network=lambda _: adapt(net), benchmark=blobs(SIZES), epochs=2)

    whole = make()
    file = keeper(tmp_path / "f", whole)
    events = whole.events()
    for event in events:
        if isinstance(event, TaskDone):
            file.save()
            break
    rest = list(events)
    resumed = make()
    torch.manual_seed(6)
    assert keeper(tmp_path / "f", resumed).resume()
    assert_same_events(resumed.finish(), rest)


def test_the_global_generator_is_left_alone_if_nobody_draws_from_it(tmp_path, make_training):
    run = make_training()
    file = keeper(tmp_path / "f", run)
    next(run.events())
    file.save()
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert keeper(file.path, make_training()).resume()
    assert torch.equal(torch.get_rng_state(), before)


class Clock:
    """Time that passes when told to; a save costs `cost` of it."""

    def __init__(self, monkeypatch, cost):
        self.now, self.cost, self.saved = 1000.0, cost, []
        monkeypatch.setattr(checkpoints, "perf_counter", lambda: self.now)
        monkeypatch.setattr(checkpoints, "write_state_file", self.write)

    def write(self, *_):
        self.saved.append(self.now - 1000)
        self.now += self.cost


def simulate(clock, file, seconds, *, task_every, step=0.5):
    """A training of this length, one event every half second."""
    steps = 0
    while clock.now < 1000 + seconds:
        clock.now += step
        steps += 1
        ends = steps % int(task_every / step) == 0
        event = TaskDone(0, {}, None, 0, 0) if ends else StepDone(0, 0, 1, 1, None)
        file.note(event)


@pytest.mark.parametrize("cost", [0.01, 0.1, 0.3, 1.0, 20.0])
def test_saving_takes_a_hundredth_of_the_time_at_most(tmp_path, monkeypatch, cost, make_training):
    clock = Clock(monkeypatch, cost)
    monkeypatch.setattr(checkpoints, "FIRST_GUESS", (cost, 1e99))
    simulate(clock, keeper(tmp_path / "f", make_training()), 20_000, task_every=1010)
    assert len(clock.saved) * cost <= 0.01 * 20_000
    gaps = np.diff(clock.saved)
    if cost <= 0.1:
        assert gaps.max() <= 31
        assert len(clock.saved) > 660  # every half minute, and at the 19 ends of tasks
        assert sum(gap < 29 for gap in gaps) == 19
    else:  # as often as it may
        assert gaps.max() <= 100 * cost + 31
        assert len(clock.saved) * cost >= 0.0095 * 20_000 - cost


def test_the_first_save_is_made_when_its_size_lets_it_be_cheap(
    tmp_path, monkeypatch, make_training
):
    clock = Clock(monkeypatch, 0.05)
    run = make_training()
    monkeypatch.setattr(run, "state_dict", lambda: {"w": [torch.zeros(10**7)]})  # 40 MB: 0.2 s
    simulate(clock, keeper(tmp_path / "f", run), 100, task_every=1)
    assert clock.saved[0] in (21.0, 22.0)
    assert np.diff(clock.saved).min() >= 1
    assert len(clock.saved) * 0.05 <= 0.01 * 100


def test_a_run_of_a_second_is_not_saved(tmp_path, blobs, make_training):
    run = make_training("er", benchmark=blobs(SIZES))
    file = keeper(tmp_path / "f", run)
    for event in run.events():
        file.note(event)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def started(make_training):
    """A run with a file of its first task."""

    def call(tmp_path, **settings):
        run = make_training("er", **settings)
        file = keeper(tmp_path / "f", run)
        for event in run.events():
            if isinstance(event, TaskDone):
                file.save()
                return file
        raise AssertionError

    return call


def test_resuming_says_where(tmp_path, make_training, started):
    said = []
    started(tmp_path)
    assert keeper(tmp_path / "f", make_training("er"), say=said.append).resume()
    assert said == ["resuming at task 2, epoch 1"]
    run = make_training("er")
    run.finish()
    keeper(tmp_path / "f", run).save()
    assert keeper(tmp_path / "f", make_training("er"), say=said.append).resume()
    assert said[1:] == ["resuming after the last task"]


def test_another_pytorch_is_mentioned(tmp_path, monkeypatch, make_training, started):
    said = []
    started(tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert keeper(tmp_path / "f", make_training("er"), say=said.append).resume()
    assert said[0].endswith("and is 9.9: results may differ in the last bits")


def test_contents_that_mean_something_else_are_not_continued(
    tmp_path, monkeypatch, make_training, started
):
    said = []
    started(tmp_path)
    contents = checkpoints.CONTENTS
    monkeypatch.setattr(checkpoints, "CONTENTS", 99)
    assert not keeper(tmp_path / "f", make_training("er"), say=said.append).resume()
    assert f"contents was {contents} and is 99" in said[0]


def test_there_is_nothing_to_resume(tmp_path, make_training):
    said = []
    assert not keeper(tmp_path / "f", make_training("er"), say=said.append).resume()
    assert said == []


@pytest.mark.parametrize(
    ("about", "benchmark", "expected"),
    [
        ({"config": {"epochs": 2, "seed": 0}}, None, r"epochs was 1 and is 2"),
        ({"config": {"epochs": torch.ones(2), "seed": 0}}, None, r"epochs was 1 and is tensor"),
        ({"config": {"epochs": 1}}, None, r"only one of them has seed"),
        ({**ABOUT, "protocol": 2}, None, r"only one of them has protocol"),
        (ABOUT, ((13, 12), (9, 9), (8, 9)), r"task_sizes was"),
    ],
)
def test_a_checkpoint_of_another_run_is_not_continued(
    tmp_path, about, benchmark, expected, assert_same, blobs, make_training, started
):
    started(tmp_path)
    said = []
    run = make_training("er", benchmark=None if benchmark is None else blobs(benchmark))
    before = run.state_dict()
    assert not keeper(tmp_path / "f", run, about=about, say=said.append).resume()
    assert_same(run.state_dict(), before)
    (message,) = said
    assert message.startswith("starting again: ")
    assert pytest.importorskip("re").search(expected, message)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-7], lambda _: b"", lambda _: b"PK", lambda data: bytes(len(data))],
)
def test_a_damaged_checkpoint_is_not_continued(tmp_path, damage, make_training, started):
    file, said = started(tmp_path), []
    file.path.write_bytes(damage(file.path.read_bytes()))
    assert not keeper(file.path, make_training("er"), say=said.append).resume()
    assert said[0].startswith(f"starting again: {file.path} cannot be used")


@pytest.mark.parametrize("content", [b"my notes", pickle.dumps({})])
def test_a_file_that_is_no_archive_is_refused_and_stays(tmp_path, content, make_training):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(FileError, match="is not a checkpoint; give another path"):
        keeper(tmp_path / "f", make_training("er")).resume()
    assert (tmp_path / "f").read_bytes() == content


def test_a_file_of_another_kind_is_refused_and_stays(tmp_path, make_training):
    write_state_file(tmp_path / "f", "classifier", {})
    before = (tmp_path / "f").read_bytes()
    with pytest.raises(FileError, match="is a classifier, not a checkpoint"):
        keeper(tmp_path / "f", make_training("er")).resume()
    assert (tmp_path / "f").read_bytes() == before


def without(*path):
    def edit(state):
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return edit


def with_value(value, *path):
    def edit(state):
        for name in path[:-1]:
            state = state[name]
        state[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        without("training"),
        without("training", "method", "memory"),
        without("record"),
        without("training", "streams", "seed"),
        with_value(1, "training", "streams", "seed"),
        with_value(3, "training"),
        with_value(10**15, "training", "method", "structure", "outputs"),
        with_value(-1, "training", "method", "structure", "seen"),
        with_value("6", "training", "method", "structure", "seen"),
        with_value(torch.tensor([10**12]), "training", "method", "memory", "y"),
        with_value(torch.tensor([-1]), "training", "method", "memory", "y"),
        with_value({"task": 9, "in_stage": True}, "training", "position"),
        with_value(-1, "training", "position", "task"),
        with_value(-1, "training", "position", "step"),
        with_value(50, "training", "position", "epoch"),
        with_value(1, "training", "position", "in_stage"),
        with_value(2.0, "training", "method", "structure", "seen"),
        with_value({"logits": torch.ones(6, 2)}, "training", "method", "memory", "extras"),
        without("versions"),
        with_value(torch.ones(3), "training", "method", "networks", "model", "head.weight"),
        with_value([], "training", "method", "networks"),
        with_value("x", "seconds"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error(tmp_path, edit, make_training, started):
    """Well formed, with all checksums right, and said to be of this run."""
    file = started(tmp_path, head="growing")
    state = read_state_file(file.path, KIND)
    edit(state)
    write_state_file(file.path, KIND, state)
    before = torch.get_rng_state()
    with pytest.raises(FileError, match=r"does not fit this run|is damaged"):
        keeper(file.path, make_training("er", head="growing")).resume()
    torch.set_rng_state(before)


def test_a_full_disk_is_said_once_and_does_not_end_the_training(
    tmp_path, monkeypatch, make_training
):
    def fail(_):
        raise OSError(28, "No space left on device")

    said = []
    run = make_training("er")
    file = keeper(tmp_path / "f", run, say=said.append)
    monkeypatch.setattr("gradmix.training.checkpoint.EVERY_SECONDS", 0)
    monkeypatch.setattr("gradmix.training.checkpoint.SHARE", 1e9)
    monkeypatch.setattr(os, "fsync", fail)
    for event in run.events():
        file.note(event)
    assert len(said) == 1
    assert "No space left on device; training continues" in said[0].replace("[Errno 28] ", "")
    assert not list(tmp_path.iterdir())


def test_seconds_add_up(tmp_path, make_training):
    run = make_training("er")
    file = keeper(tmp_path / "f", run)
    for event in run.events():
        if isinstance(event, TaskDone):
            break
    run.seconds.train, file.seconds_before = 100.0, 1000.0
    file.save()
    resumed = make_training("er")
    again = keeper(tmp_path / "f", resumed)
    again.resume()
    assert resumed.seconds.train == 100.0
    assert resumed.seconds.evaluate == run.seconds.evaluate > 0
    assert 1000 < again.seconds_before < 1100


def test_removing_leaves_nothing(tmp_path, started):
    file = started(tmp_path)
    (tmp_path / ".f.0123abcd.tmp").write_bytes(b"half")  # of a killed writer
    (tmp_path / ".g.0123abcd.tmp").write_bytes(b"half")  # of another file's
    file.remove()
    assert [path.name for path in tmp_path.iterdir()] == [".g.0123abcd.tmp"]
    file.remove()


def test_a_network_without_the_same_weights_takes_them_from_the_file(
    tmp_path, assert_same_events, make_training
):
    def make(seed):
        def network(outputs):
            torch.manual_seed(seed)
            return MLP(64, outputs, (16, 12))

        return make_training("er", network=network)

    run = make(1)
    events = run.events()
    next(events)
    keeper(tmp_path / "f", run).save()
    other = make(2)
    assert keeper(tmp_path / "f", other).resume()
    assert_same_events(other.finish(), list(events))
