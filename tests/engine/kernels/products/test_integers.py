"""Integers that were found elsewhere are packed as they are, or not at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.engine.kernels import PackedWeight
from potluck.engine.kernels.products.integers import pack_integers
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.model.formats import (
    INT4,
    INT4_OFFSET,
    INT4_SUPER,
    INT8,
    MXFP4,
    PACKED_FORMATS,
    PackedFormat,
)


def random(rows: int, width: int, held: PackedFormat, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    least, most = held.limits
    integers = torch.randint(least, most + 1, (rows, width), generator=generator)
    scales = torch.randn((rows, -(-width // 32)), generator=generator).half().float()
    return integers.to(torch.int8), scales


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 50),
    width=st.integers(1, 100),
    made_in=st.sampled_from([INT4, INT8]),
    held_in=st.sampled_from([held for held in PACKED_FORMATS if held.codes is None]),
    seed=st.integers(0, 2**32),
)
def test_the_values_of_what_is_packed_are_the_products(
    rows: int, width: int, made_in: PackedFormat, held_in: PackedFormat, seed: int
) -> None:
    integers, scales = random(rows, width, made_in, seed)
    packed = PackedWeight.empty(rows, width, held_in)

    is_held = pack_integers(packed, 0, ScaledIntegers(integers, scales))

    least, most = (INT4 if held_in.has_offsets else held_in).limits
    fits = bool(integers.min() >= least and integers.max() <= most)
    assert is_held == (fits and not held_in.has_steps)  # which are not given
    spread = scales.repeat_interleave(32, 1)[:, :width]
    assert not is_held or torch.equal(packed.dequantise(), integers.float() * spread)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 50),
    width=st.integers(1, 100),
    seed=st.integers(0, 2**32),
    wrong=st.sampled_from(["", "integer", "scale", "sign"]),
)
def test_integers_with_codes_are_packed_if_scales_are_powers_of_two(
    rows: int, width: int, seed: int, wrong: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.tensor(MXFP4.codes, dtype=torch.int8)
    integers = codes[torch.randint(16, (rows, width), generator=generator)]
    groups = -(-width // 32)
    scales = torch.exp2(torch.randint(-126, 128, (rows, groups), generator=generator).float())
    scales[-1, -1] = 0
    if wrong == "integer":
        integers[0, 0] = 5
    elif wrong:
        scales[0, 0] = 3.0 if wrong == "scale" else -1.0
    packed = PackedWeight.empty(rows, width, MXFP4)

    is_held = pack_integers(packed, 0, ScaledIntegers(integers, scales))

    assert is_held == (not wrong)
    spread = scales.repeat_interleave(32, 1)[:, :width]
    assert wrong or torch.equal(packed.dequantise(), integers.float() * spread)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 50), width=st.integers(1, 100), seed=st.integers(0, 2**32))
def test_offsets_are_rounded_to_f16_and_nothing_else_is(rows: int, width: int, seed: int) -> None:
    integers, scales = random(rows, width, INT4_OFFSET, seed)
    offsets = scales * torch.randn(scales.shape, generator=torch.Generator().manual_seed(seed))
    packed = PackedWeight.empty(rows, width, INT4_OFFSET)

    assert pack_integers(packed, 0, ScaledIntegers(integers, scales, offsets))

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


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 50),
    width=st.integers(1, 100) | st.just(600),
    seed=st.integers(0, 2**32),
    wrong=st.sampled_from(["", "integer", "scale", "offset", "step", "steps"]),
)
def test_multiples_of_steps_are_packed_exactly(
    rows: int, width: int, seed: int, wrong: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    integers, groups = random(rows, width, INT4_SUPER, seed)[0], -(-width // 32)
    steps = torch.randn((rows, -(-groups // 8), 2), generator=generator).half().float()
    steps[0, 0] = 0
    multiples = torch.randint(0, 64, (rows, groups, 2), generator=generator)
    factors = multiples * steps.repeat_interleave(8, 1)[:, :groups]
    scales, offsets = factors.unbind(-1)
    if wrong == "integer":
        integers[0, 0] = 16
    elif wrong == "scale":
        scales[0, 0] = 1.0  # its step is 0
    elif wrong == "offset":
        offsets[-1, -1] = 300 * steps[-1, -1, 1] + 1
    elif wrong == "step":
        steps[-1, -1, 0] = 1e5
        scales[-1, -1] = 1e5
    packed = PackedWeight.empty(rows, width, INT4_SUPER)
    packed.data.fill_(7)

    is_held = pack_integers(
        packed, 0, ScaledIntegers(integers, scales, offsets, None if wrong == "steps" else steps)
    )

    assert is_held == (not wrong)
    if wrong:
        assert (packed.data == 7).all()
    else:
        spread = (one.repeat_interleave(32, 1)[:, :width] for one in (scales, offsets))
        times, less = spread
        assert torch.equal(packed.dequantise(), integers.float() * times - less)


@pytest.mark.parametrize(
    ("weight_format", "integer", "offset"),
    [
        (INT4, 0, 1.0),
        (INT8, 0, 1.0),
        (INT4_OFFSET, 16, 1.0),
        (INT4_OFFSET, -1, 1.0),
        (INT4_OFFSET, 0, 1e5),
        (INT4_OFFSET, 0, float("nan")),
    ],
)
def test_offsets_that_cannot_be_held_are_left_alone(
    weight_format: PackedFormat, integer: int, offset: float
) -> None:
    integers, scales = random(16, 32, INT4_OFFSET, 0)
    integers[3, 5] = integer
    packed = PackedWeight.empty(16, 32, weight_format)
    packed.data.fill_(7)

    assert not pack_integers(
        packed, 0, ScaledIntegers(integers, scales, torch.full_like(scales, offset))
    )
    assert (packed.data == 7).all()


def test_pieces_are_packed_as_the_whole() -> None:
    integers, scales = random(75, 96, INT4, 0)
    whole, pieces = PackedWeight.empty(75, 96, INT4), PackedWeight.empty(75, 96, INT4)

    pack_integers(whole, 0, ScaledIntegers(integers, scales))
    for first in (0, 16, 64):
        end = {0: 16, 16: 64, 64: 75}[first]
        pack_integers(pieces, first, ScaledIntegers(integers[first:end], scales[first:end]))

    assert torch.equal(pieces.data, whole.data)


@pytest.mark.parametrize(
    ("weight_format", "integer", "scale"),
    [
        (INT4, 8, 1.0),
        (INT4, -9, 1.0),
        (INT8, -128, 1.0),
        (INT4, 0, 1e5),
        (INT4, 0, 1e-7),
        (INT4, 0, float("nan")),
        (INT4, 0, float("inf")),
    ],
)
def test_what_cannot_be_held_is_left_alone(
    weight_format: PackedFormat, integer: int, scale: float
) -> None:
    integers, scales = random(16, 32, weight_format, 0)
    integers[3, 5], scales[3, 0] = integer, scale
    packed = PackedWeight.empty(16, 32, weight_format)
    packed.data.fill_(7)

    assert not pack_integers(packed, 0, ScaledIntegers(integers, scales))
    assert (packed.data == 7).all()
