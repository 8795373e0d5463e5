"""Runs whose tasks share classes."""

import json

import pytest
import torch

from gradmix import ResultStore, config_for, load_result
from gradmix.data import from_arrays, split_into_domains, split_into_tasks
from gradmix.errors import FileError, InputError
from gradmix.memory import ReplayMemory, random_priority
from gradmix.methods import METHODS
from gradmix.randomness import RandomStreams
from gradmix.report import write_report
from gradmix.runs.results import RunRecord, result_name
from gradmix.runs.run import build_method, load_benchmark, prepare, run
from gradmix.training.build import make_fabric
from gradmix.training.loop import TaskDone, Training
from gradmix.types import Samples

DOMAINS = {"scenario": "domain-incremental", "domain_shift": "rotated", "domains": 3}
BLURRY = {"scenario": "blurry", "blur": 0.2, "increments": (5,)}
UNSUPPORTED = ("foster", "memo", "icarl", "der-expandable", "drc")


def quick(**changes):
    given = {"mix": "gradmix+", "epochs": 1, "device": "cpu", "exemplars_per_class": 8, **changes}
    return config_for("digits", **given)


@pytest.mark.parametrize("scenario", [DOMAINS, BLURRY])
def test_the_accuracy_matrix_is_by_task(scenario):
    config = quick(**scenario)
    training = prepare(config, load_benchmark(config))
    record = RunRecord(training, config)
    record.begin(training.evaluate())
    for event in training.events():
        record.note(event)
        if not isinstance(event, TaskDone):
            continue
        for number, task in enumerate(training.benchmark.tasks):
            scores = training.method.predict(training.method.normalise(task.test.x))
            right = scores.argmax(dim=1) == task.test.y
            assert record.accuracy["main"][-1][number] == pytest.approx(float(right.float().mean()))
        shares = torch.tensor(record.class_accuracy[-1])
        totals = torch.cat([task.test.y for task in training.benchmark.tasks]).bincount()
        assert float((shares * totals).sum()) == pytest.approx(float(event.correct["main"].sum()))


@pytest.mark.parametrize("name", sorted({*METHODS} - {"ridge", "ncm", "slda"}))
@pytest.mark.parametrize("scenario", [DOMAINS, BLURRY], ids=["domains", "blurry"])
def test_every_method_learns_or_says_that_it_cannot(name, scenario):
    changes = {**scenario, "method": name, "mix": "none"}
    if METHODS[name].build.needs_new_classes:
        with pytest.raises(InputError, match=r"needs new classes in every task; give scenario"):
            quick(**changes)
        return
    epochs = 3 if name == "gdumb" else 2  # it trains on the memory alone
    result = run(quick(**changes, epochs=epochs))
    assert result.metrics["final_accuracy"] > 0.3  # chance is 0.1


def test_the_methods_that_need_new_classes():
    assert {name for name, info in METHODS.items() if info.build.needs_new_classes} >= {
        *UNSUPPORTED
    }


def test_a_training_checks_the_scenario_itself():
    config = quick(method="icarl", mix="none")
    data = from_arrays(*_two_classes(), *_two_classes())
    benchmark = split_into_domains(data, 2)
    method = build_method(config, benchmark, RandomStreams(0, torch.device("cpu")))
    with pytest.raises(InputError, match="ICaRL needs new classes"):
        Training(benchmark, method, make_fabric("cpu", "32-true"))


def _two_classes():
    return torch.zeros(8, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1] * 4)


def test_a_benchmark_of_another_scenario_is_refused():
    data = from_arrays(*_two_classes(), *_two_classes())
    with pytest.raises(InputError, match=r"benchmark is domain-incremental, but scenario"):
        run(quick(increments=(2,)), benchmark=split_into_domains(data, 2))


@pytest.mark.parametrize("scenario", [DOMAINS, BLURRY], ids=["domains", "blurry"])
def test_results_are_stored_and_shown(tmp_path, scenario):
    store = ResultStore(tmp_path / "store").create()
    result = run(quick(**scenario))
    path = store.save(result)
    assert load_result(path) == result
    write_report([result], tmp_path / "report.html")
    content = json.loads(path.read_text())
    content["config"]["scenario"] = "class-incremental"
    for name in ("blur", "domains", "domain_shift"):
        content["config"].pop(name)
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="the classes are not those"):
        load_result(path)


def test_a_stopped_run_resumes_exactly(tmp_path):
    config = quick(**DOMAINS, epochs=2)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(_, event):
        if isinstance(event, TaskDone) and event.task == 1:
            raise Stopped

    with pytest.raises(Stopped):
        run(config, stop, checkpoint=tmp_path / "c")
    resumed, whole = run(config, checkpoint=tmp_path / "c"), run(config)
    assert resumed.accuracy == whole.accuracy
    assert resumed.pair_counts == whole.pair_counts


def test_defaults_leave_the_names_of_results_as_they_were():
    config = quick().to_json()
    older = {
        name: value
        for name, value in config.items()
        if name not in {*DOMAINS, "blur", "scenario_seed"}
    }
    assert result_name(config) == result_name(older)


def test_a_class_that_returns_keeps_exemplars_of_both_tasks():
    memory, generator = ReplayMemory(exemplars_per_class=100), torch.Generator().manual_seed(0)
    for task in range(2):
        x, y = torch.full((1000, 1), float(task)), torch.zeros(1000, dtype=torch.int64)
        memory.add(Samples(x, y), random_priority(1000, generator))
    assert len(memory) == 100
    assert 30 <= int(memory.x.sum()) <= 70  # a uniform sample of both


def test_blurry_data_in_files_stay_in_files(tmp_path):
    from PIL import Image

    from gradmix.data import StreamedImages, from_folder

    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(10):
            Image.new("L", (4, 4), number).save(tmp_path / label / f"{number}.png")
    tasks = split_into_tasks(from_folder(tmp_path, stream=True), 1, blur=0.25).tasks
    assert all(isinstance(task.train.x, StreamedImages) for task in tasks)
    assert [task.train.y.tolist() for task in tasks] == [[0] * 6 + [1] * 2, [0] * 2 + [1] * 6]
