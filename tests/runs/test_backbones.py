"""Runs with pretrained networks: frozen, fine-tuned, stopped and resumed; weights of files."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gradmix.data import load_dataset
from gradmix.errors import CorruptFileError, DataWarning, InputError
from gradmix.models import MODELS, build_empty_model, build_model
from gradmix.models.efficientnet_lite import EfficientNetLite0
from gradmix.models.pretrained import load_pretrained
from gradmix.runs.backbones import fine_tuned_network
from gradmix.runs.config import config_for
from gradmix.runs.run import load_benchmark, new_network, prepare, run
from gradmix.training.loop import StepDone

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos of three colours, and weights that nobody trained."""
    place = tmp_path_factory.mktemp("photos")
    numbers = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for name, colour in COLOURS.items():
            (place / part / name).mkdir(parents=True)
            for number in range(count):
                noise = numbers.integers(0, 50, (8, 8, 3))
                image = Image.fromarray((noise + colour).astype(np.uint8))
                image.save(place / part / name / f"{number}.png")
    torch.manual_seed(0)
    save_file(EfficientNetLite0().state_dict(), place / "weights.safetensors")
    return place


@pytest.fixture(scope="module")
def config(folder):
    """Return a function that makes a configuration with EfficientNet-Lite0."""

    def make(**settings):
        return config_for(
            **{
                "data": f"folder:{folder}@8",
                "model": "efficientnet-lite0",
                "weights": str(folder / "weights.safetensors"),
                "increments": (2, 1),
                "epochs": 1,
                "batch_size": 4,
                "replay_batch_size": 2,
                "exemplars_per_class": 2,
                **settings,
            },
        )

    return make


def test_a_frozen_network_turns_photos_into_embeddings(config, folder):
    frozen = config(mix="none", method="ridge")
    benchmark = load_benchmark(frozen)
    backbone = load_pretrained("efficientnet-lite0", weights=folder / "weights.safetensors")
    photos = load_dataset(f"folder:{folder}@8").train.x[:4]
    torch.testing.assert_close(
        benchmark.tasks[0].train.x[:4], backbone.embed(photos), atol=1e-3, rtol=1e-3
    )
    assert run(frozen).metrics["final_accuracy"] == 1.0
    given = load_benchmark(config(model="linear", weights=None))  # photos of a caller
    assert run(frozen, benchmark=given).metrics["final_accuracy"] == 1.0


def test_embedding_tells_how_many_photos_are_done(config, monkeypatch):
    monkeypatch.setattr("gradmix.runs.backbones.EMBED_BATCH", 5)
    seen = []
    frozen = config(mix="none", method="ridge", skip_unreadable="yes")  # not embedded before
    prepare(frozen, on_photo=lambda done, total: seen.append((done, total)))
    assert seen == [(5, 18), (10, 18), (12, 18), (17, 18), (18, 18)]
    prepare(frozen, on_photo=lambda done, total: seen.append((done, total)))
    assert len(seen) == 5  # kept


def test_changed_photos_and_weights_take_effect_in_the_same_process(config, folder, tmp_path):
    copy, weights = tmp_path / "photos", tmp_path / "weights.safetensors"
    shutil.copytree(folder, copy)
    shutil.copy(folder / "weights.safetensors", weights)

    def first_sample():
        frozen = config(data=f"folder:{copy}@8", weights=str(weights), mix="none", method="ridge")
        return prepare(frozen).benchmark.tasks[0].train.x[0]

    before = first_sample()
    assert torch.equal(first_sample(), before)
    torch.manual_seed(1)
    save_file(EfficientNetLite0().state_dict(), weights)
    other_weights = first_sample()
    assert not torch.equal(other_weights, before)
    shutil.copyfile(copy / "train" / "red" / "0.png", copy / "train" / "blue" / "0.png")
    assert not torch.equal(first_sample(), other_weights)


def test_unreadable_photos_are_skipped_if_asked(config, folder, tmp_path):
    copy = tmp_path / "photos"
    shutil.copytree(folder, copy)
    (copy / "train" / "red" / "broken.png").write_bytes(b"no image")
    plain = {"model": "linear", "weights": None}
    with pytest.raises(CorruptFileError, match="--skip-unreadable yes"):
        load_benchmark(config(data=f"folder:{copy}@8", **plain))
    with pytest.warns(DataWarning, match="skipped 1 of 19 images"):
        found = load_benchmark(config(data=f"folder:{copy}@8", skip_unreadable="yes", **plain))
    assert sum(len(task.train.y) for task in found.tasks) == 12


def test_a_fine_tuned_run_resumes_exactly(config, tmp_path, monkeypatch):
    monkeypatch.setattr("gradmix.training.checkpoint.SHARE", 1e9)  # save after every task
    tuned = config(finetune="last", mix="gradmix+", transforms=("flip",), lr=0.01)
    whole = run(tuned)

    def stop(training, event):
        if isinstance(event, StepDone) and event.task == 1:
            raise KeyboardInterrupt

    file = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run(tuned, on_event=stop, checkpoint=file)
    said = []
    again = run(tuned, checkpoint=file, say=said.append)
    assert said == ["resuming at task 2, epoch 1"]
    assert again.accuracy == whole.accuracy
    assert [epoch["loss"] for epoch in again.epochs] == [epoch["loss"] for epoch in whole.epochs]


def test_photos_are_not_normalised_twice(config):
    training = prepare(config(finetune="all"), load_benchmark(config(finetune="all")))
    pixels = training.benchmark.tasks[0].train.x[:1]
    torch.testing.assert_close(training.method.normalise(pixels), pixels / 255)


def test_weights_start_any_network(tmp_path):
    source = build_model("mlp-small", (1, 8, 8), 10, generator=torch.Generator().manual_seed(5))
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    config = config_for("digits", weights=str(tmp_path / "a.safetensors"))
    model = prepare(config, load_benchmark(config)).method.model
    assert torch.equal(model.shared[0].weight, source.shared[0].weight)
    assert not torch.equal(model.head.weight, source.head.weight)


@pytest.mark.parametrize("name", sorted({*MODELS} - {"linear"}))
@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_every_network_starts_from_weights_in_both_formats(tmp_path, name, kind):
    shapes = build_empty_model(name, (3, 32, 32), 10).state_dict()
    tensors = {key: torch.ones(t.shape, dtype=t.dtype) for key, t in shapes.items()}
    path = tmp_path / f"weights.{kind}"
    save_file(tensors, path) if kind == "safetensors" else torch.save(tensors, path)
    config = config_for("cifar-10", model=name, weights=str(path))
    network = new_network(config, (3, 32, 32), 4, torch.Generator().manual_seed(0))
    loaded = {key for key, t in network.state_dict().items() if bool((t == 1).all())}
    assert {key for key in shapes if not key.startswith("head.")} <= loaded
    assert "head.weight" not in loaded


def test_weights_for_a_head_alone_are_refused(tmp_path):
    save_file({"head.weight": torch.zeros(10, 64)}, tmp_path / "a.safetensors")
    config = config_for("digits", model="linear", weights=str(tmp_path / "a.safetensors"))
    with pytest.raises(InputError, match="the network has only a head"):
        prepare(config, load_benchmark(config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "cnn", "finetune": "last"}, "cnn is not pretrained"),
        ({"model": "efficientnet-lite0", "transforms": ("flip",)}, "frozen network only once"),
        ({"model": "resnet19"}, "unknown network 'resnet19'"),
        ({"finetune": "some"}, "unknown finetune 'some'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        config_for("cifar-10", **settings)


def test_rows_are_no_photos(config):
    with pytest.raises(InputError, match=r"takes photos; the samples have shape \(5,\)"):
        fine_tuned_network(config(finetune="all"), (5,), 2, torch.Generator())


def test_a_missing_file_is_named(folder):
    config = config_for(f"folder:{folder}@8", model="cnn", weights="none.pth", increments=(2, 1))
    with pytest.raises(InputError, match=r"weights is 'none.pth'; there is no such file"):
        prepare(config, load_benchmark(config))
