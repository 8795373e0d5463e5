from __future__ import annotations

import gzip
import hashlib
import math
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.data.binary import read_idx
from gradmix.data.locate import sha256_of
from gradmix.errors import CorruptFileError

Build = Callable[[tuple[int, ...], bytes], bytes]
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def read_bytes(content: bytes) -> torch.Tensor:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some-idx-ubyte"
        path.write_bytes(content)
        return read_idx(path)


def test_two_by_three_written_out_by_hand() -> None:
    content = bytes.fromhex("00000802 00000002 00000003 01020304 05ff")
    result = read_bytes(content)
    assert result.dtype == torch.uint8
    assert result.tolist() == [[1, 2, 3], [4, 5, 255]]


@given(shape=SHAPES, data=st.data(), packed=st.booleans())
def test_round_trip(
    idx_bytes: Build, shape: tuple[int, ...], data: st.DataObject, packed: bool
) -> None:
    count = math.prod(shape)
    values = data.draw(st.binary(min_size=count, max_size=count))
    content = idx_bytes(shape, values)
    result = read_bytes(gzip.compress(content) if packed else content)
    assert result.shape == shape
    assert bytes(result.flatten().tolist()) == values


@given(cut=st.integers(0, 4 + 8 + 12 - 1))
def test_truncation_at_any_byte_is_refused(idx_bytes: Build, cut: int) -> None:
    content = idx_bytes((3, 4), bytes(range(12)))
    with pytest.raises(CorruptFileError, match="some-idx-ubyte"):
        read_bytes(content[:cut])


@given(data=st.data())
def test_truncated_gzip_is_refused(idx_bytes: Build, data: st.DataObject) -> None:
    content = gzip.compress(idx_bytes((3, 4), bytes(range(12))))
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CorruptFileError, match="some-idx-ubyte"):
        read_bytes(content[:cut])


@pytest.mark.parametrize("packed", [False, True])
def test_trailing_byte_is_refused(idx_bytes: Build, packed: bool) -> None:
    content = idx_bytes((2, 2), b"abcd") + b"e"
    with pytest.raises(
        CorruptFileError, match=r"announces 4 bytes of shape \(2, 2\), but more follow"
    ):
        read_bytes(gzip.compress(content) if packed else content)


def test_flipped_byte_in_gzip_is_refused(idx_bytes: Build) -> None:
    content = bytearray(gzip.compress(idx_bytes((1000,), bytes(1000))))
    content[-8] ^= 1  # in the checksum
    with pytest.raises(CorruptFileError, match="gzip data are damaged"):
        read_bytes(bytes(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file: it starts with nothing"),
        (b"\x89PNG\r\n\x1a\n", "not an IDX file: it starts with 89 50 4e 47"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "IDX type 0x0d"),
        (b"\0\0\x08\0", "no dimensions"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends within the IDX header of 3 dimensions"),
    ],
)
def test_other_formats_are_named(content: bytes, message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        read_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_absurd_dimensions_take_no_memory(idx_bytes: Build, packed: bool) -> None:
    content = idx_bytes((2**32 - 1,) * 4, b"tiny")
    tracemalloc.start()
    with pytest.raises(CorruptFileError, match="only 4 follow"):
        read_bytes(gzip.compress(content) if packed else content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_an_empty_dimension_is_an_empty_tensor(idx_bytes: Build) -> None:
    assert read_bytes(idx_bytes((0, 3), b"")).shape == (0, 3)


def test_digest_does_not_depend_on_the_wrapper(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"content")
    (tmp_path / "fast").write_bytes(gzip.compress(b"content", 1, mtime=1))
    (tmp_path / "small").write_bytes(gzip.compress(b"content", 9, mtime=2))
    expected = hashlib.sha256(b"content").hexdigest()
    assert [sha256_of(tmp_path / name, unpacked=True) for name in ("plain", "fast", "small")] == [
        expected
    ] * 3
