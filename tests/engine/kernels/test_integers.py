"""Integers that were found elsewhere are packed as they are, or not at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.engine.kernels import PackedWeight
from potluck.engine.kernels.integers import pack_integers
from potluck.engine.kernels.layout import LIMITS


def random(rows: int, width: int, bits: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    least, most = LIMITS[bits]
    integers = torch.randint(least, most + 1, (rows, width), generator=generator)
    scales = torch.randn((rows, -(-width // 32)), generator=generator).half().float()
    return integers.to(torch.int8), scales


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 50),
    width=st.integers(1, 100),
    bits=st.sampled_from([4, 8]),
    held_in=st.sampled_from([4, 5, 8]),
    seed=st.integers(0, 2**32),
)
def test_what_is_packed_is_worth_the_product(
    rows: int, width: int, bits: int, held_in: int, seed: int
) -> None:
    integers, scales = random(rows, width, bits, seed)
    packed = PackedWeight.empty(rows, width, held_in)

    is_held = pack_integers(packed, 0, integers, scales)

    least, most = LIMITS[min(held_in, 8 if held_in == 8 else 4)]
    assert is_held == bool(integers.min() >= least and integers.max() <= most)
    spread = scales.repeat_interleave(32, 1)[:, :width]
    assert not is_held or torch.equal(packed.dequantise(), integers.float() * spread)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 50), width=st.integers(1, 100), seed=st.integers(0, 2**32))
def test_offsets_are_rounded_to_f16_and_nothing_else_is(rows: int, width: int, seed: int) -> None:
    integers, scales = random(rows, width, 5, seed)
    offsets = scales * torch.randn(scales.shape, generator=torch.Generator().manual_seed(seed))
    packed = PackedWeight.empty(rows, width, 5)

    assert pack_integers(packed, 0, integers, scales, offsets)

    values = packed.dequantise()
    rounded, exact = (
        integers.float() * scales.repeat_interleave(32, 1)[:, :width]
        - each.repeat_interleave(32, 1)[:, :width]
        for each in (offsets.half().float(), offsets)
    )
    assert torch.equal(values, rounded)
    largest = offsets.abs().repeat_interleave(32, 1)[:, :width]
    # And 2^-24 of the sums in f32 themselves.
    rounding = 1.01 * (2.0**-11 * largest).clamp(min=2.0**-25) + 2.0**-22 * exact.abs()
    assert ((values - exact).abs() <= rounding).all()


@pytest.mark.parametrize(
    ("bits", "integer", "offset"),
    [(4, 0, 1.0), (8, 0, 1.0), (5, 16, 1.0), (5, -1, 1.0), (5, 0, 1e5), (5, 0, float("nan"))],
)
def test_offsets_that_cannot_be_held_are_left_alone(bits: int, integer: int, offset: float) -> None:
    integers, scales = random(16, 32, 5, 0)
    integers[3, 5] = integer
    packed = PackedWeight.empty(16, 32, bits)
    packed.data.fill_(7)

    assert not pack_integers(packed, 0, integers, scales, torch.full_like(scales, offset))
    assert (packed.data == 7).all()


def test_pieces_are_packed_as_the_whole() -> None:
    integers, scales = random(75, 96, 4, 0)
    whole, pieces = PackedWeight.empty(75, 96, 4), PackedWeight.empty(75, 96, 4)

    pack_integers(whole, 0, integers, scales)
    for first in (0, 16, 64):
        end = {0: 16, 16: 64, 64: 75}[first]
        pack_integers(pieces, first, integers[first:end], scales[first:end])

    assert torch.equal(pieces.data, whole.data)


@pytest.mark.parametrize(
    ("bits", "integer", "scale"),
    [
        (4, 8, 1.0),
        (4, -9, 1.0),
        (8, -128, 1.0),
        (4, 0, 1e5),
        (4, 0, 1e-7),
        (4, 0, float("nan")),
        (4, 0, float("inf")),
    ],
)
def test_what_cannot_be_held_is_left_alone(bits: int, integer: int, scale: float) -> None:
    integers, scales = random(16, 32, bits, 0)
    integers[3, 5], scales[3, 0] = integer, scale
    packed = PackedWeight.empty(16, 32, bits)
    packed.data.fill_(7)

    assert not pack_integers(packed, 0, integers, scales)
    assert (packed.data == 7).all()
