"""Tensors travel as their own bytes; what does not fit its header is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck.engine.payload import Activations, from_payload, to_payload
from potluck.errors import InvalidStepError
from potluck.wire.activation_messages import Dtype, TensorHeader

TENSORS = [
    torch.randn(3, 5),
    torch.randn(3, 5).to(torch.bfloat16),
    torch.randn(3, 5).to(torch.float16),
    torch.arange(7, dtype=torch.int32),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: str(tensor.dtype))
def test_what_arrives_is_what_was_sent(tensor: torch.Tensor) -> None:
    header, payload = to_payload(Activations.of(tensor))

    arrived = from_payload(header, bytearray(payload))

    assert arrived.tensor.dtype == tensor.dtype
    assert torch.equal(arrived.tensor, tensor)


def test_bytes_are_little_endian() -> None:
    header, payload = to_payload(Activations.of(torch.tensor([1, 256], dtype=torch.int32)))

    assert header == TensorHeader(dtype="I32", shape=(2,))
    assert bytes(payload) == b"\x01\0\0\0\0\x01\0\0"


def test_nothing_is_copied() -> None:
    tensor = torch.zeros(4)
    received = bytearray(16)

    _, sent = to_payload(Activations.of(tensor))
    arrived = from_payload(TensorHeader(dtype="F32", shape=(4,)), received)

    tensor[0] = 1.0
    assert bytes(sent[:4]) == b"\0\0\x80?"
    arrived.tensor[0] = 1.0
    assert received[:4] == b"\0\0\x80?"


def test_a_tensor_that_is_not_contiguous_is_sent_in_order() -> None:
    tensor = torch.arange(6, dtype=torch.int32).view(2, 3).T

    header, payload = to_payload(Activations.of(tensor))

    assert torch.equal(from_payload(header, bytes(payload)).tensor, tensor)


def test_bytes_that_cannot_be_written_are_copied() -> None:
    arrived = from_payload(TensorHeader(dtype="I32", shape=(1,)), b"\x07\0\0\0")

    assert arrived.tensor.tolist() == [7]


@given(
    dtype=st.sampled_from(["F32", "F16", "BF16", "I32", "I64", "U8", "I8"]),
    shape=st.lists(st.integers(0, 2**31 - 1), max_size=8),
    payload=st.binary(max_size=64),
)
def test_no_header_of_a_stranger_breaks_more_than_its_step(
    dtype: Dtype, shape: list[int], payload: bytes
) -> None:
    header = TensorHeader(dtype=dtype, shape=tuple(shape))
    try:
        tensor = from_payload(header, payload).tensor
    except InvalidStepError:
        return
    assert tensor.nbytes == len(payload)
    assert list(tensor.shape) == shape


@pytest.mark.parametrize("nbytes", [0, 4, 15, 17, 32])
def test_a_payload_of_another_size_than_its_header_says_is_refused(nbytes: int) -> None:
    with pytest.raises(InvalidStepError, match="bytes"):
        from_payload(TensorHeader(dtype="F32", shape=(2, 2)), bytes(nbytes))
