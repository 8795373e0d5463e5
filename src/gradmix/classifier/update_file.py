"""Change a classifier file: let it learn a folder of photos, or forget classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradmix.classifier.call_data import CallData, Reader, Skip, Watch
from gradmix.classifier.classifier import IncrementalClassifier
from gradmix.classifier.file import FilePath
from gradmix.classifier.state import Learned, digest
from gradmix.data.image_folders.read import read_folder
from gradmix.data.image_folders.source import is_archive
from gradmix.errors import CorruptFileError, FileError, InputError
from gradmix.files import locked, read_state_file
from gradmix.files.atomic_write import remove_leftovers
from gradmix.training import checkpoint as checkpoints
from gradmix.training.build import processes_outside

IDENTITY = ("parameters", "seed", "past", "data")


def learn_into(
    path: FilePath,
    photos: FilePath,
    test: FilePath | None = None,
    *,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    watch: Watch,
    skip_unreadable: bool = False,
) -> IncrementalClassifier:
    """Let the classifier in a file learn a folder of photos, or create the file.

    A stopped call resumes from a checkpoint beside the file when it is repeated, and writes an
    identical file.

    Args:
        path: The classifier file.
        photos: A folder that contains a folder of images for each class.
        test: A folder to measure on; its unknown classes are skipped.
        given: Parameters to set.
        defaults: Parameters of a new classifier.
        watch: The observers of the call; `learn_into` sets its checkpoint.
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
        read = partial(_read, photos, test, kept, skip_unreadable)
        if classifier._learn(read, replace(watch, checkpoint=kept)):
            classifier._write(path)
        else:
            watch.say("these photos were learned before the last stop; nothing is left to do")
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
        CorruptFileError: If a photo cannot be read.
    """
    if photos is not None and len(names) != 1:
        raise InputError(f"photos is given for {len(names)} classes; forget one class at a time")
    with locked(path):
        classifier = IncrementalClassifier.load(path)
        known = {str(label): label for label in classifier._fitted().labels.known}
        for name in names:
            if name not in known:
                raise InputError(f"{name!r} is not a class of {path}; known are {', '.join(known)}")
            try:
                classifier.forget(known[name], photos)
            except CorruptFileError as error:
                raise CorruptFileError(f"{error}; move such files out of the folder") from error
        classifier._write(path)
    return classifier


def _read(
    photos: FilePath, test: FilePath | None, kept: Path, skip_unreadable: bool, reader: Reader
) -> CallData | None:
    """Return the photos to learn and to measure on; None if they were learned already."""
    skip = reader.watch.say if skip_unreadable else None
    data = reader.read_call(photos, skip=skip)
    if test is not None:
        data = _with_test(reader, data, test, skip)
    done = reader.ranks.first and _was_finished(kept, reader.before, data)
    return None if reader.ranks.from_first(int(done)) else data


def _with_test(reader: Reader, data: CallData, test: FilePath, skip: Skip) -> CallData:
    """Return the data with a test folder, or its part `test` or `val`, without unknown classes."""
    say, stream = reader.watch.say, data.backbone is not None
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


def _was_finished(kept: Path, before: Learned | None, data: CallData) -> bool:
    """Whether the call was complete and only its checkpoint was left to remove."""
    if before is None or not kept.exists():
        return False
    try:
        about = read_state_file(kept, checkpoints.KIND)["about"]
        identity = {name: about[name] for name in IDENTITY}
    except (FileError, KeyError, TypeError):
        return False
    return bool(identity["data"] == data.digest() and digest(identity) == before.finished)
