"""What is chosen from the data: network, epochs, mix, learning rate and transforms."""

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.classifier.inputs import Layout
from gradmix.classifier.setup import Setup
from gradmix.errors import InputError


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        (np.zeros((10, 5)), "mlp"),
        (np.zeros((10, 28, 28), dtype=np.uint8), "mlp"),
        (np.zeros((10, 3, 8, 8), dtype=np.uint8), "mlp"),
        (np.zeros((10, 3, 16, 16), dtype=np.uint8), "cnn"),
        (np.zeros((10, 40, 40), dtype=np.uint8), "cnn"),
    ],
)
def test_the_network_is_chosen_from_the_data(X, expected, without_backbone, quick):
    classifier = quick(model="auto", epochs=1, batch_size=8).fit(X, [0, 1] * 5)
    assert classifier._learned.setup.model == expected


def test_epochs_and_tau_follow_the_number_of_samples(quick):
    def of(samples, **given):
        params = {**quick(epochs=None).get_params(), **given}
        design = Setup(params, Layout((4,)), "mlp", (), (), 0).design(samples, 2)
        return design.settings.epochs, design.recipe.tau

    assert [of(samples)[0] for samples in (1, 320, 3200)] == [200, 100, 20]
    for mix in ("auto", "balanced-remix", "gradmix+"):
        taus = [of(samples, mix=mix)[1] for samples in (1, 320, 32_000)]
        assert taus == [0.5, 0.5, 0.75]
    assert of(10, epochs=7, tau=0.7) == (7, 0.7)


def test_the_mix_follows_network_and_method(quick):
    def of(model, samples, **given):
        params = {**quick(epochs=None).get_params(), **given}
        recipe = Setup(params, Layout((3, 32, 32)), model, (), (), 0).design(samples, 2).recipe
        return recipe and (recipe.partners, recipe.labels)

    assert of("mlp", 10) == ("class-balanced", "remix")
    assert of("mlp", 10, mix="gradmix+") == ("gradient", "remix")
    assert of("resnet18", 10**5) == of("cnn", 1000) == of("vit", 10) == ("shuffle", "remix")
    assert of("mlp", 10, method="joint") is None
    assert of("resnet18-tiny", 1000, mix="gradmix") == ("gradient", "proportional")


def test_networks_for_photos_have_their_own_training_defaults(quick):
    def of(model, **given):
        params = {**quick(epochs=None).get_params(), "lr": None, **given}
        setup = Setup(params, Layout((3, 32, 32)), model, (), (), 0)
        settings = setup.design(1000, 2).settings
        return settings.lr, settings.weight_decay, settings.schedule, setup.transforms()

    assert of("cnn") == of("resnet18") == (0.05, 5e-4, "cosine", ("crop", "flip"))
    assert of("vit") == (0.01, 0.0, "steps", ("crop", "flip"))
    assert of("mlp") == (0.01, 0.0, "steps", ())
    given = {"lr": 0.1, "weight_decay": 0.0, "schedule": "constant", "transforms": None}
    assert of("cnn", **given) == (0.1, 0.0, "constant", ())
    assert of("cnn", lr_steps=(5,))[2] == "steps"


def test_settings_of_mix_and_criterion_reach_the_training(quick):
    params = quick(
        gradient="all", average="class", mix="gradmix", mix_first_task="yes"
    ).get_params()
    design = Setup(params, Layout((4,)), "mlp", (), (), 0).design(100, 2)
    assert (design.criterion.gradient, design.criterion.average) == ("all", "class")
    assert design.recipe.mix_first_task
    with pytest.raises(InputError, match="gradient"):
        quick(gradient="some").fit([[0.0], [1.0]] * 5, [0, 1] * 5)


def test_the_docstring_describes_every_parameter_once():
    page = IncrementalClassifier.__doc__
    assert "PARAMETERS" not in page
    for name in IncrementalClassifier().get_params():
        assert page.count(f"\n    {name}: ") == 1, name
    assert "None: 0.05 for CNNs and ResNets, otherwise 0.01." in " ".join(page.split())
