import random
from typing import cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec
import pytest

from potluck.wire.messages import (
    Forward,
    Message,
    OpenSession,
    Result,
    Sampling,
    TensorHeader,
    TokenLogprob,
)
from potluck.wire.step_codec import MAX_STEP_HEADER, decode_step, encode_step

BOTH = ("forward", "result")


def packed(fields: object) -> bytes:
    return cast("bytes", msgpack.packb(fields))


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


@pytest.mark.parametrize("step", STEPS[::10], ids=repr)
def test_the_bytes_are_those_of_every_other_message(step: Message) -> None:
    assert encode_step(step) == packed(msgspec.to_builtins(step))


def test_what_is_encoded_comes_out_again() -> None:
    for step in STEPS:
        header = encode_step(step)
        assert header is not None
        assert len(header) <= MAX_STEP_HEADER
        assert decode_step(memoryview(header), BOTH) == step


def test_what_is_no_step_is_left_to_the_general_way() -> None:
    assert encode_step(OpenSession(epoch=1, session="s")) is None
    other = packed(msgspec.to_builtins(OpenSession(epoch=1, session="s")))
    assert decode_step(memoryview(other), (*BOTH, "open_session")) is None


def test_a_history_is_left_to_the_general_way() -> None:
    step = msgspec.structs.replace(STEPS[0], sampling=Sampling(history=(1, 2)))
    assert encode_step(step) is None
    fields = msgspec.to_builtins(step)
    fields["sampling"]["history"] = b"\1\0\0\0"
    assert decode_step(memoryview(packed(fields)), BOTH) is None


def test_a_step_that_this_connection_does_not_know_is_none() -> None:
    header = encode_step(STEPS[0])
    assert header is not None
    assert decode_step(memoryview(header), ("result",)) is None


def test_fields_of_a_later_version_are_passed_over() -> None:
    fields = {**msgspec.to_builtins(STEPS[0]), "new": {"deep": [1, 2]}}
    assert decode_step(memoryview(packed(fields)), BOTH) == STEPS[0]


@pytest.mark.parametrize("change", [{"epoch": -1}, {"step": "x"}, {"session": ""}, {"tensor": 1}])
def test_a_wrong_step_is_left_to_who_says_what_is_wrong(change: dict[str, object]) -> None:
    fields = {**msgspec.to_builtins(STEPS[0]), **change}
    assert decode_step(memoryview(packed(fields)), BOTH) is None


def test_a_step_that_is_cut_off_is_none_at_every_length() -> None:
    header = encode_step(STEPS[1])
    assert header is not None
    for length in range(len(header)):
        assert decode_step(memoryview(header)[:length], BOTH) is None


def test_a_name_that_is_no_text_is_left_to_the_general_way() -> None:
    header = encode_step(Result(epoch=1, session="name", step=1, position=1))
    assert header is not None
    assert decode_step(memoryview(header.replace(b"name", b"n\x80me")), BOTH) is None
