"""Too little memory and full disks: a clear error, and the classifier is unchanged."""

import errno
import os
import re

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier
from gradmix.classifier import file
from gradmix.errors import FileError, GradMixError, OutOfMemoryError
from gradmix.methods import Method
from gradmix.training.loop import Training

LACKING = [
    MemoryError("Unable to allocate 9.1 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes"),
    RuntimeError("not enough memory: you tried to allocate 12 bytes"),
    torch.OutOfMemoryError("CUDA out of memory"),
]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", LACKING, ids=str)
def test_learning_without_enough_memory(monkeypatch, error, digest, quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    before = digest(classifier)
    with monkeypatch.context() as patched:
        patched.setattr(Training, "events", failing(error))
        message = r"not enough memory to learn 20 samples of shape \(4,\); learn fewer"
        with pytest.raises(OutOfMemoryError, match=message):
            classifier.partial_fit(*rows("c"))
    assert digest(classifier) == before
    assert issubclass(OutOfMemoryError, (GradMixError, MemoryError))
    assert classifier.partial_fit(*rows("c")).classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("error", LACKING, ids=str)
def test_using_a_classifier_without_enough_memory(monkeypatch, tmp_path, error, quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    classifier.save(tmp_path / "f")
    monkeypatch.setattr(Method, "predict", failing(error))
    with pytest.raises(OutOfMemoryError, match="predict 40 samples"):
        classifier.predict(rows("a", "b")[0])
    with monkeypatch.context() as patched:
        patched.setattr("gradmix.classifier.state.embed", failing(error))
        with pytest.raises(OutOfMemoryError, match="predict 40 samples"):
            classifier.embed(rows("a", "b")[0])
    with pytest.raises(OutOfMemoryError, match=rf"load {re.escape(str(tmp_path / 'f'))}"):
        IncrementalClassifier.load(tmp_path / "f")
    monkeypatch.setattr(file, "write_state_file", failing(error))
    with pytest.raises(OutOfMemoryError, match=rf"write {re.escape(str(tmp_path / 'g'))}"):
        classifier.save(tmp_path / "g")


def test_other_errors_of_pytorch_are_not_about_memory(monkeypatch, quick, rows):
    monkeypatch.setattr(Training, "events", failing(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        quick().fit(*rows("a", "b"))


def test_an_array_larger_than_memory(quick):
    """The tensor has stride 0, so it takes no memory until it is converted."""
    large = torch.zeros(1, 1, dtype=torch.float64).expand(2**45, 64)
    with pytest.raises(OutOfMemoryError, match="not enough memory to read X"):
        quick().fit(large, np.zeros(3))


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_full_disk_names_the_file(monkeypatch, tmp_path, at, quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    path = tmp_path / "my.gradmix"
    path.write_bytes(b"old")
    full = failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if at == "write":
        monkeypatch.setattr("gradmix.files._container.directory", full)
    else:
        monkeypatch.setattr(os, at, full)
    with pytest.raises(FileError, match=r"my\.gradmix' cannot be written: No space left on device"):
        classifier.save(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["my.gradmix"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_device_is_not_replaced(quick, rows):
    with pytest.raises(FileError, match="/dev/full"):
        quick().fit(*rows("a", "b")).save("/dev/full")


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "", "."])
def test_paths_that_cannot_be_written(path, tmp_path, monkeypatch, quick, rows):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError):
        quick().fit(*rows("a", "b")).save(path)
    assert not list(tmp_path.iterdir())
