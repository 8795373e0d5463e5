"""What all analyses share: samples and models that are refused, and models left as they were."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from gradmix.diagnostics import (
    approximation_error,
    class_distances,
    class_pair_scores,
    criterion_seconds,
    detrimental_rate,
    pair_agreement,
)
from gradmix.errors import InputError, UnknownNameError


def global_state():
    """The states of all global generators, in a form that can be compared."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
    )


OLD_Y, NEW_Y = torch.tensor([0, 0, 0, 1, 3]), torch.tensor([2, 5, 2, 5, 2, 2])
OLD, NEW = torch.randn(11, 1, 5, 5, generator=torch.Generator().manual_seed(1)).split([5, 6])
CALLS = {
    "whole network": detrimental_rate,
    "last layer": lambda *args, **options: detrimental_rate(*args, whole_network=False, **options),
    "error": approximation_error,
    "agreement": pair_agreement,
    "scores": lambda *args, **options: class_pair_scores(*args, lambdas=[0.5], **options),
    "seconds": criterion_seconds,
}


def distances(model, memory, current, **options):
    del options["generator"]
    both = tuple(torch.cat(parts) for parts in zip(memory, current, strict=True))
    return class_distances(model, both, **options)


@pytest.mark.parametrize("kind", ["sequential", "residual"])
@pytest.mark.parametrize("name", [*CALLS, "distances"])
def test_nothing_is_left_behind(name, kind, make, seeded):
    """Modes, statistics, gradients, hooks, samples and the global generators stay."""
    model = make(kind, dtype=torch.float32)
    [*model.children()][1].eval()  # frozen in evaluation mode by its owner
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    randomness = global_state()
    memory, current = (OLD.clone(), OLD_Y.clone()), (NEW.clone(), NEW_Y.clone())
    call = {**CALLS, "distances": distances}[name]
    call(model, memory, current, generator=seeded())
    assert global_state() == randomness
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    for parameter in model.parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, torch.ones_like(parameter))
        else:
            assert parameter.grad is None
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(memory[0], OLD)
    assert torch.equal(current[0], NEW)


@pytest.mark.parametrize("name", CALLS)
def test_one_exemplar_and_one_new_sample_are_enough(name, make, seeded):
    model = make("sequential", bias=False, dtype=torch.float32)
    CALLS[name](model, (OLD[:1], OLD_Y[:1]), (NEW[:1], NEW_Y[:1]), generator=seeded())


@pytest.mark.parametrize("name", [*CALLS, "distances"])
def test_a_given_head_is_used_where_the_last_linear_is_another(name, seeded):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(25, 6)
            self.rotation = nn.Linear(25, 4)  # registered last, used for something else

        def forward(self, x):
            return self.classifier(x.flatten(1))

    model = Model()
    call = {**CALLS, "distances": distances}[name]
    call(model, (OLD, OLD_Y), (NEW, NEW_Y), head=model.classifier, generator=seeded())
    with pytest.raises(InputError, match="head"):
        call(model, (OLD, OLD_Y), (NEW, NEW_Y), generator=seeded())


NAN = torch.full_like(NEW, torch.nan)
BAD = {
    "fewer labels": ((NEW, NEW_Y[:2]), "has 6 inputs and 2 labels; give as many, above 0"),
    "none": ((NEW[:0], NEW_Y[:0]), "has 0 inputs and 0 labels"),
    "no pair": (NEW, "is a Tensor; give a pair"),
    "no tensor": ((NEW, NEW_Y.tolist()), "labels are list; give a tensor"),
    "int32 labels": ((NEW, NEW_Y.int()), "labels are torch.int32 of 1 dimensions; give int64"),
    "soft labels": ((NEW, torch.eye(6)), "labels are torch.float32 of 2 dimensions"),
    "labels beyond": ((NEW, NEW_Y + 1), "labels run from 3 to 6; the head has outputs 0 to 5"),
    "labels below": ((NEW, NEW_Y - 3), "labels run from -1 to 2"),
    "uint8": ((NEW.to(torch.uint8), NEW_Y), "inputs are torch.uint8; give floating-point"),
    "NaN": ((NAN, NEW_Y), "inputs have NaN or infinite values"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("argument", ["memory", "current"])
@pytest.mark.parametrize("name", CALLS)
def test_bad_samples_are_refused_by_name(name, argument, case, make):
    bad, message = BAD[case]
    good = {"memory": (OLD, OLD_Y), "current": (NEW, NEW_Y)}
    with pytest.raises(InputError, match=f"^{argument} {message}"):
        CALLS[name](make("linear", dtype=torch.float32), **{**good, argument: bad})


@pytest.mark.parametrize("case", BAD)
def test_bad_samples_have_no_distances(case, make):
    bad, message = BAD[case]
    with pytest.raises(InputError, match=f"^samples {message}"):
        class_distances(make("linear", dtype=torch.float32), bad)


@pytest.mark.parametrize("other", [NEW.double(), NEW[:, :, :4]])
def test_memory_and_current_data_have_one_form(other, make):
    message = r"memory is torch.float32 with samples of shape \(1, 5, 5\); current is "
    with pytest.raises(InputError, match=message):
        detrimental_rate(make("linear", dtype=torch.float32), (OLD, OLD_Y), (other, NEW_Y))


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_average_is_refused(name, make):
    with pytest.raises(UnknownNameError, match="unknown average 'clas': did you mean 'class'"):
        CALLS[name](make("linear"), (OLD, OLD_Y), (NEW, NEW_Y), average="clas")


@pytest.mark.parametrize("name", CALLS)
def test_a_model_without_linear_layer_is_refused(name):
    with pytest.raises(InputError, match=r"without any nn\.Linear"):
        CALLS[name](nn.Sequential(nn.Flatten(), nn.ReLU()), (OLD, OLD_Y), (NEW, NEW_Y))
