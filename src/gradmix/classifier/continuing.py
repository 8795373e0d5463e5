"""A classifier's file as the place of learning: locked, continued after a stop, and replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradmix.classifier import files
from gradmix.classifier.call import Data, Watch
from gradmix.classifier.classifier import IncrementalClassifier
from gradmix.classifier.learned import digest
from gradmix.data.image_folders.read import read_folder
from gradmix.errors import FileError
from gradmix.files import locked, read_archive
from gradmix.files.atomic_write import remove_leftovers
from gradmix.training import checkpoint as checkpoints
from gradmix.training.loop import Event, Training

IDENTITY = ("parameters", "seed", "past", "data")


def learn_into(
    path: str | os.PathLike[str],
    photos: str | os.PathLike[str],
    test: str | os.PathLike[str] | None = None,
    *,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    say: Callable[[str], object],
    on_event: Callable[[Training, Event], object] | None = None,
    skip_unreadable: bool = False,
) -> IncrementalClassifier:
    """Let the classifier in a file learn a folder of photos; a new one if there is no file.

    `given` are parameters to be set, `defaults` those of a new one. Photos that cannot be read are
    refused, or left out if `skip_unreadable`. Stopped at any moment and
    called again with the same, it goes on from a checkpoint beside the file, and the file ends
    as the same bits. FileInUseError if another process is at it.
    """
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a file for the model")
    kept = path.with_name(f"{path.name}.checkpoint")
    with locked(path):
        classifier = (
            IncrementalClassifier.load(path) if path.exists() else IncrementalClassifier(**defaults)
        )
        classifier.set_params(**given)
        before = getattr(classifier, "_learned", None)
        data = classifier._data(before, photos, skip=say if skip_unreadable else None)
        if test is not None:
            data = _measured_on(classifier, data, test, say, skip_unreadable)
        if before is not None and _was_finished(kept, before.finished, data):
            say("this was learned before the last stop; nothing is left to do")
        else:
            classifier._learn(before, data, Watch(kept, say, on_event))
            files.write(path, classifier, classifier._learned)
        kept.unlink(missing_ok=True)
        remove_leftovers(kept)
    return classifier


def _measured_on(
    classifier: IncrementalClassifier,
    data: Data,
    test: str | os.PathLike[str],
    say: Callable[[str], object],
    skip_unreadable: bool,
) -> Data:
    """With a test folder, or the folder `test` or `val` in it, as far as its classes are known."""
    skip = say if skip_unreadable else None
    x, numbers, classes = read_folder(test, shape=data.layout.shape, skip=skip, part="test")
    labels = np.array([classes[number] for number in numbers])
    known = {*data.y.tolist(), *getattr(classifier, "classes_", np.empty(0)).tolist()}
    fits = np.isin(labels, sorted(known))
    left_out = sorted({*labels[~fits].tolist()})
    if left_out:
        say(f"not measured, for they are not known: {', '.join(left_out)}")
    if not fits.any():
        return data
    return replace(data, evaluation=(x[np.flatnonzero(fits)], labels[fits]))


def _was_finished(kept: Path, finished: str, data: Data) -> bool:
    """Whether a call with these data was over, but for the removal of its checkpoint."""
    if not kept.exists():
        return False
    try:
        about = read_archive(kept, checkpoints.KIND)["about"]
        identity = {name: about[name] for name in IDENTITY}
    except (FileError, KeyError, TypeError):
        return False
    return identity["data"] == data.digest() and digest(identity) == finished
