"""Packers and quantisers: the same bytes on every path, and as close to the numbers as can be."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_paths import REFERENCE, every_generated
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import Kernels, PackedWeight
from potluck.errors import BrokenModelError
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, MXFP4, PackedFormat

widths = st.integers(1, 100) | st.just(300)  # more than a super-block
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def random(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of many sizes, some zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-20, 6, shape, generator=generator).float())
    return torch.randn(shape, generator=generator) * sizes


@every_generated
@every_format
@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 50), width=widths, dtype=dtypes, seed=st.integers(0, 2**32))
# A scale just below the middle of two f16 that are less than the least normal one.
@example(rows=15, width=1, dtype=torch.bfloat16, seed=1932131542)
def test_every_processor_packs_the_same_bytes(
    kernels: Kernels,
    weight_format: PackedFormat,
    rows: int,
    width: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    weight = random(rows, width, seed=seed).to(dtype)

    packed = kernels.pack(weight, weight_format)

    assert torch.equal(packed.data, REFERENCE.pack(weight, weight_format).data)


@every_generated
@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 20), width=st.integers(1, 100), dtype=dtypes, seed=st.integers(0, 2**32)
)
def test_every_processor_quantises_into_the_same_records(
    kernels: Kernels, tokens: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x = random(tokens, width, seed=seed).to(dtype)

    quantised = kernels.quantise(x)

    assert torch.equal(quantised.records, REFERENCE.quantise(x).records)


@every_generated
@every_format
def test_pieces_and_strides_pack_as_the_whole(
    kernels: Kernels, weight_format: PackedFormat
) -> None:
    weight = random(83, 96)
    packed, spread = PackedWeight.empty(83, 96, weight_format), torch.zeros(83, 200)
    spread[:, 50:146] = weight

    kernels.pack_rows(packed, 64, weight[64:])
    kernels.pack_rows(packed, 0, weight[:16])
    kernels.pack_rows(packed, 16, weight[16:64])

    whole = kernels.pack(weight, weight_format)
    assert torch.equal(packed.data, whole.data)
    assert torch.equal(kernels.pack(spread[:, 50:146], weight_format).data, whole.data)
    assert torch.equal(kernels.pack(weight.T.contiguous().T, weight_format).data, whole.data)


@every_generated
@every_format
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [(0, 0), (40, 69), (16, 31)])
def test_weights_that_are_not_finite_are_refused(
    kernels: Kernels, weight_format: PackedFormat, bad: float, where: tuple[int, int]
) -> None:
    weight = random(41, 70)
    weight[where] = bad

    with pytest.raises(BrokenModelError, match="not a number, or infinite"):
        kernels.pack(weight, weight_format)
    with pytest.raises(BrokenModelError):
        REFERENCE.pack(weight, weight_format)


@every_format
def test_no_weight_is_further_than_half_a_step(weight_format: PackedFormat) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    groups = weight.view(64, 8, 32)

    error = (REFERENCE.pack(weight, weight_format).dequantise() - weight).view(64, 8, 32).abs()

    # At least that many from zero to the largest, or from the least to the largest.
    steps = {INT4: 6.6, INT4_OFFSET: 15.0, INT4_SUPER: 15.0, INT8: 127.0, MXFP4: 3.5}[weight_format]
    has_offsets = weight_format.has_offsets
    range_ = groups.amax(-1) - groups.amin(-1) if has_offsets else groups.abs().amax(-1)
    step = range_[..., None] / steps
    # The largest itself may be clipped where that helps the rest.
    limit = 0.5 if weight_format is INT8 else 1.5
    assert (error <= limit * 1.001 * step).all()


@every_generated
def test_numbers_of_mxfp4_stay_as_they_are(kernels: Kernels) -> None:
    """Each group has a power of two of its own, and holds any of the sixteen numbers."""
    generator = torch.Generator().manual_seed(3)
    numbers = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = numbers[torch.randint(8, (48, 8, 32), generator=generator)]
    values *= torch.randint(0, 2, values.shape, generator=generator) * 2.0 - 1
    values[5, 3] = torch.tensor([0.5, -1.0]).repeat(16)  # neither the largest nor near it
    values[6, 2] = 0
    weight = (values * torch.exp2(torch.randint(-90, 90, (48, 8, 1), generator=generator))).flatten(
        1
    )

    packed = kernels.pack(weight, MXFP4)

    assert torch.equal(packed.dequantise(), weight)


def test_the_search_is_better_than_no_search() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    groups = weight.view(64, 8, 32)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    plain = (groups / scale).round().clamp(-8, 7) * scale

    searched = REFERENCE.pack(weight, INT4).dequantise().view(64, 8, 32)

    assert (searched - groups).norm() < 0.96 * (plain - groups).norm()


def test_with_offsets_the_search_is_better_than_no_search() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)) + 0.5
    groups = weight.view(64, 8, 32)
    least = groups.amin(-1, keepdim=True)
    scale = (groups.amax(-1, keepdim=True) - least) / 15
    plain = ((groups - least) / scale).round() * scale + least

    searched = REFERENCE.pack(weight, INT4_OFFSET).dequantise().view(64, 8, 32)

    assert (searched - groups).norm() < 0.94 * (plain - groups).norm()


def test_steps_are_those_of_the_largest_scale_and_offset_of_a_super_block() -> None:
    weight = torch.randn(16, 600, generator=torch.Generator().manual_seed(1))
    weight[:, 256:512] *= 100

    packed = REFERENCE.pack(weight, INT4_SUPER)

    multiples = packed.blocks[..., :32].unflatten(-1, (2, 16))  # (1, G, 2, 16)
    assert packed.steps.shape == (1, 3, 2, 16)
    assert (packed.steps[:, 1] / packed.steps[:, 0] > 50).all()
    for first, last in ((0, 8), (8, 16), (16, 19)):
        assert (multiples[:, first:last].amax(1) >= 254).all()


@every_generated
@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e-6])
def test_scales_and_offsets_in_steps_lose_nearly_nothing(kernels: Kernels, factor: float) -> None:
    """Also where the steps are the smallest numbers of f16."""
    weight = factor * torch.randn(64, 512, generator=torch.Generator().manual_seed(1))

    in_steps, each = (
        (kernels.pack(weight, held).dequantise() - weight).norm()
        for held in (INT4_SUPER, INT4_OFFSET)
    )

    assert in_steps < each * (1.0 if factor >= 1e-3 else 1.1)


def test_groups_of_one_sign_are_held_in_steps_too() -> None:
    generator = torch.Generator().manual_seed(1)
    above = (
        torch.rand(16, 256, generator=generator) + 1.0
    )  # offsets have no sign: integers begin at 0
    flat = torch.full((16, 256), 0.3)

    for weight, limit in ((above, 2 / 15), (-above, 1 / 15), (flat, 0.002), (-flat, 0.002)):
        error = REFERENCE.pack(weight, INT4_SUPER).dequantise() - weight
        assert error.abs().max() <= limit


@every_format
def test_what_is_stored_can_be_read_row_by_row(weight_format: PackedFormat) -> None:
    packed = REFERENCE.pack(random(50, 70), weight_format)
    whole = packed.dequantise()

    assert whole.shape == (50, 70)
    for first, last in ((0, 1), (15, 17), (16, 32), (49, 50), (3, 50)):
        assert torch.equal(packed.dequantise(first, last), whole[first:last])


@every_format
def test_the_bytes_are_those_announced(weight_format: PackedFormat) -> None:
    packed = REFERENCE.pack(random(2048, 256), weight_format)

    # Of 32 weights: the integers, a scale and perhaps an offset.
    group = {INT4: 16 + 2, INT4_OFFSET: 16 + 4, INT4_SUPER: 16 + 2.5, INT8: 32 + 2, MXFP4: 16 + 1}[
        weight_format
    ]
    assert packed.nbytes == 2048 * 256 // 32 * group
