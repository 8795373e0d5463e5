"""Change a classifier file: let it learn a folder of photos, or forget classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradmix.classifier.call import Watch
from gradmix.classifier.call_data import CallData, Reader
from gradmix.classifier.classifier import IncrementalClassifier
from gradmix.classifier.file import FilePath
from gradmix.classifier.photos import Progress
from gradmix.classifier.state import digest
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import is_archive
from gradmix.errors import DataWarning, FileError, InputError
from gradmix.files import locked, read_state_file
from gradmix.files.atomic_write import remove_leftovers
from gradmix.training import checkpoint as checkpoints
from gradmix.training.build import processes_outside
from gradmix.training.launch import Job
from gradmix.training.loop import Event, Training

IDENTITY = ("parameters", "seed", "past", "data")


def learn_into(
    path: FilePath,
    photos: FilePath,
    test: FilePath | None = None,
    *,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    say: Callable[[str], object],
    on_event: Callable[[Training, Event], object] | None = None,
    on_photo: Progress | None = None,
    skip_unreadable: bool = False,
) -> IncrementalClassifier:
    """Let the classifier in a file learn a folder of photos, or create the file.

    A call that was stopped resumes from a checkpoint beside the file when it is repeated. The file
    is then identical to that of a call without a stop.

    Args:
        path: The classifier file.
        photos: A folder that contains a folder of images for each class.
        test: A folder to measure on; its unknown classes are skipped.
        given: Parameters to set.
        defaults: Parameters of a new classifier.
        say: Called with messages for the user.
        on_event: Called with each training event.
        on_photo: Called with the photos that have passed a backbone, and their total number.
        skip_unreadable: Skip photos that cannot be read, instead of refusing them.

    Returns:
        The classifier.

    Raises:
        FileInUseError: If another process uses the file.
        FileError: If the file cannot be read or written.
        InputError: If the photos or parameters cannot be used.
    """
    if processes_outside() > 1:
        raise InputError("this command starts its processes itself; use --devices, not torchrun")
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a file for the model")
    if Path(photos).is_file() and not is_archive(photos):
        raise InputError(f"{photos} is a file; give a folder with a folder for each class")
    kept = checkpoint_of(path)
    with locked(path):
        classifier = (
            IncrementalClassifier.load(path) if path.exists() else IncrementalClassifier(**defaults)
        )
        classifier.set_params(**given)
        follow = partial(_follow, classifier, photos, test, kept, skip_unreadable)
        with classifier._job(follow) as job:
            reader = classifier._reader(on_photo, job=job)
            data = _read(reader, photos, test, say, skip_unreadable)
            done = reader.before is not None and _was_finished(kept, reader.before.finished, data)
            if job is not None:
                job.ranks.from_first(int(not done))
            if not done:
                classifier._learn(reader.before, data, Watch(kept, say, on_event), job)
        if done:
            say("these photos were learned before the last stop; nothing is left to do")
        else:
            classifier._write(path)
        kept.unlink(missing_ok=True)
        remove_leftovers(kept)
    return classifier


def checkpoint_of(path: FilePath) -> Path:
    """Return the checkpoint of `learn_into`, beside the classifier file."""
    return Path(f"{os.fspath(path)}.checkpoint")


def forget_in(
    path: FilePath, names: Sequence[str], photos: FilePath | None = None
) -> IncrementalClassifier:
    """Remove classes from the classifier in a file.

    Args:
        path: The classifier file.
        names: The classes, as text.
        photos: A folder with all photos that one class was learned from; see
            `IncrementalClassifier.forget`.

    Returns:
        The classifier.

    Raises:
        FileInUseError: If another process uses the file.
        FileError: If the file cannot be read or written.
        InputError: If a class is unknown, or no class would remain.
    """
    if photos is not None and len(names) != 1:
        raise InputError(f"photos is given for {len(names)} classes; forget one class at a time")
    with locked(path):
        classifier = IncrementalClassifier.load(path)
        known = {str(label): label for label in classifier._fitted().labels.known}
        for name in names:
            if name not in known:
                raise InputError(f"{name!r} is not a class of {path}; known are {', '.join(known)}")
            classifier.forget(known[name], photos)
        classifier._write(path)
    return classifier


def _follow(
    classifier: IncrementalClassifier,
    photos: FilePath,
    test: FilePath | None,
    kept: Path,
    skip_unreadable: bool,
    job: Job,
) -> None:
    """Learn photos with rank 0, which shows and writes everything."""
    warnings.simplefilter("ignore", DataWarning)
    reader = classifier._reader(job=job)
    data = _read(reader, photos, test, lambda _: None, skip_unreadable)
    if job.ranks.from_first(0):
        classifier._learn(reader.before, data, Watch(kept), job)


def _read(
    reader: Reader,
    photos: FilePath,
    test: FilePath | None,
    say: Callable[[str], object],
    skip_unreadable: bool,
) -> CallData:
    """Return the photos to learn, with those to measure on."""
    data = reader.read_call(photos, skip=say if skip_unreadable else None)
    return data if test is None else _with_test(reader, data, test, say, skip_unreadable)


def _with_test(
    reader: Reader,
    data: CallData,
    test: FilePath,
    say: Callable[[str], object],
    skip_unreadable: bool,
) -> CallData:
    """Return the data with a test folder, or its part `test` or `val`, without unknown classes."""
    skip = say if skip_unreadable else None
    stream = data.backbone is not None
    photos = read_folder(test, shape=data.given.shape, skip=skip, part="test", stream=stream)
    x, labels = photos.x, np.array([photos.classes[number] for number in photos.labels])
    known = {*data.y.tolist(), *(reader.before.labels.known if reader.before else ())}
    fits = np.isin(labels, sorted(known))
    for text in photos.skipped:
        say(text)
    unknown = sorted({*labels[~fits].tolist()})
    if unknown:
        say(f"not measured: these classes are unknown: {', '.join(unknown)}")
    if not fits.any():
        return data
    x = reader.embed_to_learn(x[np.flatnonzero(fits)], data.backbone)
    return replace(data, evaluation=(x, labels[fits]))


def _was_finished(kept: Path, finished: str, data: CallData) -> bool:
    """Whether the call was complete and only its checkpoint was left to remove."""
    if not kept.exists():
        return False
    try:
        about = read_state_file(kept, checkpoints.KIND)["about"]
        identity = {name: about[name] for name in IDENTITY}
    except (FileError, KeyError, TypeError):
        return False
    return bool(identity["data"] == data.digest() and digest(identity) == finished)
