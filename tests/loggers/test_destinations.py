"""The adapters of services, with stand-ins for their packages, and TensorBoard if installed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gradmix import LogTo
from gradmix.loggers.destinations import TensorBoardLogger


def train(training, log, steps=None):
    """Train with a log, perhaps only a number of steps; return the state."""
    for event in training.events():
        log(event)
        if training.position.total_steps == steps:
            break
    return training.state_dict()


@pytest.fixture
def resumed(make_training):
    """Return a training that resumes after 5 steps."""
    training = make_training()
    training.load_state_dict(train(make_training(), lambda event: None, steps=5))
    return training


class FakeWandb(ModuleType):
    """Keeps runs by id, as wandb does."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.calls = {}, []

    def init(self, *, project, name, id, config, resume):  # noqa: A002
        self.calls.append((project, name, resume))
        if resume is None:
            self.runs.pop(id, None)
        return self.runs.setdefault(id, FakeWandbRun(config))


class FakeWandbRun:
    """Would warn about steps before the current one."""

    def __init__(self, config):
        self.config, self.history, self.step, self.finished = config, [], 0, False

    def log(self, values, step):
        assert step >= self.step - 1
        self.history += [(step, name) for name in values]
        self.step = step + 1

    def finish(self):
        self.finished = True


def test_wandb_continues_the_run_of_the_same_name(make_training, resumed, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    to = LogTo(["wandb:project"], every_steps=1)
    train(make_training(), to.open("a", {"lr": 0.1}), steps=8)
    with to.open("a", {"lr": 0.1}) as log:
        train(resumed, log)
    [run] = wandb.runs.values()
    assert run.finished
    assert run.config == {"lr": 0.1}
    assert wandb.calls == [("project", "a", None), ("project", "a", "allow")]
    with to.open("a") as log:  # a new run replaces it
        train(make_training(), log)
    [whole] = wandb.runs.values()
    assert whole is not run
    assert whole.history == run.history


class FakeMlflow(ModuleType):
    """Keeps runs and metrics; a metric may be logged twice, as in MLflow itself."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.params, self.history, self.ended = [], {}, {}, []
        self.MlflowClient = lambda: self

    def set_experiment(self, name):
        return SimpleNamespace(experiment_id=f"id of {name}")

    def create_run(self, experiment, run_name, tags):
        number = f"run {len(self.runs)}"
        info = SimpleNamespace(run_id=number, experiment=experiment, name=run_name, tags=tags)
        self.runs.append(SimpleNamespace(info=info, data=SimpleNamespace(metrics={})))
        self.params[number], self.history[number] = {}, []
        return self.runs[-1]

    def search_runs(self, experiments, where, order_by, max_results):
        assert order_by == ["attributes.start_time DESC"]
        name = where.removeprefix("tags.`gradmix.name` = '").removesuffix("'")
        found = [run for run in self.runs if run.info.tags["gradmix.name"] == name]
        return [run for run in reversed(found) if run.info.experiment in experiments][:max_results]

    def get_metric_history(self, run, name):
        return [SimpleNamespace(step=step) for step, key, _ in self.history[run] if key == name]

    def log_param(self, run, name, value):
        self.params[run][name] = value

    def log_metric(self, run, name, value, step):
        self.history[run].append((step, name, value))
        next(r for r in self.runs if r.info.run_id == run).data.metrics[name] = value

    def set_terminated(self, run):
        self.ended.append(run)


def test_mlflow_continues_the_newest_run_of_the_same_name(make_training, resumed, monkeypatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    to = LogTo(["mlflow:experiment"], every_steps=1)
    with to.open("a", {"lr": 0.1}) as log:
        train(make_training(), log)
    train(make_training(), to.open("a", {"lr": 0.2}), steps=9)
    with to.open("a") as log:
        train(resumed, log)
    assert mlflow.params == {"run 0": {"lr": 0.1}, "run 1": {"lr": 0.2}}
    assert mlflow.history["run 1"] == mlflow.history["run 0"]  # no metric twice, none missing
    assert mlflow.ended == ["run 0", "run 1"]


class FakeWriter:
    """Stands in for SummaryWriter, which writes a file of its own."""

    def __init__(self, folder, written):
        self.scalars, self.texts = [], []
        written.setdefault(folder, []).append(self)

    def add_text(self, name, text):
        self.texts.append((name, text))

    def add_scalar(self, name, value, step):
        self.scalars.append((name, step, value))

    def flush(self):
        pass

    def close(self):
        pass


class FakeReader:
    """Stands in for EventAccumulator."""

    def __init__(self, written, folder, guidance):
        assert guidance == {"scalars": 1}
        self.last = {name: step for w in written[folder] for name, step, _ in w.scalars}

    def Reload(self):  # noqa: N802
        pass

    def Tags(self):  # noqa: N802
        return {"scalars": list(self.last)}

    def Scalars(self, name):  # noqa: N802
        return [SimpleNamespace(step=self.last[name])]


@pytest.fixture
def written(monkeypatch):
    """Return the writers of each folder."""
    files = {}
    modules = {
        "tensorboard": {},
        "torch.utils.tensorboard": {"SummaryWriter": lambda folder: FakeWriter(folder, files)},
        "tensorboard.backend.event_processing.event_accumulator": {
            "EventAccumulator": lambda *args: FakeReader(files, *args)
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return files


def test_tensorboard_continues_with_another_file(make_training, resumed, written, tmp_path):
    to, folder = LogTo([f"tensorboard:{tmp_path}"], every_steps=1), tmp_path / "a"
    folder.mkdir()
    (folder / "events.out.tfevents.old").write_text("of an earlier run")
    train(make_training(), to.open("a", {"lr": 0.1}), steps=9)
    assert not list(folder.iterdir())
    with to.open("a") as log:
        train(resumed, log)
    train(make_training(), to.open("b"))
    [first, second], [whole] = written[str(folder)], written[str(tmp_path / "b")]
    assert first.texts == [("config", "    lr = 0.1")]
    assert first.scalars + second.scalars == whole.scalars


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(str(tmp_path), "a")
    assert logger.begin({"lr": 0.1}, resumed=False) == {}
    logger.log(3, {"loss": 0.5})
    logger.log(4, {"loss": 0.25, "accuracy": 1.0})
    logger.close()
    again = TensorBoardLogger(str(tmp_path), "a")
    assert again.begin({}, resumed=True) == {"loss": 4, "accuracy": 4}
    again.close()
