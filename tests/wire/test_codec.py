"""Headers: what a message is as bytes, and what bytes are no message."""

import random
from typing import cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec
import pytest
from frames import HEX

from potluck.errors import RemoteProtocolError
from potluck.wire.activation_messages import Forward, Result, Sampling, TensorHeader, TokenLogprob
from potluck.wire.codec import UnknownOp, decode_header, decode_list, encode_header
from potluck.wire.messages import Assign, DeviceInfo, Message, Need, NeedTensor, Ping, Status
from potluck.wire.operations import ALL, Table, op_of, table

NEED = Need(epoch=1, activation_port=4, tensors=(NeedTensor(digest=HEX, offset=5),))
STATUS = Status(devices=(DeviceInfo(kind="cpu", memory_total=2, memory_free=1),), lent_to="Ana")
ASSIGN = Assign(
    epoch=1,
    model_id=HEX,
    config={"model_type": "llama", "rope": {"factor": 2.5}, "eos": [1, None, True]},
    scheme="int4",
    layers=(0, 2),
    embedding=True,
    head=False,
    context=9,
    tensors=(),
)


def packed(fields: object) -> bytes:
    return cast("bytes", msgpack.packb(fields))


def unpacked(header: bytes) -> object:
    return msgpack.unpackb(header)


def forward(number: random.Random) -> Forward:
    sampling = Sampling(
        temperature=number.choice([0.0, 0.7, 1.0]),
        top_k=number.choice([0, 40]),
        top_p=number.choice([1.0, 0.95]),
        seed=number.getrandbits(63),
        logprobs=number.choice([None, 0, 20]),
    )
    return Forward(
        epoch=number.getrandbits(30),
        session="".join(number.choices("0123456789abcdefé", k=number.randint(1, 60))),
        step=number.getrandbits(31),
        position=number.getrandbits(number.randint(1, 31)),
        tensor=TensorHeader(
            dtype=number.choice(["I32", "F16", "BF16"]), shape=(1, number.randint(1, 16384))
        ),
        sampling=number.choice([None, sampling]),
        compute_ms=tuple(number.uniform(0, 100) for _ in range(number.randint(0, 256))),
    )


def result(number: random.Random) -> Result:
    top = tuple(
        TokenLogprob(token_id=number.getrandbits(17), logprob=-number.uniform(0, 30))
        for _ in range(number.randint(0, 20))
    )
    return Result(
        epoch=number.getrandbits(30),
        session="s",
        step=number.getrandbits(31),
        position=number.getrandbits(20),
        token_id=number.choice([None, 0, 128_255]),
        logprob=number.choice([None, -0.25]),
        top=top,
        compute_ms=(1.5, 2.0),
    )


STEPS = [make(random.Random(seed)) for make in (forward, result) for seed in range(100)]
MESSAGES: list[Message] = [*STEPS, Ping(id=3), STATUS, ASSIGN]


def encoded(message: Message) -> bytes:
    return encode_header(message)[0]


def decoded(header: bytes, known: Table = ALL) -> Message | UnknownOp:
    return decode_header(memoryview(header), known)


@pytest.mark.parametrize("message", MESSAGES[::10], ids=op_of)
def test_a_header_is_a_map_of_the_fields_that_are_not_their_defaults(message: Message) -> None:
    # A map that may have more than 15 fields begins with two bytes more.
    assert unpacked(encoded(message)) == unpacked(packed(msgspec.to_builtins(message)))


def test_what_is_encoded_comes_out_again() -> None:
    for message in MESSAGES:
        assert decoded(encoded(message)) == message


def test_the_order_of_fields_does_not_matter() -> None:
    fields = dict(reversed(msgspec.to_builtins(STEPS[0]).items()))

    assert decoded(packed(fields)) == STEPS[0]


def test_a_long_list_travels_beside_the_header() -> None:
    header, items = encode_header(NEED)
    assert items is not None
    without = decoded(header)

    assert isinstance(without, Need)
    assert without.tensors == ()
    assert decode_list(without, bytearray(items)) == NEED


def test_a_message_that_this_connection_does_not_know_is_told_by_its_name() -> None:
    header = encoded(msgspec.structs.replace(STEPS[0], id=7))

    assert decoded(header, table(Result)) == UnknownOp("forward", 7)


def test_fields_of_a_later_version_are_passed_over() -> None:
    fields = {**msgspec.to_builtins(STEPS[0]), "new": {"deep": [1, 2]}}

    assert decoded(packed(fields)) == STEPS[0]


@pytest.mark.parametrize("change", [{"epoch": -1}, {"step": "x"}, {"session": ""}, {"tensor": 1}])
def test_a_wrong_field_is_named(change: dict[str, object]) -> None:
    fields = {**msgspec.to_builtins(STEPS[0]), **change}

    with pytest.raises(RemoteProtocolError, match=rf"wrong `forward`.*\$\.{next(iter(change))}"):
        decoded(packed(fields))


def test_a_header_that_is_cut_off_is_refused_at_every_length() -> None:
    header = encoded(STEPS[1])
    for length in range(len(header)):
        with pytest.raises(RemoteProtocolError):
            decoded(header[:length])


@pytest.mark.parametrize("config", [{"a": [0] * 1025}, {"a": msgpack.Timestamp(1, 0)}, {1: 2}])
def test_a_config_is_built_within_limits(config: object) -> None:
    fields = {**msgspec.to_builtins(ASSIGN), "config": config}

    with pytest.raises(RemoteProtocolError, match="wrong `assign`"):
        decoded(packed(fields))
