"""Altered classifier files with correct checksums: an error of gradmix, or finite predictions."""

import random
import time
import zipfile
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from xxhash import xxh3_128

from gradmix import IncrementalClassifier
from gradmix.errors import FileError, GradMixError, InputError
from gradmix.files import _container, read_state_file, write_state_file

resource = pytest.importorskip("resource")

METHODS = ("er", "er-ridge", "der", "foster", "memo", "icarl", "joint", "gss-stream", "resnet")
SECONDS, KILOBYTES = 5.0, 500 << 10
NUMBERS = (0, 1, -1, 2, 7, 0.5, -0.0, 1e-38, 1e30, -1e300, 2**31, 2**53, 2**63, -(2**70), 10**400)
ODD = (
    *(None, True, False, "", "x", "nan", "\0", "a" * 10_000, "os.system", "\ud800"),
    *([], {}, [[]], {"a": {}}, {5: 1}, (), float("nan"), float("inf"), float("-inf")),
)
INSERTED = ("", "[", "]", "null", "NaN", '"', "1e999", "-", '{"$float":"nan"}', "[" * 999)


@pytest.fixture(scope="module")
def originals(tmp_path_factory, images, quick, rows):
    """One small classifier for each kind of method, with samples for predictions."""
    folder, found = tmp_path_factory.mktemp("originals"), {}
    for name in METHODS:
        given = {"epochs": 1, "exemplars_per_class": 4, "method": name}
        first, second = rows("a", "b", each=8), rows("c", "a", each=8, seed=1)
        if name == "er":
            given |= {"holdout_per_class": 1, "head_size": 5}
        if name == "joint":
            given |= {"mix": "mixup"}
        if name == "resnet":
            given |= {"method": "er", "model": "resnet18-tiny"}
            first, second = images("a", "b", each=8), images("c", each=8)
        classifier = quick(**given).partial_fit(*first).partial_fit(*second)
        classifier.save(folder / name)
        found[name] = folder / name, first[0], second
    return found


def paths_in(value, path=()):
    """The positions of all values, containers included."""
    yield path
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from paths_in(item, (*path, key))


def found_at(state, path):
    for key in path:
        state = state[key]
    return state


def replaced(state, path, value):
    """The state with another value at a position; tuples are copied."""
    if not path:
        return value
    key, *rest = path
    changed = dict(state) if isinstance(state, dict) else list(state)
    changed[key] = replaced(state[key], rest, value)
    return tuple(changed) if isinstance(state, tuple) else changed


def without(state, path):
    *parents, key = path
    parent = found_at(state, parents)
    if isinstance(parent, dict):
        changed = {name: value for name, value in parent.items() if name != key}
    else:
        changed = [value for place, value in enumerate(parent) if place != key]
        changed = tuple(changed) if isinstance(parent, tuple) else changed
    return replaced(state, parents, changed)


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


def other_tensor(chance, tensor):
    """A tensor with another dtype, shape or value."""
    floating = tensor.is_floating_point()
    if floating and chance.random() < 0.6:
        changed = tensor.reshape(-1).clone()
        values = [float("nan"), float("inf"), -float("inf"), 1e30, -1e38, 1e-38, -1.0, 0.0]
        where = slice(None) if chance.random() < 0.5 else chance.randrange(max(1, changed.numel()))
        if changed.numel():
            changed[where] = chance.choice(values)
        return changed.view(tensor.shape)
    if tensor.dtype == torch.int64 and chance.random() < 0.4:
        return tensor + chance.choice([-1, 1, 7, 2**40])
    if tensor.dtype == torch.uint8 and chance.random() < 0.4:
        changed = tensor.reshape(-1).clone()
        if changed.numel():
            changed[chance.randrange(changed.numel())] ^= chance.randrange(1, 256)
        return changed.view(tensor.shape)
    kinds = [torch.float64, torch.int8, torch.bool, torch.complex64, torch.int64, torch.float16]
    return chance.choice(
        [
            lambda: tensor.to(chance.choice(kinds)),
            lambda: tensor[:0] if tensor.ndim else tensor.reshape(0, *[1] * 3)[:0],
            lambda: tensor[:1] if tensor.ndim else tensor[None],
            lambda: tensor[None],
            lambda: tensor.reshape(-1),
            lambda: tensor.new_zeros(0, 2**40),
            lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
            lambda: tensor.transpose(0, -1) if tensor.ndim > 1 else tensor,
            lambda: tensor.new_zeros(()),
        ]
    )()


def altered(chance, state):
    """The state with one alteration."""
    path = chance.choice(list(paths_in(state))[1:])
    value = found_at(state, path)
    kind = chance.random()
    if kind < 0.1:
        return without(state, path)
    if kind < 0.2:  # a value from elsewhere
        return replaced(state, path, found_at(state, chance.choice(list(paths_in(state))[1:])))
    if kind < 0.25:
        return replaced(state, path, nested(value, chance.choice([1, 2, 40])))
    if isinstance(value, torch.Tensor) and kind < 0.9:
        return replaced(state, path, other_tensor(chance, value))
    if isinstance(value, list | tuple) and kind < 0.5:
        return replaced(state, path, value * 2 if chance.random() < 0.5 else value[::-1])
    if isinstance(value, dict) and kind < 0.5:
        return replaced(state, path, {**value, "extra": chance.choice(ODD)})
    if isinstance(value, int | float) and abs(value) < 1e300 and kind < 0.7:
        return replaced(state, path, chance.choice([value + 1, -value, value * 1000, float(value)]))
    return replaced(state, path, chance.choice([*NUMBERS, *ODD]))


def write_altered(chance, original, path):
    """Write an altered, correctly signed file; one in five has an altered JSON text."""
    if chance.random() < 0.2:
        path.write_bytes(altered_text(chance, original))
        return
    state = altered(chance, read_state_file(original, "classifier"))
    while chance.random() < 0.3:
        state = altered(chance, state)
    write_state_file(path, "classifier", state)


def altered_text(chance, original):
    with zipfile.ZipFile(original) as archive:
        text = archive.read(_container.STATE).decode()
        tensors = archive.read(_container.TENSORS)
    places = [place for place, sign in enumerate(text) if sign in '[]{}":,']
    place = chance.choice(places)
    new = chance.choice(INSERTED)
    return signed((text[:place] + new + text[place + chance.randrange(2) :]).encode(), tensors)


def signed(text, tensors):
    """The bytes of a file with these members and correct checksums."""
    contents = {_container.STATE: text, _container.TENSORS: tensors}
    members = [member(*part) for part in contents.items()]
    about = _container.compose("classifier", members)
    members = [member(_container.MANIFEST, about), *members]
    parts = [
        _container.local_header(one) + content
        for one, content in zip(members, [about, *contents.values()], strict=True)
    ]
    return b"".join(parts) + _container.directory(members)


def member(name, content):
    digest = xxh3_128(content).hexdigest()
    crc32 = zlib.crc32(content)
    return _container.Member(name=name, size=len(content), crc32=crc32, xxh3=digest)


def loaded(path):
    """The classifier, or the message of the error."""
    try:
        return IncrementalClassifier.load(path), ""
    except (FileError, InputError) as error:
        return None, str(error)


@pytest.mark.filterwarnings("ignore::gradmix.errors.DataWarning")
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_altered_files(originals, tmp_path, count):
    chance, path = random.Random(count), tmp_path / "f"
    before, refused, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, 0.0
    for number in range(count):
        original, X, more = originals[METHODS[number % len(METHODS)]]
        try:
            write_altered(chance, original, path)
        except InputError:  # it cannot be written
            continue
        started = time.process_time()  # a busy machine does not count
        classifier, message = loaded(path)
        if classifier is None:
            refused += 1
            assert str(path) in message
        else:
            assert np.isfinite(classifier.predict_proba(X)).all()
        slowest = max(slowest, time.process_time() - started)
        if classifier is not None and number % 4 == 0:  # the next call works, or says why not
            with suppress(GradMixError):
                classifier.set_params(epochs=1).partial_fit(*more)
    assert refused > count // 3
    assert slowest < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KILOBYTES
