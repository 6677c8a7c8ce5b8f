"""A GGUF file says what it holds, or is refused before anything is made of its size."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_writer import finish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potluck.errors import BrokenModelError
from potluck.store.gguf_header import read_gguf_header

HUGE = 1 << 60


def text(value: bytes, *, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if claimed is None else claimed) + value


def field(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(
    name: bytes = b"x",
    dims: tuple[int, ...] = (32, 2),
    kind: int = 0,
    offset: int = 0,
    count: int | None = None,
) -> bytes:
    count = len(dims) if count is None else count
    dimensions = struct.pack(f"<I{len(dims)}Q", count, *dims)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def header(
    *parts: bytes,
    fields: int = 0,
    tensors: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
    data: int = 256,
) -> bytes:
    whole = magic + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)
    return whole + bytes(-len(whole) % 32 + data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_fields_and_tensors_are_those_that_the_package_reads(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_int64("a.long", -(1 << 40))
    writer.add_float32("a.number", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.texts", ["", "x", "▁y"])
    writer.add_array("a.numbers", [1.5, -2.0])
    writer.add_array("a.flags", [True, False])
    matrix = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
    blocks = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", matrix)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("experts", np.zeros((2, 3, 5), np.float16))
    finish(writer)

    found = read_gguf_header(path)

    reader = gguf.GGUFReader(path)
    expected = {
        name: entry.contents()
        for name, entry in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    assert found.metadata == expected
    assert {(t.name, t.kind, t.shape, t.offset, t.nbytes) for t in found.tensors.values()} == {
        (t.name, t.tensor_type.name, tuple(int(n) for n in t.shape[::-1]), t.data_offset, t.n_bytes)
        for t in reader.tensors
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off"),
        (b"GGU", "cut off"),
        (header(magic=b"GGML"), "does not begin as a GGUF"),
        (header(version=1), "version 1;"),
        (header(version=4), "version 4;"),
        (header(version=3 << 24), "another byte order"),
        (header(tensors=HUGE), "1,152,921,504,606,846,976 tensors"),
        (header(fields=HUGE), "1,152,921,504,606,846,976 fields"),
        (header(tensors=1000), "cut off|broken|unknown|unaligned"),
        (header(text(b"k", claimed=HUGE), fields=1), "bytes of a text"),
        (header(text(b"k", claimed=1000), fields=1), "cut off"),
        (header(field(b"k", 8, text(b"v", claimed=HUGE)), fields=1), "bytes of a text"),
        (header(field(b"k", 8, text(b"v", claimed=1 << 23)), fields=1), "cut off"),
        (header(field(b"k", 13, b""), fields=1), "unknown kind 13"),
        (header(field(b"k", 9, struct.pack("<IQ", 8, HUGE)), fields=1), "entries of lists"),
        (header(field(b"k", 9, struct.pack("<IQ", 4, 1 << 20)), fields=1), "cut off"),
        (header(field(b"k", 9, struct.pack("<IQ", 9, 1)), fields=1), "unknown kind 9"),
        (header(*[field(b"k", 4, bytes(4))] * 2, fields=2), "field k twice"),
        (header(tensor(dims=(HUGE, HUGE)), tensors=1), "cannot have the shape"),
        (header(tensor(dims=(33, 1), kind=2), tensors=1), "cannot have the shape"),
        (header(tensor(kind=99), tensors=1), "unknown type 99"),
        (header(tensor(count=1 << 31), tensors=1), "dimensions of a tensor"),
        (header(tensor(offset=3), tensors=1), "unaligned"),
        (header(tensor(offset=HUGE), tensors=1), "tensor x ends at"),
        (header(tensor(dims=(32, 3)), tensors=1), "tensor x ends at"),
        (header(tensor(), tensor(b"y", offset=32), tensors=2), "inside another"),
        (header(tensor(), tensor(offset=256), tensors=2, data=512), "tensor x twice"),
        (
            header(field(b"general.alignment", 4, bytes(4)), fields=1),
            "general.alignment",
        ),
        (
            header(field(b"general.alignment", 8, text(b"32")), fields=1),
            "general.alignment",
        ),
    ],
)
def test_what_cannot_be_is_refused(path: Path, data: bytes, words: str) -> None:
    path.write_bytes(data)

    with pytest.raises(BrokenModelError, match=words):
        read_gguf_header(path)


def test_a_header_of_absurd_size_is_not_read(path: Path) -> None:
    path.write_bytes(header(field(b"k", 8, text(bytes(200))), fields=1))

    with pytest.raises(BrokenModelError, match="header has more than 100 B"):
        read_gguf_header(path, max_header=100)


def test_lists_have_a_bound_together(path: Path) -> None:
    numbers = field(b"a", 9, struct.pack("<IQ", 0, 6) + bytes(6))
    texts = struct.pack("<IQ", 8, 4) + 4 * text(b"x")

    path.write_bytes(header(numbers, field(b"b", 9, texts), fields=2))
    assert read_gguf_header(path, max_entries=10).metadata == {"a": [0] * 6, "b": ["x"] * 4}

    more = field(b"c", 9, struct.pack("<IQ", 1, 1) + bytes(1))
    path.write_bytes(header(numbers, field(b"b", 9, texts), more, fields=3))
    with pytest.raises(BrokenModelError, match="1 more entries of lists; 0 are allowed"):
        read_gguf_header(path, max_entries=10)


def test_a_token_that_is_half_a_character_is_no_error(path: Path) -> None:
    path.write_bytes(header(field(b"k", 8, text(b"\xe2\x96")), fields=1))

    assert read_gguf_header(path).metadata == {"k": "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.slow
@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_changed_byte_is_read_or_refused(path: Path, data: st.DataObject) -> None:
    good = bytearray(
        header(
            field(b"a", 9, struct.pack("<IQ", 8, 2) + text(b"x") + text(b"yz")),
            field(b"b", 4, struct.pack("<I", 7)),
            tensor(),
            fields=2,
            tensors=1,
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 257))] = data.draw(st.integers(0, 255))
    path.write_bytes(good)

    try:
        found = read_gguf_header(path)
    except BrokenModelError:
        return
    assert len(found.tensors) <= 1
