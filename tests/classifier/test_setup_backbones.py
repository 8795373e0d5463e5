"""Backbones of the caller: modules, Hugging Face outputs and weights in files."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradmix import IncrementalClassifier
from gradmix.classifier.setup import DEFAULT, default_backbone
from gradmix.errors import FileError, InputError
from gradmix.models.pretrained import load_pretrained

SIZE, HUES = 32, ("red", "green", "blue")


def module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())


class LikeHuggingFace(nn.Module):
    """Returns an object with `.last_hidden_state`, as transformers' vision models do."""

    def __init__(self):
        super().__init__()
        self.layers = module()

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.layers(pixel_values).flatten(2).mT)


@pytest.fixture(scope="session")
def learned(photos):
    def learned(*calls, **params):
        given = {"finetune": "none", "image_size": SIZE, "random_state": 0, "holdout_per_class": 0}
        classifier = IncrementalClassifier(**{**given, **params}, threads=1)
        for names in calls:
            classifier.partial_fit(*photos(*names))
        return classifier

    return learned


@pytest.mark.parametrize("make", [module, LikeHuggingFace])
def test_any_module_is_a_frozen_backbone(make, tmp_path, photos, learned):
    own = make()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    classifier = learned(("red", "green"), ("blue",), model=own, holdout_per_class=2)
    assert type(classifier._learned.method).__name__ == "RidgeRegression"
    assert classifier._learned.setup.layout.shape == (8,)
    assert classifier.score(*photos(*HUES, seed=1)) > 0.9
    assert own.training
    assert all(parameter.requires_grad for parameter in own.parameters())
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    X, _ = photos(*HUES, seed=2)
    expected = classifier.predict_proba(X)
    classifier.save(tmp_path / "f")
    for again in (
        IncrementalClassifier.load(tmp_path / "f", model=own),
        pickle.loads(pickle.dumps(classifier)),
    ):
        assert np.array_equal(again.predict_proba(X), expected)
        assert again.forget("red").classes_.tolist() == ["blue", "green"]


def test_a_file_needs_the_module_it_was_made_with(tmp_path, learned):
    learned(("red", "green"), model=module()).save(tmp_path / "f")
    with pytest.raises(InputError, match="network of your own"):
        IncrementalClassifier.load(tmp_path / "f")
    with pytest.raises(InputError, match="does not fit"):
        IncrementalClassifier.load(tmp_path / "f", model=module(seed=1))
    with pytest.raises(InputError, match="does not fit"):
        IncrementalClassifier.load(tmp_path / "f", model=nn.Flatten())


def test_normalisation_of_a_module_is_for_bytes(learned):
    params = {"mean": [10.0, 20.0, 30.0], "std": [40.0, 50.0, 60.0]}
    classifier = learned(("red", "green"), model=module(), **params)
    backbone = classifier._learned.setup.backbone
    np.testing.assert_allclose(backbone.mean, np.array(params["mean"]) / 255)
    np.testing.assert_allclose(backbone.std, np.array(params["std"]) / 255)


@pytest.mark.parametrize("finetune", ["none", "last"])
@pytest.mark.parametrize("mean", [5, "abc", [1.0, 2.0], [float("nan")] * 3])
def test_wrong_normalisation_of_a_module_is_refused(mean, finetune, learned):
    with pytest.raises(InputError, match=r"^mean is .*; it must be 3 finite values"):
        learned(("red", "green"), model=module(), mean=mean, finetune=finetune)


def test_replay_and_mixes_work_on_a_module(learned):
    classifier = learned(("red", "green"), ("blue",), model=module(), method="er", mix="gradmix+")
    assert classifier._learned.method.memory.x.shape == (24, 8)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_of_a_module_come_from_a_file(suffix, tmp_path, photos, learned):
    path = tmp_path / f"weights{suffix}"
    state = module(seed=1).state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    given, own = (
        learned(("red", "green"), model=module(seed), weights=w)
        for seed, w in (
            (0, path),
            (1, None),
        )
    )
    X, _ = photos("red", "green", seed=2)
    assert np.array_equal(given.embed(X), own.embed(X))
    given.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f", model=module())
    assert np.array_equal(again.embed(X), own.embed(X))
    moved = path.rename(tmp_path / f"moved{suffix}")
    with pytest.raises(FileError, match="pass its place as weights="):
        IncrementalClassifier.load(tmp_path / "f", model=module())
    again = IncrementalClassifier.load(tmp_path / "f", model=module(), weights=moved)
    assert np.array_equal(again.embed(X), own.embed(X))


@pytest.mark.skipif(default_backbone() is None, reason="needs gradmix[photos]")
def test_weights_of_a_named_backbone_come_from_a_file(tmp_path, photos, learned):
    state = load_pretrained(DEFAULT).module.state_dict()
    state = {name: value.contiguous() for name, value in state.items()}
    name = next(name for name in state if name.endswith("weight"))
    save_file({**state, name: state[name] * 1.1}, tmp_path / "w.safetensors")
    params = {"model": DEFAULT, "finetune": None}
    usual = learned(("red", "green"), **params)
    other = learned(("red", "green"), **params, weights=tmp_path / "w.safetensors")
    X, _ = photos("red", seed=2)
    assert not np.allclose(usual.embed(X), other.embed(X))
    other.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    assert np.array_equal(again.embed(X), other.embed(X))
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FileError, match=r"features\.digest"):
        IncrementalClassifier.load(tmp_path / "f")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"model": "auto", "weights": "w.pt", "finetune": None}, "name the network"),
        ({"model": "mlp", "weights": "w.pt", "finetune": None}, "there is no such file"),
        ({"model": "mlp"}, "finetune is 'none', which is for pretrained backbones"),
        ({"model": "auto"}, "finetune is 'none', which is for pretrained backbones"),
        ({"model": module(), "weights": "missing.pt"}, "there is no such file"),
        ({"model": nn.Flatten(0)}, "model"),
        ({"model": nn.Linear(3, 2)}, "model"),
        ({"model": module(), "finetune": "some"}, "finetune"),
    ],
)
def test_what_makes_no_sense_is_refused(params, message, learned):
    with pytest.raises(InputError, match=message):
        learned(("red", "green"), **params)


# --- fine-tuning ----------------------------------------------------------------------------


class Small(nn.Module):
    """A backbone of two blocks; the second has most of the weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x):
        return self.last(self.first(x))


@pytest.mark.parametrize("layers", ["last", "all"])
def test_layers_of_a_backbone_are_trained(layers, tmp_path, photos, learned):
    own = Small()
    classifier = learned(("red", "green"), model=own, finetune=layers, epochs=3)
    classifier.partial_fit(*photos("blue"))
    assert type(classifier._learned.method).__name__ == "ER"
    assert classifier._learned.setup.backbone is None
    assert classifier.exemplars()[0].shape == (24, 3, SIZE, SIZE)
    tuned = classifier._learned.method.model.module.state_dict()
    changed = {
        name.removeprefix("module.")
        for name, value in tuned.items()
        if not torch.equal(value, own.state_dict()[name.removeprefix("module.")])
    }
    assert "last.0.weight" in changed
    assert ("first.0.weight" in changed) == (layers == "all")
    assert not any("running" in name for name in changed)
    assert classifier.score(*photos(*HUES, seed=1)) > 0.9
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f", model=Small())
    X, _ = photos(*HUES, side=50, seed=2)  # of another size
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    again.partial_fit(*photos("red", seed=3))
    assert again.forget("red").classes_.tolist() == ["blue", "green"]


@pytest.mark.skipif(default_backbone() is None, reason="needs gradmix[photos]")
def test_a_named_backbone_is_fine_tuned_and_saved(tmp_path, photos, learned):
    params = {"model": DEFAULT, "finetune": "last", "epochs": 1, "batch_size": 8, "mix": "none"}
    classifier = learned(("red", "green"), **params)
    assert classifier.score(*photos("red", "green", seed=1)) == 1.0
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    X, _ = photos("red", "green", seed=2)
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_closed_form_methods_train_no_layers(learned):
    with pytest.raises(InputError, match="trains no layers"):
        learned(("red", "green"), model=Small(), finetune="last", method="ridge")


def test_weights_of_a_network_that_is_not_pretrained(tmp_path, without_backbone, learned):
    first = learned(("red", "green"), model="resnet18-tiny", finetune=None, epochs=1)
    network = first._learned.method.model
    torch.save(network.state_dict(), tmp_path / "w.pt")
    params = {"model": "resnet18-tiny", "finetune": None, "epochs": 1, "lr": 1e-12}
    classifier = learned(("blue", "red"), weights=tmp_path / "w.pt", **params)
    name = next(name for name, _ in network.named_parameters())
    found = dict(classifier._learned.method.model.named_parameters())[name]
    assert torch.allclose(found, dict(network.named_parameters())[name])
    classifier.save(tmp_path / "f")
    (tmp_path / "w.pt").unlink()
    IncrementalClassifier.load(tmp_path / "f")
