"""Which messages a connection knows, from whom, and what may carry a payload."""

from typing import get_type_hints

import pytest
from frames import ASSIGN, HEX

from potluck.ids import Role
from potluck.wire.activation_messages import Dtype, Forward, TensorHeader
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import Chunk, Message, Need, Ping, Purpose
from potluck.wire.operations import (
    ALL,
    ANSWERS,
    BULK,
    BY_PURPOSE,
    check_payload,
    known_from,
    op_of,
)
from potluck.wire.picture_messages import RowsRead

MASTERS_ALONE = (
    "revoked", "profile", "measure_link", "assign", "load", "measure_stage", "unload", "expect",
    "pass_on",
)  # fmt: skip
WORKERS_ALONE = (
    "status", "need", "warming_up", "loaded", "unloaded", "step_failed", "expecting", "passed_on",
)  # fmt: skip


def test_every_message_is_known_by_its_name() -> None:
    assert all(op_of(message) == op for op, message in ALL.items())


@pytest.mark.parametrize("op", MASTERS_ALONE)
def test_what_only_a_master_may_ask_is_unknown_from_a_worker(op: str) -> None:
    assert op in known_from("master", "control")
    assert op not in known_from("worker", "control")


@pytest.mark.parametrize("op", WORKERS_ALONE)
def test_what_only_a_worker_may_tell_is_unknown_from_a_master(op: str) -> None:
    assert op in known_from("worker", "control")
    assert op not in known_from("master", "control")


@pytest.mark.parametrize("purpose", BY_PURPOSE)
def test_a_peer_of_any_role_may_send_what_either_may(purpose: Purpose) -> None:
    roles: tuple[Role, ...] = ("master", "worker")
    either = set[str]().union(*(known_from(role, purpose) for role in roles))

    assert set(known_from(None, purpose)) == either


@pytest.mark.parametrize("purpose", ["activations", "weights"])
def test_steps_and_weights_are_no_control_messages(purpose: Purpose) -> None:
    shared = {"ping", "pong", "goodbye", "error", "blob", "blob_received"}

    assert BY_PURPOSE[purpose].keys() & BY_PURPOSE["control"].keys() == shared


def test_a_request_and_its_answer_are_known_on_the_same_connections() -> None:
    for known in BY_PURPOSE.values():
        messages = set(known.values())
        assert all((asked in messages) == (answer in messages) for asked, answer in ANSWERS.items())


def test_the_list_that_travels_as_payload_is_the_one_of_the_message() -> None:
    for message, items in BULK.items():
        assert get_type_hints(message, include_extras=True)["tensors"] == items


STEP = Forward(
    epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="BF16", shape=(3, 5))
)


def rows_of(dtype: Dtype, *shape: int) -> RowsRead:
    tensor = TensorHeader(dtype=dtype, shape=shape)
    return RowsRead(epoch=1, picture=HEX, first=0, total=3, tensor=tensor)


ROWS = rows_of("F32", 3, 5)
CHUNK = Chunk(digest=HEX, offset=10, total=14)


@pytest.mark.parametrize(
    ("message", "nbytes", "wrong"),
    [
        (STEP, 30, None),
        (STEP, 29, "a tensor of 30 bytes has 29"),
        (STEP, 0, "a tensor of 30 bytes has 0"),
        (ROWS, 60, None),
        (ROWS, 59, "rows of 60 bytes have 59"),
        (rows_of("F16", 3, 5), 30, "rows of a picture that are no F32 [rows, numbers]"),
        (rows_of("F32", 15), 60, "rows of a picture that are no F32 [rows, numbers]"),
        (rows_of("F32", 0, 5), 0, "rows of a picture that are no F32 [rows, numbers]"),
        (rows_of("F32", 1, 1 << 22), 1 << 24, None),
        (rows_of("F32", 2, 1 << 20), 1 << 23, "2 rows of a picture of 1048576 numbers each"),
        (CHUNK, 4, None),
        (CHUNK, 5, "bytes beyond the tensor's 14"),
        (Blob(), 1 << 20, None),
        (ASSIGN, 100, None),
        (Need(epoch=1, activation_port=1), 1, None),
        (Ping(), 0, None),
        (Ping(), 1, "a payload that it does not carry"),
    ],
)
def test_a_payload_is_as_long_as_its_message_says(
    message: Message, nbytes: int, wrong: str | None
) -> None:
    assert check_payload(message, nbytes) == wrong
