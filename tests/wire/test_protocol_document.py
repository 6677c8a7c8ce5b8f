"""`core/PROTOCOL.md` says what the code does: messages, fields and limits."""

import re
from pathlib import Path

import msgspec
import pytest

from potluck.ids import Role
from potluck.model.caches import MAX_CHUNK_TOKENS
from potluck.wire import (
    activation_messages,
    fields,
    frame,
    measuring_messages,
    messages,
    pairing,
    token,
)
from potluck.wire.connection import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    OPENING_TIMEOUT_S,
)
from potluck.wire.messages import Message
from potluck.wire.operations import ALL, ANSWERS, BULK, known_from
from potluck.wire.pairing_messages import MAX_PAIRING_HEADER, PAIRING
from potluck.wire.versions import PROTOCOL_VERSIONS

DOCUMENT = (Path(__file__).parents[2] / "core" / "PROTOCOL.md").read_text(encoding="utf-8")


def rows_of(op: str) -> list[list[str]]:
    """The cells of the table rows that describe a message."""
    lines = (line for line in DOCUMENT.splitlines() if line.startswith("|"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if f"`{op}`" in row[:2]]


EVERYTHING = {**ALL, **PAIRING}
MODULES = (messages, activation_messages, measuring_messages)
VALUES = [value for module in MODULES for value in vars(module).values()]
STRUCTS = {v for v in VALUES if isinstance(v, type) and issubclass(v, msgspec.Struct)}
PARTS = {kind.__name__: kind for kind in STRUCTS if not issubclass(kind, Message)}


def marked(kind: type[msgspec.Struct]) -> set[tuple[str, str]]:
    """Each field, with the mark of those that may be left out."""
    return {(field.name, "" if field.required else "?") for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("op", sorted(EVERYTHING))
def test_every_message_is_described_with_all_its_fields(op: str) -> None:
    fields_of_all = {("id", "?"), ("re", "?")}
    payload = {("tensors", "?")} if EVERYTHING[op] in BULK else set[tuple[str, str]]()
    text = " ".join(cell for row in rows_of(op) for cell in row)

    assert text
    described = set(re.findall(r"`(\w+)`(\??)", text))
    assert marked(EVERYTHING[op]) - fields_of_all - payload <= described
    assert ("`tensors`" in text) == hasattr(EVERYTHING[op], "tensors")


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_value_of_several_fields_is_described_with_them(name: str) -> None:
    values = [set(re.findall(r"`(\w+)`(\??)", v)) for v in re.findall(r"\{[^{}]*\}", DOCUMENT)]

    assert marked(PARTS[name]) in values


@pytest.mark.parametrize("role", ["master", "worker"])
def test_every_control_message_names_its_sender(role: Role) -> None:
    sent = known_from(role, "control")
    other: Role = "worker" if role == "master" else "master"

    for op in sent.keys() - known_from(other, "control").keys():
        assert rows_of(op)[0][2].startswith(role)


def test_every_request_names_its_answer() -> None:
    for request, answer in ANSWERS.items():
        cells = rows_of(str(request.__struct_config__.tag))[0]
        assert f"`{answer.__struct_config__.tag}`" in cells[3]


@pytest.mark.parametrize(
    "value",
    [
        f"| {frame.MAX_HANDSHAKE // frame.KiB} KiB |",
        f"| {frame.MAX_HEADER // frame.MiB} MiB |",
        f"| {MAX_PAIRING_HEADER // frame.KiB} KiB |",
        *(
            f"| {frame.MAX_PAYLOAD[p] // frame.MiB} MiB |"
            for p in ("control", "activations", "weights")
        ),
        f"| {messages.MAX_TENSORS:,} |",
        f"| {messages.MAX_TOKENS:,} |",
        f"| {activation_messages.MAX_HISTORY:,} |",
        f"| {messages.MAX_REVOKED} |",
        f"at most {MAX_CHUNK_TOKENS} tokens",
        f"| {fields.MAX_TEXT} characters |",
        f"version **{max(PROTOCOL_VERSIONS)}**",
        f"frames of version **{frame.FRAME_VERSION}**",
        f"| {HEARTBEAT_INTERVAL_S:g}; {LOST_AFTER_S:g} |",
        f"| {OPENING_TIMEOUT_S:g} |",
        f"| {pairing.EXCHANGE_TIMEOUT_S:g} |",
        f"| {pairing.PERSON_TIMEOUT_S:g} |",
        f"| {token.INVITE_LIFETIME_S:g} |",
    ],
)
def test_every_limit_stands_as_it_is(value: str) -> None:
    assert value in DOCUMENT


def test_the_example_is_a_real_frame() -> None:
    header, _ = frame.encode(messages.Chunk(digest="0" * 64, offset=0, total=3), b"abc")
    example = DOCUMENT.split("```")[1]
    first_line = bytes.fromhex(example.split("PLK")[0].strip())

    assert header[: len(first_line)] == first_line
    for line in example.splitlines()[2:-1]:
        shown = re.sub(r"\s{4,}.*", "", line.strip()).replace("…", "")
        assert bytes.fromhex(shown) in header + b"abc"


def test_every_attack_names_tests_that_exist() -> None:
    chapter = DOCUMENT.partition("## Attacks")[2]
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", chapter)

    assert len(named) > 30
    assert len(named) == chapter.count("test_") - chapter.count("/test_")  # each has its file
    root = Path(__file__).parents[2]
    for file, name in named:
        assert f"def {name}(" in (root / file).read_text("utf-8")
