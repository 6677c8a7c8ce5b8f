import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import BrokenModelError, ModelError
from potluck.ids import Digest, is_digest
from potluck.model.manifest import (
    LENGTH_SIZE,
    MAX_HEADER,
    TensorEntry,
    TensorSpan,
    header_length,
    make_manifest,
    parse_header,
)

FILE = "model.safetensors"
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "rope_theta": 1e4}


def header(tensors, *, metadata=None) -> bytes:
    """The header of a file with these tensors (name, dtype, shape, bytes), one after the other."""
    members: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, nbytes in tensors:
        offsets = [offset, offset + nbytes]
        members[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        offset += nbytes
    return json.dumps(members).encode()


def parse(data: bytes, nbytes: int) -> dict[str, TensorSpan]:
    return parse_header(data, LENGTH_SIZE + len(data) + nbytes, FILE)


def entry(name: str, byte: int = 0, **changes) -> TensorEntry:
    digest = Digest(f"{byte:02x}" * 32)
    whole = TensorEntry(name=name, dtype="F32", shape=(2, 3), digest=digest, nbytes=24)
    return replace(whole, **changes)


def test_header_gives_each_tensors_place_in_the_file():
    data = header([("a", "F32", [2, 3], 24), ("b", "BF16", [], 2)], metadata={"format": "pt"})

    spans = parse(data, 26)

    start = LENGTH_SIZE + len(data)
    assert spans["a"] == TensorSpan(
        name="a", dtype="F32", shape=(2, 3), file=FILE, offset=start, nbytes=24
    )
    assert (spans["b"].offset, spans["b"].nbytes, spans["b"].shape) == (start + 24, 2, ())
    assert len(spans) == 2


def test_header_padded_with_spaces_and_an_empty_tensor_are_allowed():
    data = header([("none", "F32", [0, 4], 0), ("a", "F16", [4], 8)]) + b"   "

    assert parse(data, 8)["none"].nbytes == 0


def test_tensors_below_a_byte_an_element_are_measured_in_bits():
    assert parse(header([("a", "F4", [4], 2)]), 2)["a"].nbytes == 2
    with pytest.raises(BrokenModelError, match="takes"):
        parse(header([("a", "F4", [3], 1)]), 1)


@pytest.mark.parametrize(
    ("data", "nbytes", "words"),
    [
        (b"", 0, "damaged header"),
        (b"[]", 0, "damaged header"),
        (b'{"a": 3}', 0, "damaged header"),
        (b'{"a": {"dtype": "F32", "shape": [1]}}', 4, "damaged header"),
        (b"\xff\xfe{}", 0, "damaged header"),
        (b'{"a":' * 100_000, 0, "damaged header"),
        (header([("a", "F33", [1], 4)]), 4, "unknown dtype: F33"),
        (header([("a", "F32", [2], 4)]), 4, r"has 4 bytes; F32 \[2\] takes 8"),
        (header([("a", "F32", [-1], 4)]), 4, "damaged header"),
        (header([("a", "F32", [1] * 9, 4)]), 4, "damaged header"),
        (header([("a", "F32", [1 << 49, 1 << 49], 4)]), 4, "has 4 bytes"),
        (header([("a" * 257, "F32", [1], 4)]), 4, "damaged header"),
        (header([("a", "F32", [1], 4)]), 3, "cut off"),
        (header([("a", "F32", [1], 4)]), 5, "describes"),
    ],
)
def test_broken_header_is_refused_with_the_reason(data, nbytes, words):
    with pytest.raises(BrokenModelError, match=words) as caught:
        parse(data, nbytes)

    assert FILE in str(caught.value)


@pytest.mark.parametrize("offsets", [[[0, 4], [8, 12]], [[0, 4], [2, 6]], [[4, 8], [8, 12]]])
def test_holes_and_overlaps_are_refused(offsets):
    members = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": place}
        for name, place in zip("ab", offsets, strict=True)
    }

    with pytest.raises(BrokenModelError, match="begins at byte"):
        parse(json.dumps(members).encode(), 12)


def test_tensor_listed_twice_is_refused():
    one = b'"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    other = one.replace(b"[0, 4]", b"[4, 8]")

    with pytest.raises(BrokenModelError):
        parse(b"{" + one + b"," + other + b"}", 8)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_crash_the_parser(data):
    try:
        spans = parse(data, 16)
    except ModelError:
        return
    assert sum(span.nbytes for span in spans.values()) == 16


@given(st.lists(st.integers(0, 40), max_size=6), st.randoms())
def test_any_header_of_one_tensor_after_the_other_is_read_back(sizes, random):
    tensors = [(f"t{i}", "U8", [size], size) for i, size in enumerate(sizes)]
    members = json.loads(header(tensors))
    names = list(members)
    random.shuffle(names)

    spans = parse(json.dumps({name: members[name] for name in names}).encode(), sum(sizes))

    assert [spans[name].nbytes for name, *_ in tensors] == sizes


def test_header_length_is_checked_before_it_is_read():
    assert header_length((99).to_bytes(8, "little"), 200, FILE) == 99
    with pytest.raises(BrokenModelError, match="cut off"):
        header_length(b"\x01\x00", 2, FILE)
    with pytest.raises(BrokenModelError, match="cut off"):
        header_length((193).to_bytes(8, "little"), 200, FILE)
    with pytest.raises(BrokenModelError, match="claims"):
        header_length((MAX_HEADER + 1).to_bytes(8, "little"), 1 << 40, FILE)


def test_model_id_is_the_same_for_any_order_of_tensors_and_keys():
    first = make_manifest(CONFIG, [entry("a", 1), entry("b", 2)])
    second = make_manifest(dict(reversed(CONFIG.items())), [entry("b", 2), entry("a", 1)])

    assert first == second
    assert is_digest(first.model_id)


@pytest.mark.parametrize(
    "changes",
    [{"name": "c"}, {"dtype": "I32"}, {"shape": (3, 2)}, {"digest": Digest("ff" * 32)}],
)
def test_model_id_changes_with_any_part_of_a_tensor(changes):
    model = make_manifest(CONFIG, [entry("a", 1), entry("b", 2)])

    other = make_manifest(CONFIG, [entry("a", 1), replace(entry("b", 2), **changes)])

    assert other.model_id != model.model_id


def test_model_id_changes_with_what_is_computed():
    model = make_manifest(CONFIG, [entry("a")])

    assert make_manifest(CONFIG | {"rope_theta": 5e5}, [entry("a")]).model_id != model.model_id
    assert make_manifest(CONFIG, []).model_id != model.model_id


def test_where_a_model_came_from_is_neither_in_its_id_nor_in_its_manifest():
    saved = CONFIG | {"_name_or_path": "/home/someone/m", "transformers_version": "5.0.0"}

    model = make_manifest(saved, [entry("a")])

    assert model == make_manifest(CONFIG, [entry("a")])
    assert model.config == CONFIG


def test_config_with_any_text_has_an_id():
    odd = CONFIG | {"note": "\ud800 and 日本", "limit": float("inf")}

    assert make_manifest(odd, []).model_id != make_manifest(CONFIG, []).model_id


def test_stage_takes_the_tensors_by_name_in_the_order_asked_for():
    model = make_manifest(CONFIG, [entry("a", 1), entry("b", 2), entry("c", 3)])

    assert [one.name for one in model.stage(["c", "a"])] == ["c", "a"]
    assert model.nbytes == 72
    with pytest.raises(KeyError):
        model.stage(["d"])


def test_stage_lists_the_parts_of_a_quantised_matrix():
    names = ["a.qweight", "a.scales", "a.bias", "b.weight"]
    model = make_manifest(CONFIG, [entry(name, i) for i, name in enumerate(names)])

    assert [one.name for one in model.stage(["b.weight", "a.weight"])] == [
        "b.weight",
        "a.qweight",
        "a.scales",
    ]
