"""Files that are not what they seem: each a FileError, in little memory, and nothing is run."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_safetensors
from xxhash import xxh3_128

from gradmix.errors import FileError, GradMixError
from gradmix.files import read_manifest, read_state_file, write_state_file
from gradmix.files._container import (
    MANIFEST,
    STATE,
    TENSORS,
    Member,
    compose,
    directory,
    local_header,
    offsets,
    parse,
)
from gradmix.files._encoding import to_buffers

quick = settings(max_examples=80)
BOMB = 1 << 26  # bytes that a compressed member would take


def state_text(value=None):
    return json.dumps({"w": {"$tensor": "w"}} if value is None else value).encode()


def tensor_bytes(tensors=None):
    tensors = {"w": torch.arange(6.0).view(2, 3)} if tensors is None else tensors
    return b"".join(bytes(buffer) for buffer in to_buffers(tensors))


def raw_tensors(header, data=b"\0" * 24, length=None):
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def described(**changes):
    """A safetensors file whose only tensor is described otherwise than it is."""
    return raw_tensors({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes})


def two(first, second):
    entry = {"dtype": "U8", "shape": [first[1] - first[0]], "data_offsets": first}
    other = {"dtype": "U8", "shape": [second[1] - second[0]], "data_offsets": second}
    return raw_tensors({"w": entry, "v": other})


def member(name, content):
    digest = xxh3_128(content).hexdigest()
    return Member(name=name, size=len(content), crc32=zlib.crc32(content), xxh3=digest)


def forged(state=None, tensors=None, *, edit=None, **changes):
    """A file whose checksums are all right, whatever is in it."""
    contents = [
        state_text() if state is None else state,
        tensor_bytes() if tensors is None else tensors,
    ]
    members = [member(*part) for part in zip((STATE, TENSORS), contents, strict=True)]
    about = json.loads(compose("test", members))
    about |= changes
    if edit is not None:
        edit(about)
    return packed(json.dumps(about).encode(), contents, members)


def packed(manifest, contents, members):
    members = [member(MANIFEST, manifest), *members]
    parts = [
        local_header(one) + content
        for one, content in zip(members, [manifest, *contents], strict=True)
    ]
    return b"".join(parts) + directory(members)


def with_manifest(text):
    """A file with any manifest, its checksum right."""
    contents = [state_text(), tensor_bytes()]
    members = [member(*part) for part in zip((STATE, TENSORS), contents, strict=True)]
    return packed(text, contents, members)


def zipped(members, compression=zipfile.ZIP_STORED):
    """A zip as Python writes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def members_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def appended(data, name, content=b"x"):
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def flipped(data, place, bit=0):
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def set_member(number, **changes):
    return lambda about: about["members"][number].update(changes)


class Run:
    """What a pickle may do."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def torch_file():
    stream = io.BytesIO()
    torch.save({"w": torch.ones(3), "evil": Run()}, stream)
    return stream.getvalue()


def bomb():
    return zipped({**members_of(forged()), TENSORS: bytes(BOMB)}, zipfile.ZIP_DEFLATED)


def regions():
    """Where the parts of `forged()` begin, with names."""
    data = forged()
    contents = members_of(data)
    sizes = [member(name, content) for name, content in contents.items()]
    places = offsets(sizes)
    found = {}
    for one, place in zip(sizes, places[:-1], strict=True):
        found[f"header of {one.name}"] = place
        found[one.name] = place + len(local_header(one))
    return {**found, "tensor data": places[-1] - 10, "directory": places[-1]}


WHOLE = forged()
REGIONS = regions()
NUMBER = b"1" * 10_000

CASES = {
    # no such file at all
    "empty": b"",
    "one byte": b"P",
    "text": b"hello, this is a model",
    "zeros": bytes(5000),
    "pickle": pickle.dumps(Run()),
    "torch.save": torch_file(),
    "safetensors": save_safetensors({"w": torch.ones(3)}),
    "an empty zip": zipped({}),
    # of another kind or version
    "wrong kind": forged(kind="other"),
    "kind of no text": forged(kind=3),
    "newer version": forged(version=3, gradmix="9.1"),
    "older version": forged(version=1),
    "version 0": forged(version=0),
    "version as text": forged(version="2"),
    "version true": forged(version=True),
    "no version": forged(edit=lambda about: about.pop("version")),
    "another format": forged(format="zip"),
    # the zip
    "trailing bytes": WHOLE + b"\0",
    "leading bytes": b"\0" + WHOLE,
    "extra member": appended(WHOLE, "extra"),
    "extra member that leads outside": appended(WHOLE, "../evil"),
    "same member twice": appended(WHOLE, "state.json ", state_text()),
    "names that lead outside": zipped({f"../{k}": v for k, v in members_of(WHOLE).items()}),
    "absolute names": zipped({f"/tmp/{k}": v for k, v in members_of(WHOLE).items()}),
    "missing member": zipped({MANIFEST: b"{}", STATE: b"{}"}),
    "compressed members": zipped(members_of(WHOLE), zipfile.ZIP_DEFLATED),
    "written anew by another program": zipped(members_of(WHOLE)),
    "zip bomb": bomb(),
    "manifest of 2**60 bytes": local_header(Member(name=MANIFEST, size=2**60, crc32=0)) + b"{}",
    "manifest of 1 MB": local_header(Member(name=MANIFEST, size=10**6, crc32=0)) + bytes(10**6),
    # the manifest
    "manifest is no JSON": with_manifest(b"{"),
    "manifest is a list": with_manifest(b"[]"),
    "manifest is a number": with_manifest(NUMBER),
    "manifest is nested deep": with_manifest(b"[" * 60_000),
    "manifest is not UTF-8": with_manifest(b'{"format": "\xff"}'),
    "manifest without members": forged(members=[]),
    "members of no list": forged(members={"state.json": 1}),
    "a member too many": forged(edit=lambda about: about["members"].append(about["members"][0])),
    "a member of another name": forged(edit=set_member(0, name="../evil")),
    "a member without its size": forged(edit=lambda about: about["members"][0].pop("size")),
    "a member of 2**60 bytes": forged(edit=set_member(1, size=2**60)),
    "a state of 2**40 bytes": forged(edit=set_member(0, size=2**40)),
    "a member of -1 bytes": forged(edit=set_member(1, size=-1)),
    "a member of half a byte": forged(edit=set_member(1, size=0.5)),
    "a member of 2**200 bytes": forged(edit=set_member(1, size=2**200)),
    "wrong XXH3 of the state": forged(edit=set_member(0, xxh3="0" * 32)),
    "wrong XXH3 of the tensors": forged(edit=set_member(1, xxh3="0" * 32)),
    "XXH3 of no text": forged(edit=set_member(1, xxh3=None)),
    "wrong CRC-32": forged(edit=set_member(1, crc32=1)),
    "impossible CRC-32": forged(edit=set_member(1, crc32=2**40)),
    # the state
    "state is no JSON": forged(b"{"),
    "state is empty": forged(b""),
    "state is not UTF-8": forged(b'{"w": "\xff\xfe\xfd"}'),
    "state is a list": forged(b"[]", tensor_bytes({})),
    "state is nested 100000 deep": forged(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "lists nested 100000 deep": forged(b"[" * 100_000 + b"]" * 100_000),
    "state is nested 70 deep": forged(b'{"a":' * 70 + b"1" + b"}" * 70, tensor_bytes({})),
    "a number of 10000 digits": forged(b'{"a":' + NUMBER + b"}", tensor_bytes({})),
    "a tensor that is not there": forged(state_text({"w": {"$tensor": "v"}})),
    "a tensor used twice": forged(state_text({"w": {"$tensor": "w"}, "v": {"$tensor": "w"}})),
    "a tensor not used": forged(state_text({})),
    "a tensor named by a list": forged(state_text({"w": {"$tensor": ["w"]}})),
    "a tensor with more": forged(state_text({"w": {"$tensor": "w", "x": 1}})),
    "an unknown mark": forged(state_text({"w": {"$tensor": "w"}, "x": {"$exec": "import os"}})),
    "a float of no such name": forged(state_text({"w": {"$float": "1e5"}})),
    "a float by a list": forged(state_text({"w": {"$float": ["nan"]}})),
    "a tuple of no list": forged(state_text({"w": {"$tuple": 3}})),
    "a dict of no list": forged(state_text({"w": {"$dict": {"a": 1}}})),
    "a dict of no pairs": forged(state_text({"w": {"$dict": [[1, 2, 3]]}})),
    "a dict with a list for a key": forged(state_text({"w": {"$dict": [[[1], 2]]}})),
    "strides that overlap": forged(state_text({"w": {"$tensor": "w", "$strides": [0, 0]}})),
    "strides that lead outside": forged(
        state_text({"w": {"$tensor": "w", "$strides": [3, 2**50]}})
    ),
    "negative strides": forged(state_text({"w": {"$tensor": "w", "$strides": [-3, 1]}})),
    "too few strides": forged(state_text({"w": {"$tensor": "w", "$strides": [1]}})),
    "strides of 2**70": forged(state_text({"w": {"$tensor": "w", "$strides": [2**70, 1]}})),
    "strides of no list": forged(state_text({"w": {"$tensor": "w", "$strides": "3,1"}})),
    # the tensors
    "no tensors": forged(tensors=b""),
    "tensors of 7 bytes": forged(tensors=b"1234567"),
    "a header of 2**60 bytes": forged(tensors=raw_tensors({}, length=2**60)),
    "a header of 2**64 - 1 bytes": forged(tensors=raw_tensors({}, length=2**64 - 1)),
    "a header one byte too long": forged(tensors=raw_tensors({}, b"", length=3)),
    "a header that is no JSON": forged(tensors=raw_tensors(b"{]")),
    "a header that is a list": forged(tensors=raw_tensors([])),
    "a header nested deep": forged(tensors=raw_tensors(b"[" * 100_000)),
    "a header without offsets": forged(tensors=raw_tensors({"w": {"dtype": "F32", "shape": [6]}})),
    "a tensor that is a number": forged(tensors=raw_tensors({"w": 3})),
    "an unknown dtype": forged(tensors=described(dtype="F31")),
    "a dtype of no text": forged(tensors=described(dtype=["F32"])),
    "another dtype": forged(tensors=described(dtype="F64")),
    "another shape": forged(tensors=described(shape=[2, 4])),
    "a shape of 2**60": forged(tensors=described(shape=[2**60, 3])),
    "a shape whose product is 2**64 too many": forged(tensors=described(shape=[2**62, 4, 3])),
    "a negative shape": forged(tensors=described(shape=[-2, -3])),
    "a shape of halves": forged(tensors=described(shape=[2.0, 3.0])),
    "a shape of booleans": forged(tensors=described(shape=[True, 6])),
    "a shape of 2**70": forged(tensors=described(shape=[0, 2**70], data_offsets=[0, 0])),
    "an empty shape that no tensor has": forged(
        tensors=raw_tensors(
            {"w": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, b""
        )
    ),
    "1000 dimensions": forged(tensors=described(shape=[2, 3, *[1] * 1000])),
    "offsets the wrong way round": forged(tensors=described(data_offsets=[24, 0])),
    "negative offsets": forged(tensors=described(data_offsets=[-24, 0])),
    "three offsets": forged(tensors=described(data_offsets=[0, 24, 24])),
    "offsets beyond the end": forged(tensors=described(shape=[20], data_offsets=[0, 80])),
    "overlapping tensors": forged(tensors=two([0, 16], [8, 24])),
    "the same bytes twice": forged(tensors=two([0, 24], [0, 24])),
    "a gap between tensors": forged(tensors=two([0, 8], [16, 24])),
    "bytes of no tensor": forged(tensors=two([0, 8], [8, 16])),
    "booleans of 2": forged(
        state_text({"w": {"$tensor": "w"}}),
        raw_tensors({"w": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}, b"\1\2"),
    ),
    **{f"cut off at the {name}": WHOLE[:place] for name, place in REGIONS.items()},
    **{f"cut off in the {name}": WHOLE[: place + 5] for name, place in REGIONS.items()},
    **{
        f"a bit flipped in the {name}": flipped(WHOLE, place + 4) for name, place in REGIONS.items()
    },
    "cut off at the last byte": WHOLE[:-1],
    "a bit flipped in the last byte": flipped(WHOLE, -1),
}


def test_a_forged_file_that_is_right_is_read(tmp_path):
    """So that the cases fail for what is wrong with them and not for something else."""
    (tmp_path / "f").write_bytes(WHOLE)
    assert torch.equal(read_state_file(tmp_path / "f", "test")["w"], torch.arange(6.0).view(2, 3))
    manifest = read_manifest(tmp_path / "f")
    assert parse(compose(manifest.kind, manifest.members)) == manifest
    (tmp_path / "f").write_bytes(forged(tensors=described()))
    assert torch.equal(read_state_file(tmp_path / "f", "test")["w"], torch.zeros(2, 3))


@pytest.mark.parametrize("name", CASES)
def test_a_clear_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.gradmix"
    path.write_bytes(CASES[name])
    with pytest.raises(FileError) as caught:
        read_state_file(path, "test")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < 500
    assert sorted(os.listdir(tmp_path)) == ["model.gradmix"]  # nothing ran, nothing was unpacked


def test_errors_say_what_is_wrong_and_what_would_be_right(tmp_path):
    path = tmp_path / "f"
    for name, expected in {
        "newer version": r"version 3 of the format, .*install gradmix 9.1 or later",
        "older version": "version 1 of the format, .*learn again",
        "wrong kind": "of the kind 'other', not 'test'",
        "pickle": "not a gradmix file",
        "torch.save": "a zip of another program",
        "cut off at the last byte": f"{len(WHOLE) - 1} bytes where its manifest says {len(WHOLE)}",
        "a bit flipped in the tensor data": "tensors.safetensors is damaged: the checksum differs",
        "a header of 2**60 bytes": str(2**60),
        "overlapping tensors": "starts at 8, not at 16",
    }.items():
        path.write_bytes(CASES[name])
        with pytest.raises(FileError, match=expected):
            read_state_file(path, "test")
    assert issubclass(FileError, GradMixError)


@quick
@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_every_bit_counts(tmp_path, place, bit):
    (tmp_path / "f").write_bytes(flipped(WHOLE, place, bit))
    with pytest.raises(FileError):
        read_state_file(tmp_path / "f", "test")


@pytest.mark.slow
def test_every_single_bit_counts(tmp_path):
    for place in range(len(WHOLE)):
        for bit in range(8):
            (tmp_path / "f").write_bytes(flipped(WHOLE, place, bit))
            with pytest.raises(FileError):
                read_state_file(tmp_path / "f", "test")


@quick
@given(length=st.integers(0, len(WHOLE) - 1))
def test_every_byte_is_needed(tmp_path, length):
    (tmp_path / "f").write_bytes(WHOLE[:length])
    with pytest.raises(FileError):
        read_state_file(tmp_path / "f", "test")


@quick
@given(
    start=st.integers(0, len(WHOLE)), stop=st.integers(0, len(WHOLE)), other=st.binary(max_size=200)
)
def test_any_part_replaced(tmp_path, start, stop, other):
    data = WHOLE[:start] + other + WHOLE[stop:]
    assume(data != WHOLE)
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FileError):
        read_state_file(tmp_path / "f", "test")


@quick
@given(data=st.binary(max_size=400))
def test_any_bytes(tmp_path, data):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FileError):
        read_state_file(tmp_path / "f", "test")


marks = st.sampled_from(["$tensor", "$strides", "$float", "$tuple", "$dict", "w", "a"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["w", "nan", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(marks, inner, max_size=3),
    max_leaves=10,
)


@quick
@given(value=json_values)
def test_any_state_is_read_or_refused(tmp_path, value):
    (tmp_path / "f").write_bytes(forged(state_text(value)))
    with suppress(FileError):
        assert isinstance(read_state_file(tmp_path / "f", "test"), dict)


entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BOOL", "I64", "F16", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 8) | st.integers(), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(0, 24), min_size=2, max_size=2) | json_values,
    }
)


@quick
@given(header=st.dictionaries(st.sampled_from(["w", "v", "__metadata__"]), entries) | json_values)
def test_any_header_is_read_or_refused(tmp_path, header):
    (tmp_path / "f").write_bytes(forged(tensors=raw_tensors(header)))
    with suppress(FileError):
        assert isinstance(read_state_file(tmp_path / "f", "test"), dict)


@quick
@given(
    changes=st.dictionaries(st.sampled_from(["kind", "version", "gradmix", "members"]), json_values)
)
def test_any_manifest_is_read_or_refused(tmp_path, changes):
    (tmp_path / "f").write_bytes(forged(**changes))
    with suppress(FileError):
        assert isinstance(read_state_file(tmp_path / "f", "test"), dict)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileError, match="not a regular file"):
        read_state_file(tmp_path, "test")
    with pytest.raises(FileError, match="No such file"):
        read_state_file(tmp_path / "missing", "test")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(FileError, match="not a regular file"):  # and does not wait for a writer
            read_state_file(tmp_path / "pipe", "test")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read(tmp_path):
    write_state_file(tmp_path / "f", "test", {})
    (tmp_path / "f").chmod(0)
    with pytest.raises(FileError, match="Permission denied"):
        read_state_file(tmp_path / "f", "test")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sparse files")
def test_a_file_that_is_larger_than_memory_and_takes_no_disk(tmp_path):
    """With a manifest, headers and a directory that all agree."""
    size = 1 << 42
    header = raw_tensors({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, b"")
    state = state_text()
    members = [
        member(STATE, state),
        Member(name=TENSORS, size=len(header) + size, crc32=0, xxh3="0" * 32),
    ]
    about = compose("test", members)
    members = [member(MANIFEST, about), *members]
    *places, end = offsets(members)
    try:
        with open(tmp_path / "f", "wb") as file:
            for one, place, content in zip(members, places, [about, state, header], strict=True):
                file.seek(place)
                file.write(local_header(one) + content)
            file.seek(end)
            file.write(directory(members))
    except OSError:
        pytest.skip("this file system has no files of 4 TB")
    with pytest.raises(FileError, match=r"bytes of memory; this machine has"):
        read_state_file(tmp_path / "f", "test")


READ_ALL = """
import resource, sys
from pathlib import Path
import torch
from gradmix.files import read_state_file
from gradmix.errors import FileError

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_state_file(path, "test")
    except FileError as error:
        continue
    sys.exit(f"{path} was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and setrlimit")
def test_in_little_memory(tmp_path):
    """All of them in a process that cannot take 300 MB more than it has at the start."""
    many = b",".join([b"{}"] * 5_500_000)  # as much as a state may have, and worth much more
    worst = {
        "many objects": forged(b'{"a":[' + many + b"]}", tensor_bytes({"unused": torch.ones(1)}))
    }
    for number, content in enumerate([*CASES.values(), *worst.values()]):
        (tmp_path / str(number)).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
