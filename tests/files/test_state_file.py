"""What is written is read, bit by bit, by us and by the tools of zip and safetensors."""

import json
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix import __version__
from gradmix.errors import FileError, InputError
from gradmix.files import read_manifest, read_state_file, write_state_file
from gradmix.files._encoding import DEPTH, DTYPES

in_one_folder = settings(max_examples=60)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_identical(ours, theirs):
    """Type by type, bit by bit; NaN is NaN, 0 is not -0, and laid out in memory alike."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(map(repr, ours)) == list(map(repr, theirs))
        for one, other in zip(ours.values(), theirs.values(), strict=True):
            assert_identical(one, other)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_identical(one, other)
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride() or ours.numel() == 0
        assert bits(ours) == bits(theirs)
    elif isinstance(ours, float):
        assert struct.pack("d", ours) == struct.pack("d", theirs) or ours != theirs
        assert (ours != ours) == (theirs != theirs)
    else:
        assert ours == theirs


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    number = int(np.prod(shape, dtype=int)) * dtype.itemsize
    content = draw(st.binary(min_size=number, max_size=number))
    if dtype is torch.bool:
        content = bytes(byte % 2 for byte in content)
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8) if number else torch.empty(0)
    tensor = (flat.view(dtype) if number else flat.to(dtype)).view(shape)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats()
texts = st.text(st.characters())
keys = texts | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$tensor", "$dict", "a", "a/b", ""]), inner)
    ),
    max_leaves=12,
)


@in_one_folder
@given(state=st.dictionaries(texts, values, max_size=4))
def test_what_is_written_is_read(tmp_path, state):
    path = tmp_path / "f"
    write_state_file(path, "test", state)
    assert_identical(read_state_file(path, "test"), state)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 5), (2, 0, 3), (2, 3, 4), (1,) * 9])
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    tensor = torch.randint(0, 2, shape, dtype=torch.uint8).to(dtype)
    write_state_file(tmp_path / "f", "test", {"t": tensor})
    assert_identical(read_state_file(tmp_path / "f", "test")["t"], tensor)


def test_channels_last_weights_keep_their_layout(tmp_path):
    """Or an optimizer's step on them would be another computation, last bits included."""
    weights = torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    ambiguous = torch.randn(8, 1, 3, 3).to(memory_format=torch.channels_last)
    state = {"w": weights, "one": ambiguous, "t": torch.randn(4, 6).T}
    write_state_file(tmp_path / "f", "test", state)
    assert_identical(read_state_file(tmp_path / "f", "test"), state)


def test_views_and_shared_tensors_become_tensors_of_their_own(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    state = {"all": base, "again": base, "column": base[:, 1], "wide": base[:1].expand(5, 4)}
    write_state_file(tmp_path / "f", "test", state)
    read = read_state_file(tmp_path / "f", "test")
    for name, tensor in state.items():
        assert torch.equal(read[name], tensor)
        assert read[name].is_contiguous()
    assert len({tensor.data_ptr() for tensor in read.values()}) == 4
    read["all"].zero_()
    assert torch.equal(read["again"], base)


def test_what_a_state_of_training_has_in_it(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 1, 4, 4)).sum().backward()
    optimizer.step()
    host = np.random.default_rng(3)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "host": host.bit_generator.state,
        "device": torch.Generator().get_state(),
        "lam": [0.1, 1 / 3, 5e-324],
    }
    write_state_file(tmp_path / "f", "test", state)
    read = read_state_file(tmp_path / "f", "test")
    assert read["model"].keys() == state["model"].keys()
    assert isinstance(state["model"], OrderedDict)
    assert_identical(read["model"], dict(state["model"]))
    for name in ("optimizer", "host", "device", "lam"):
        assert_identical(read[name], state[name])
    optimizer.load_state_dict(read["optimizer"])
    host.bit_generator.state = read["host"]


def test_parameters_with_gradients_and_numpy_floats(tmp_path):
    state = {"p": torch.nn.Parameter(torch.randn(3)), "f": np.float64(0.1)}
    write_state_file(tmp_path / "f", "test", state)
    assert_identical(read_state_file(tmp_path / "f", "test"), {"p": state["p"].data, "f": 0.1})


def test_any_tool_can_read_the_parts(tmp_path):
    path = tmp_path / "f"
    state = {"a": {"w": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)}, "n": 7}
    size = write_state_file(path, "test", state)
    assert path.stat().st_size == size
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "state.json", "tensors.safetensors"]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        read = safetensors.torch.load(archive.read("tensors.safetensors"))
        about = json.loads(archive.read("manifest.json"))
        content = json.loads(archive.read("state.json"))
    assert torch.equal(read["a/w"].permute(0, 3, 1, 2), state["a"]["w"])  # as in memory
    assert content == {"a": {"w": {"$tensor": "a/w", "$strides": [12, 1, 6, 3]}}, "n": 7}
    assert [about[key] for key in ("format", "version", "kind")] == ["gradmix", 2, "test"]
    manifest = read_manifest(path)
    assert (manifest.kind, manifest.version, manifest.gradmix) == ("test", 2, __version__)


def test_the_same_state_is_the_same_file(tmp_path):
    for name in "ab":
        write_state_file(tmp_path / name, "test", {"t": torch.ones(3), "n": [1.5]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "object at x/y"),
        (np.int64(3), "int64 at x/y"),
        ({1, 2}, "set at x/y"),
        (b"bytes", "bytes at x/y"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.ones(2, dtype=torch.complex128), "complex128"),
        ({(1, 2): 3}, r"key at x/y is \(1, 2\)"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(tmp_path, value, message):
    with pytest.raises(InputError, match=message):
        write_state_file(tmp_path / "f", "test", {"x": {"y": value}})
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_read_is_not_written(tmp_path):
    def nested(depth):
        return 1.5 if depth == 0 else {depth: nested(depth - 1)}

    with pytest.raises(InputError, match="nested more than"):
        write_state_file(tmp_path / "f", "test", {"x": nested(DEPTH)})
    with pytest.raises(InputError, match="put long lists of numbers into tensors"):
        write_state_file(tmp_path / "f", "test", {"x": "long" * 5_000_000})
    with pytest.raises(InputError, match="cannot be stored"):
        write_state_file(tmp_path / "f", "test", {"x": 10**5000})
    with pytest.raises(InputError, match="more than 524288 lists and dicts"):
        write_state_file(tmp_path / "f", "test", {"x": [[]] * 2**19})
    state = {"x": nested(DEPTH - 1)}
    write_state_file(tmp_path / "f", "test", state)
    assert_identical(read_state_file(tmp_path / "f", "test"), state)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileError, match="missing"):
        write_state_file(tmp_path / "missing" / "f", "test", {})


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_state_file(path, "test", {"n": 1})

    def fail(_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(FileError, match=r"cannot be written.*no space left"):
        write_state_file(path, "test", {"n": 2})
    assert read_state_file(path, "test") == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
