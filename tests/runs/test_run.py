"""Whole runs on the embedded digits."""

import copy
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from gradmix import config_for, run
from gradmix.data import from_folder, split_into_tasks
from gradmix.errors import InputError
from gradmix.models import MODELS, ModelInfo, adapt
from gradmix.runs.run import load_benchmark, prepare
from gradmix.training.build import make_fabric
from gradmix.training.metrics import all_metrics, task_aware_metrics


def quick(**changes):
    return config_for("digits", **{"epochs": 4, "mix": "gradmix+", **changes})


@pytest.fixture(scope="module")
def result():
    return run(quick())


def test_a_result_is_complete_and_consistent(result):
    sizes = [t["train"] for t in result.tasks]
    assert sum(sizes) + sum(t["test"] for t in result.tasks) == 1797
    assert [t["classes"] for t in result.tasks] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [t["memory"] for t in result.tasks] == [8, 16, 24, 32, 40]
    assert [t["replay_batch"] for t in result.tasks] == [0, 8, 16, 24, 32]
    assert np.shape(result.accuracy) == (5, 5)
    assert np.shape(result.class_accuracy) == (5, 10)
    assert np.shape(result.pair_counts) == (5, 10, 10)
    assert [(e["task"], e["stage"], len(e["loss"])) for e in result.epochs] == [
        (task, "train", 4) for task in range(5)
    ]
    rates = [rate for e in result.epochs for rate in e["negative_rate"]]
    assert rates[:4] == [None] * 4
    assert all(0 <= rate <= 1 for rate in rates[4:])
    assert result.metrics == all_metrics(
        result.accuracy, result.initial_accuracy
    ) | task_aware_metrics(result.task_aware_accuracy)
    assert result.metrics["average_accuracy"] > 0.5
    assert result.class_names == [str(n) for n in range(10)]
    assert set(result.seconds) == {
        "train", "criterion", "evaluate", "total", "criterion_by_task",
    }  # fmt: skip
    by_task = result.seconds["criterion_by_task"]
    assert (len(by_task), sum(by_task)) == (5, pytest.approx(result.seconds["criterion"]))
    assert result.seconds["total"] > result.seconds["train"] > 0
    assert result.versions["torch"] == torch.__version__


def test_task_accuracy_is_the_mean_over_its_test_samples(result):
    benchmark = load_benchmark(quick())
    for task in benchmark.tasks:
        counts = task.test.y.bincount(minlength=10).numpy()[list(task.classes)]
        by_class = np.array(result.class_accuracy)[:, list(task.classes)]
        column = np.array(result.accuracy)[:, task.classes[0] // 2]
        assert np.allclose(by_class @ counts / counts.sum(), column)


def test_the_same_seed_twice_is_the_same_result_but_for_the_times(result):
    def without_times(r):
        return json.dumps({k: v for k, v in asdict(r).items() if k != "seconds"})

    assert without_times(run(quick())) == without_times(result)
    assert run(quick(seed=1)).accuracy != result.accuracy


def test_seed_and_class_order_are_independent():
    shuffled = run(quick(class_order="seed:1993", epochs=1))
    assert shuffled.class_order == [4, 2, 7, 6, 0, 3, 5, 8, 9, 1]
    assert shuffled.class_names[:2] == ["4", "2"]


def test_global_random_state_and_threads_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    threads = torch.get_num_threads()
    run(quick(epochs=1, threads=2))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("precision", ["bf16-mixed"])
def test_other_precisions_learn_too(precision):
    assert run(quick(precision=precision)).metrics["average_accuracy"] > 0.5


def test_a_fixed_total_memory():
    tasks = run(quick(memory_total=20, epochs=1)).tasks
    assert [t["memory"] for t in tasks] == [20] * 5


def test_uneven_increments_and_validation():
    config = quick(increments=(4, 1, 5), validation=100, evaluate_on="validation", epochs=1)
    result = run(config)
    assert [len(t["classes"]) for t in result.tasks] == [4, 1, 5]
    assert sum(t["test"] for t in result.tasks) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"increments": (3,)}, "increments"),
        ({"increments": (20,)}, "increments"),
        ({"increments": (5, 5, 1)}, "increments"),
        ({"class_order": (0, 0, 1, 2, 3, 4, 5, 6, 7, 8)}, "class_order"),
        ({"validation": 5000}, "validation is 5000"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        load_benchmark(quick(**changes))


@pytest.mark.parametrize("device", ["cuda:x", "tpuu"])
def test_unusable_devices_are_refused(device):
    with pytest.raises(InputError, match=f"device is {device!r}.*; give auto, cpu, cuda"):
        make_fabric(device, "32-true")


def test_a_total_that_cannot_hold_the_classes_is_refused_before_training():
    with pytest.raises(InputError, match="memory_total is 9"):
        load_benchmark(quick(memory_total=9))


def write_photos(folder, number=12):
    """Two parts with three classes of noisy photos of 12 × 12, each class brighter in a channel."""
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for part, count in (("train", number), ("test", 4)):
        for channel, name in enumerate(["blue", "green", "red"]):
            (folder / part / name).mkdir(parents=True)
            for n in range(count):
                pixels = generator.integers(0, 120, (12, 12, 3), dtype=np.uint8)
                pixels[:, :, channel] += 100
                image.fromarray(pixels).save(folder / part / name / f"{n}.png")


def test_joint_training_refuses_what_does_not_fit_in_memory(tmp_path):
    write_photos(tmp_path, 4)
    settings = {"method": "joint", "mix": "none", "model": "resnet18-narrow"}
    benchmark = split_into_tasks(from_folder(tmp_path, stream=True), (2, 1))
    with pytest.raises(InputError, match="which keeps all data in memory"):
        run(config_for(f"folder:{tmp_path}", increments=(2, 1), **settings), benchmark=benchmark)
    with pytest.raises(InputError, match=r"tasks of \[2, 1\] classes, .* is \[2\]"):
        run(config_for(f"folder:{tmp_path}", **settings), benchmark=benchmark)


def test_a_checkpoint_is_a_file(tmp_path):
    with pytest.raises(InputError, match=r"checkpoint is .*; name a file, not a folder"):
        run(config_for("digits", epochs=1), checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["er", "mir", "gss", "der", "icarl"])
def test_streamed_images_give_the_same_result_as_in_memory(tmp_path, method):
    write_photos(tmp_path)
    settings = {"method": method, "model": "resnet18-tiny", "increments": (2, 1), "epochs": 2}
    settings |= {"lr": 0.01, "transforms": (), "batch_size": 8, "exemplars_per_class": 4, "seed": 3}
    config = config_for(f"folder:{tmp_path}", **settings)
    results = [
        run(config, benchmark=split_into_tasks(from_folder(tmp_path, stream=stream), (2, 1)))
        for stream in (False, True)
    ]
    in_memory, streamed = ({**asdict(r), "seconds": None} for r in results)
    assert in_memory == streamed


def test_an_image_folder_by_name_with_transforms(tmp_path):
    write_photos(tmp_path)
    config = config_for(
        f"folder:{tmp_path}@10",
        model="resnet18-narrow",
        increments=(2, 1),
        epochs=1,
        batch_size=8,
        transforms=("crop", "flip", "randaugment"),
    )
    one, two = run(config), run(config)
    assert one.class_names == ["blue", "green", "red"]
    assert one.accuracy == two.accuracy


def test_convolutions_on_a_cpu_are_channels_last_and_the_same(tmp_path):
    write_photos(tmp_path, 4)
    config = config_for(f"folder:{tmp_path}", model="resnet18-tiny", increments=(2, 1))
    model = prepare(config, load_benchmark(config)).method.model
    convolution = model.shared.stem[0].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    usual = copy.deepcopy(model).to(memory_format=torch.contiguous_format).eval()
    x = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.eval()(x), usual(x))


def test_analyses_are_taken_along_and_change_nothing_else(result):
    names = ["class-distance", "detrimental-rate"]
    analysed = asdict(run(quick(analyses=names)))
    assert list(analysed["analysis"]) == names
    at = [(e["task"], e["epoch"]) for e in analysed["analysis"]["detrimental-rate"]]
    assert at == [(task, epoch) for task in range(1, 5) for epoch in range(1, 5)]
    assert all(0 <= e["whole_network"] <= 1 for e in analysed["analysis"]["detrimental-rate"])
    changed = {name for name, value in asdict(result).items() if analysed[name] != value}
    assert changed == {"config", "analysis", "seconds"}


def test_an_unknown_analysis_is_refused():
    with pytest.raises(InputError, match="class-distance"):
        quick(analyses=["class-distanc"])


def test_dropout_follows_the_seed(monkeypatch):
    def network(shape, outputs):
        layers = nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.Dropout(0.5)
        return adapt(nn.Sequential(*layers, nn.Linear(16, outputs)))

    monkeypatch.setitem(MODELS, "own", ModelInfo("own", "own", network))
    found = [run(quick(model="own", mix="none")).accuracy for _ in range(2)]
    assert found[0] == found[1]


def test_a_run_says_where_mir_is_the_same_as_er():
    """Four exemplars of up to six old classes fit into a replay batch of 24."""
    said = []
    config = config_for("digits", method="mir", mix="none", epochs=1, replay_batch_size=24)
    run(config, say=said.append)
    sizes = [(2, 8), (3, 16), (4, 24)]
    assert said == [
        f"task {task}: the memory of {size} samples fits into the replay batch: MIR replays all of "
        "it, as ER does"
        for task, size in sizes
    ]
